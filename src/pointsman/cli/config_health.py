"""In the configuration: when an engine is out of service, and how it is looked at."""

from typing import Annotated

import msgspec
from msgspec import Meta

from pointsman.cli.config_bounds import Count, Seconds
from pointsman.collectors.cadence import Cadence, RequestProbes
from pointsman.core.rules import HealthRules

Factor = Annotated[float, Meta(gt=1, le=1_000)]
Share = Annotated[float, Meta(gt=0, le=1)]

_HEALTH = HealthRules()
_CADENCE = Cadence()


class Health(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When an engine is taken out of service, and when it comes back."""

    probe_s: Annotated[
        Seconds,
        Meta(description="Seconds between probes (GET /health) of an engine that is well."),
    ] = _CADENCE.probe_s
    probe_retry_s: Annotated[
        Seconds,
        Meta(description="Seconds between probes after one has failed, until it is well again."),
    ] = _CADENCE.probe_retry_s
    probe_timeout_s: Annotated[
        Seconds,
        Meta(
            description="Seconds that a probe's answer may take. Engines answer late in long "
            "prefills; those that began an answer lately are not failed for that."
        ),
    ] = _CADENCE.probe_timeout_s
    probe_requests: Annotated[
        RequestProbes,
        Meta(
            description="Which engines are asked for one token (POST /v1/completions): 'trials' "
            "those that failed, so that no client's request has to show whether they are well "
            "again; 'idle' those, too, that have answered nobody since the last probe; 'off' none."
        ),
    ] = _CADENCE.requests
    probe_failures_max: Annotated[
        Count,
        Meta(
            description="Failed probes in a row before it is out. One slow answer is no death; "
            "many leave a dead engine in service for longer."
        ),
    ] = _HEALTH.probe_failures_max
    probe_successes_min: Annotated[
        Count,
        Meta(description="Good probes in a row before it is back: against flapping."),
    ] = _HEALTH.probe_successes_min
    request_failures_max: Annotated[
        Count,
        Meta(
            description="Requests in a row that came to nothing there before it is out, whatever "
            "its probes say: no connection, a broken answer, a 5xx. 4xx and 'busy' do not count."
        ),
    ] = _HEALTH.request_failures_max
    failures_within_s: Annotated[
        Seconds,
        Meta(
            description="Seconds within which these must fall. Twice as many in a row take it out "
            "however far apart they are."
        ),
    ] = _HEALTH.failures_within_s
    open_s: Annotated[
        Seconds,
        Meta(
            description="Seconds that an engine which failed its requests stays out before one may "
            "try it, and one that restarted twice in a row; twice as long each time it does so "
            "again."
        ),
    ] = _HEALTH.open_s
    open_s_max: Annotated[
        Seconds,
        Meta(
            description="The most of that. Less costs second attempts on an engine that stays "
            "broken, more leaves one that is mended idle."
        ),
    ] = _HEALTH.open_s_max
    suspect_s: Annotated[
        Seconds,
        Meta(
            description="Seconds after which a suspicion that nothing confirms is dropped; that it "
            "is slow, once an answer of its shows otherwise. Until then the engine has a lowered "
            "share of the work."
        ),
    ] = _HEALTH.suspect_s
    suspect_weight: Annotated[
        Share,
        Meta(
            description="The share of its peers' work that a suspected engine may have. More keeps "
            "the conversations of one that is well, and loses more on one that is not."
        ),
    ] = _HEALTH.suspect_weight
    slow_factor: Annotated[
        Factor,
        Meta(
            description="How many times as long as foreseen its answers must take, and its peers' "
            "not, before it is suspected. Low values suspect engines for their load."
        ),
    ] = _HEALTH.slow_factor
    slow_share_max: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="Of a model's engines, how many may be found slow or late at a time: if "
            "more seem so, it is the load. 0 finds none, and only failures count.",
        ),
    ] = _HEALTH.slow_share_max
    overdue_factor: Annotated[
        Factor,
        Meta(
            description="How many times as long as foreseen a first token may be due with nothing "
            "coming from there, before it is suspected to hang."
        ),
    ] = _HEALTH.overdue_factor
    overdue_min_s: Annotated[
        Seconds,
        Meta(
            description="Seconds more that it may be due. Less finds an engine that hangs sooner; "
            "engines that pause for long, to load or to compile, need more."
        ),
    ] = _HEALTH.overdue_min_s
    shared_queue_s: Annotated[
        Seconds,
        Meta(
            description="Seconds of prompts that may wait on an engine which has not its full "
            "share of the work, while its peers' queues are empty. Slow engines, whose single "
            "prompt takes seconds, take more of them with more."
        ),
    ] = _HEALTH.shared_queue_s
    trial_after_s: Annotated[
        Seconds,
        Meta(
            description="Seconds after which one short request tries an engine that was found slow "
            "and idles since; twice as long each time it still is, up to 16 times."
        ),
    ] = _HEALTH.trial_after_s
    trial_cost_share: Annotated[
        Share,
        Meta(
            description="Of the time that nobody has tried it, what the first token of such a "
            "request may take. Less spares long prompts the trial, more ends an engine's slow time "
            "sooner."
        ),
    ] = _HEALTH.trial_cost_share
    slow_start_s: Annotated[
        float,
        Meta(
            ge=0,
            le=3_600,
            description="Seconds in which a new engine comes to its full share of the work where "
            "others serve already; a third of that if its answers come as foreseen. 0 gives it all "
            "at once.",
        ),
    ] = _HEALTH.slow_start_s
    slow_start_weight: Annotated[
        Share,
        Meta(
            description="The share of its peers' work that it begins with. More fills it sooner, "
            "with prompts that are not cached there yet."
        ),
    ] = _HEALTH.slow_start_weight
    scrape_s: Annotated[
        Seconds,
        Meta(
            description="Seconds between looks at its metrics while it works. They tell what "
            "others send there; our own requests are counted without."
        ),
    ] = _CADENCE.scrape_s
    scrape_idle_s: Annotated[
        Seconds, Meta(description="The same while it idles; longer costs less CPU.")
    ] = _CADENCE.scrape_idle_s
    signal_age_max_s: Annotated[
        Seconds, Meta(description="Seconds after which what was scraped is no longer believed.")
    ] = _HEALTH.signal_age_max_s
    describe_s: Annotated[
        Seconds,
        Meta(
            description="Seconds between looks at the models it serves: how late an adapter that "
            "was loaded at run time may appear."
        ),
    ] = _CADENCE.describe_s
