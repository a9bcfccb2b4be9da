"""A cluster, what it is told, and what befalls it: everything of a simulation but the traffic.

All structs reject unknown fields, so that a scenario file with a typo is an error.
"""

from enum import StrEnum
from typing import Annotated

import msgspec

from pointsman.engines.compute_model import PROFILE_DEFAULT, Profile
from pointsman.traffic.slo import Slo

Positive = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Interval = Annotated[float, msgspec.Meta(ge=0.001, le=1e9)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Count = Annotated[int, msgspec.Meta(ge=1)]
Gateways = Annotated[int, msgspec.Meta(ge=1, le=64)]


class NodeGroup(msgspec.Struct, frozen=True, gc=False, kw_only=True, forbid_unknown_fields=True):
    """Nodes that are alike. `profile` is a name or a profile of one's own; `slowdown` multiplies
    every time of it (2.5 is 40 % of its speed). What is None is the profile's own; `block_tokens`
    None is the trace's block size. Nodes join `startup_s` after the beginning. An `ideal` node is
    no engine that there is: it takes every request at once, and what has the least to prefill
    goes before all others there. `concurrency_max` is the gateway's limit on each, None its
    default. Of a node that `tells_running_max` the scheduler knows how many sequences it runs at
    once: llama.cpp says so, vLLM and SGLang do not."""

    count: Count = 1
    profile: str | Profile = PROFILE_DEFAULT
    slowdown: Positive = 1.0
    kv_tokens: Count | None = None
    block_tokens: Count | None = None
    sequences_max: Count | None = None
    context_tokens: Count | None = None
    startup_s: Seconds = 0.0
    concurrency_max: Count | None = None
    tells_running_max: bool = False
    ideal: bool = False


class Index(StrEnum):
    """How the scheduler learns what engines hold."""

    PRECISE = "precise"  # the engines publish their KV events
    APPROXIMATE = "approximate"  # it only knows its own placements


class Times(msgspec.Struct, frozen=True, gc=False, kw_only=True, forbid_unknown_fields=True):
    """As how many times as long as they are times are taken: at 2 an engine is believed to be half
    as fast as it is. `prefill` is the time to a first token, `decode` from there to the end."""

    prefill: Positive = 1.0
    decode: Positive = 1.0


class Prior(Times, frozen=True, gc=False, kw_only=True, forbid_unknown_fields=True):
    """What was learned of the `nodes` (`node-0` …; none: all) before the first request. Of the
    others the truth was."""

    nodes: tuple[str, ...] = ()


class Knowledge(msgspec.Struct, frozen=True, gc=False, kw_only=True, forbid_unknown_fields=True):
    """What the scheduler gets to know, and how late.

    `event_loss` is the share of KV event messages that are lost; a loss is noticed with the next
    message and mended by a replay. Without `kv_blocks` engines do not tell how many they have:
    nothing but counts of requests bounds a node.

    With a `prior` the speeds of all nodes that are there at the beginning count as known, and what
    is wrong of them can be mended: what is measured from then on is true. Without one nothing is
    known. What is wrong in `measured` is wrong for good: every time that is learned from is.

    Reports come half as often as collectors ask for them (`Cadence.scrape_s`): the tables in
    docs/POLICIES.md were made so. One gateway goes by its own counts first: behind it, 8 engines
    were given the same of 800 chats either way.
    """

    index: Index = Index.APPROXIMATE
    kv_blocks: bool = True
    event_lag_s: Seconds = 0.01
    event_loss: Share = 0.0
    report_interval_s: Interval = 1.0
    report_lag_s: Seconds = 0.02
    prior: Prior | None = None
    measured: Times = Times()


class Network(msgspec.Struct, frozen=True, gc=False, kw_only=True, forbid_unknown_fields=True):
    """One-way delays. `dispatch_s` is what an engine itself takes before a request is queued."""

    client_s: Seconds = 0.0005
    engine_s: Seconds = 0.0005
    dispatch_s: Seconds = 0.005


class Backoff(StrEnum):
    """What a client waits before it tries again."""

    NONE = "none"
    EXPONENTIAL = "exponential"  # 0.5 s · 2^n with jitter, or Retry-After where that is longer


class Clients(msgspec.Struct, frozen=True, gc=False, kw_only=True, forbid_unknown_fields=True):
    """How clients behave. `closed_loop` sends a session's next turn `think_s` after the answer
    to the last one; else every request comes when the trace says. A client gives up after
    `timeout_s`, and tries again up to `retries_max` times after a refusal, failure or timeout.
    An answer that is not one of the `streams` comes whole: its first token is not seen.
    `bounds_output` says whether requests carry the very length of their answer as `max_tokens`,
    `tells_slo` whether they carry the time within which the scenario's `slo` wants a first token.
    Those who have no keys and come from one `address` are one client, of one tenant.
    """

    closed_loop: bool = False
    streams: bool = True
    bounds_output: bool = False
    tells_slo: bool = False
    retries_max: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0
    backoff: Backoff = Backoff.EXPONENTIAL
    timeout_s: Positive | None = None
    address: str = ""


class FaultKind(StrEnum):
    """What can happen to nodes."""

    CRASH = "crash"  # requests there break off; it returns after `duration_s`, cold
    SLOW = "slow"  # every step takes `factor` times as long
    HANG = "hang"  # no step ends for `duration_s`
    PARTITION = "partition"  # reports, probes and KV events do not arrive
    STALE = "stale"  # reports repeat what was true at its beginning
    FLAP = "flap"  # probes fail and succeed in turn, each `period_s`; requests are served
    EVENT_LOSS = "event_loss"  # of KV event messages a share of `factor` is lost


class Fault(msgspec.Struct, frozen=True, gc=False, kw_only=True, forbid_unknown_fields=True):
    """From `at_s` on for `duration_s` on the nodes named (`node-0`, `node-1` …; none: all).

    It happens `repeat` times, every `every_s`, and begins `stagger_s` later on each further node:
    crashes that take turns are a rolling restart.
    """

    kind: FaultKind
    at_s: Seconds
    duration_s: Positive
    nodes: tuple[str, ...] = ()
    factor: Positive = 1.0
    period_s: Interval = 2.0
    repeat: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 1
    every_s: Positive = 10.0
    stagger_s: Seconds = 0.0

    def begins_s(self, place: int) -> tuple[float, ...]:
        """When it begins on the node that is named in this place."""
        first_s = self.at_s + place * self.stagger_s
        return tuple(first_s + turn * self.every_s for turn in range(self.repeat))


class Scenario(msgspec.Struct, frozen=True, gc=False, kw_only=True, forbid_unknown_fields=True):
    """Everything but the requests. Each of `gateways` has a scheduler of its own, and clients
    take turns among them; they see each other's work in the engines' reports only.
    `clients_by_part` is how clients of a part of mixed traffic behave who differ from the rest.
    """

    name: str
    fleet: tuple[NodeGroup, ...] = (NodeGroup(count=8),)
    gateways: Gateways = 1
    knowledge: Knowledge = Knowledge()
    network: Network = Network()
    clients: Clients = Clients()
    clients_by_part: dict[str, Clients] = {}
    faults: tuple[Fault, ...] = ()
    slo: Slo = Slo()

    @property
    def nodes(self) -> int:
        """How many nodes there are when all have joined."""
        return sum(group.count for group in self.fleet)

    @property
    def node_names(self) -> tuple[str, ...]:
        """In the order of the groups."""
        return tuple(f"node-{place}" for place in range(self.nodes))

    @property
    def troubled_s(self) -> tuple[float, float] | None:
        """From the beginning of the first fault to the end of the last; None without any."""
        spans = [
            (begin_s, begin_s + fault.duration_s)
            for fault in self.faults
            for place in range(len(fault.nodes) or self.nodes)
            for begin_s in fault.begins_s(place)
        ]
        if not spans:
            return None
        return min(begin_s for begin_s, _ in spans), max(end_s for _, end_s in spans)
