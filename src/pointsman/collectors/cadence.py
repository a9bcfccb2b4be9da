"""How often engines are looked at, in seconds."""

from enum import StrEnum

import msgspec

from pointsman.core.limits import PROBE_RETRY_S, PROBE_S, PROBE_SUCCESSES_MIN


class RequestProbes(StrEnum):
    """Which engines are asked for a token by their probes."""

    OFF = "off"
    TRIALS = "trials"  # those that failed, and may show that they are well again
    IDLE = "idle"  # those, too, that have answered nobody since the last probe


class Cadence(msgspec.Struct, frozen=True, kw_only=True):
    """The intervals of a node's collectors. May be replaced while they run; each goes by it from
    its next wait on.

    probe_s          between probes of a node that is well
    probe_retry_s    after a failure, and until it has recovered; and while its requests speak
                     against it
    probe_timeout_s  for a probe's answer
    requests         whether probes ask for a token, too: of engines on trial, so that no client's
                     request has to be the trial, or of idle ones as well
    scrape_s         between scrapes while requests are there. Own counts lead; a
                     scrape corrects them
    scrape_idle_s    while none are: doubling up to this. A placement cuts it short, and so does
                     a good probe, whose connection is then used twice: connecting is most of
                     what an idle engine costs
    recovery_probes  good probes in a row after a failure before it is probed seldom again: the
                     core's own threshold, or it would wait for the next one
    describe_s       between looks at /v1/models: how late an adapter loaded at run time appears
    """

    probe_s: float = PROBE_S
    probe_retry_s: float = PROBE_RETRY_S
    probe_timeout_s: float = 2.0
    requests: RequestProbes = RequestProbes.TRIALS
    scrape_s: float = 0.5
    scrape_idle_s: float = 15.0
    recovery_probes: int = PROBE_SUCCESSES_MIN
    describe_s: float = 30.0
