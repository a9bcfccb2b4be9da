"""What the scheduler is told, and what it answers: the whole vocabulary of `Scheduler.step`.

Events go in, effects come out. Requests are named by `RequestId`, nodes by `NodeId` (one
incarnation); an event about an incarnation that has ended is ignored and counted. What is about
requests is in `core/request_events.py`.
"""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from pointsman.core.blocks import Prompt
from pointsman.core.cache_events import CacheChange, ChainStored
from pointsman.core.health import Cause, Health
from pointsman.core.ids import BlockHash, ModelName, NodeId, NodeName
from pointsman.core.request_events import (
    Arrived,
    Compensated,
    Failed,
    Held,
    Placed,
    Recalled,
    Refused,
    Settled,
    Started,
)
from pointsman.core.rules import Rules

# --- events: nodes ----------------------------------------------------------------------


class NodeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A node as configured. `models` fixes what it serves; empty asks the engine itself.

    `url` has a rank for its fragment where a server has several, each a node. `concurrency_max`
    bounds its requests in flight, None takes the default.
    """

    name: NodeName
    url: str
    models: tuple[ModelName, ...] = ()
    pool: str = "default"
    zone: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    concurrency_max: int | None = None

    @property
    def server(self) -> str:
        """Where the server is that its rank is of."""
        return self.url.partition("#")[0]


class ModelCard(msgspec.Struct, frozen=True):
    """A model or adapter that a node serves. `parent` is an adapter's base model, `root` what the
    engine has loaded: names with one root are names of one model."""

    name: ModelName
    context_tokens_max: int | None = None
    parent: ModelName | None = None
    root: str | None = None


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine says of itself; None is unknown, never zero.

    `kv_blocks` of `block_tokens` tokens each is its KV capacity. It runs `running_max` requests at
    once; what is beyond waits inside.
    """

    kind: str = "unknown"
    version: str = ""
    models: tuple[ModelCard, ...] = ()
    block_tokens: int | None = None
    kv_blocks: int | None = None
    running_max: int | None = None

    def first_names(self) -> dict[ModelName, ModelName]:
        """Of models that are served under several names, each further one -> the first."""
        firsts: dict[str, ModelName] = {}
        further: dict[ModelName, ModelName] = {}
        for card in self.models:
            if card.root and card.parent is None:
                first = firsts.setdefault(card.root, card.name)
                if first != card.name:
                    further[card.name] = first
        return further


class NodeSignals(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One scrape of an engine's load; None is missing, never zero.

    `kv_usage` is the fraction of KV blocks held by requests. Counters are totals since the
    engine's start. What follows only an agent beside the engine can tell: shares of the last
    seconds in which the GPU computed and moved memory (the mean over the engine's GPUs), the
    hottest one's temperature, what they draw together, and the share of TCP segments that were
    sent again.
    """

    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    prefix_queries: float | None = None
    prefix_hits: float | None = None
    preemptions: float | None = None
    gpu_busy: float | None = None
    gpu_memory_busy: float | None = None
    gpu_temperature_c: float | None = None
    gpu_power_w: float | None = None
    retransmit_ratio: float | None = None


class NodeJoined(msgspec.Struct, frozen=True):
    """A node is new, or its engine restarted: a fresh incarnation, answered by `Admitted`."""

    spec: NodeSpec


class NodeLeft(msgspec.Struct, frozen=True):
    """The node is gone for good; its leases are void and the index forgets it."""

    node_id: NodeId


class NodeDescribed(msgspec.Struct, frozen=True):
    """Facts learned by probing. The first one ends its joining."""

    node_id: NodeId
    facts: NodeFacts


class NodeWarmed(msgspec.Struct, frozen=True):
    """The node has computed this prompt for a `WarmUp`; None: it is over, whatever came of it."""

    node_id: NodeId
    prompt: Prompt | None = None


class NodeReported(msgspec.Struct, frozen=True):
    """Signals scraped from the node, true at `at_s`."""

    node_id: NodeId
    at_s: float
    signals: NodeSignals


class NodeProbed(msgspec.Struct, frozen=True):
    """The outcome of a health probe. `detail` says what failed, for people."""

    node_id: NodeId
    healthy: bool
    detail: str = ""


class NodeJudged(msgspec.Struct, frozen=True):
    """Somebody who used the node says how it is: a client, or a shell that asked for a token
    (`ERRORS`). `detail` says what they saw."""

    node_id: NodeId
    healthy: bool
    detail: str = ""
    cause: Cause = Cause.FEEDBACK


class NodeDraining(msgspec.Struct, frozen=True):
    """Take the node out of rotation, or back into it; what runs on it finishes."""

    node_id: NodeId
    draining: bool


class NodeChanged(msgspec.Struct, frozen=True):
    """The same engine at the same address, configured otherwise. What it holds and what runs
    on it stays."""

    node_id: NodeId
    spec: NodeSpec


# --- events: engine caches --------------------------------------------------------------


class CacheChanged(msgspec.Struct, frozen=True, gc=False):
    """One message of an engine's KV event stream, in order."""

    node_id: NodeId
    changes: Sequence[CacheChange | ChainStored]


class CacheTold(msgspec.Struct, frozen=True, gc=False):
    """An agent's account of its node's cache, under our own hashes: what came and left since
    the last one, which may be nothing; or, with `bucket`, all that it holds of that bucket of
    a `BlockSet`."""

    node_id: NodeId
    stored: Sequence[BlockHash]
    removed: Sequence[BlockHash] = ()
    bucket: int | None = None


class IndexTrust(StrEnum):
    """How far the index may be believed about a node."""

    HISTORY = "history"  # no events: credited by our own placements
    EXACT = "exact"  # every event since the engine's start, or since a clear
    DEGRADED = "degraded"  # events were lost; what is there may be stale or missing
    DISTRUSTED = "distrusted"  # the engine finds something else for long: as HISTORY, for good


class IndexTrusted(msgspec.Struct, frozen=True):
    """The event stream of a node is in sync, or no longer is."""

    node_id: NodeId
    trust: IndexTrust


# --- events: the rest -------------------------------------------------------------------


class PolicyChosen(msgspec.Struct, frozen=True):
    """Place by another policy from here on. The name is in the catalog."""

    policy: str


class RulesChanged(msgspec.Struct, frozen=True):
    """Go by other bounds from here on. Who is held keeps their place and their deadline."""

    rules: Rules


class Tick(msgspec.Struct, frozen=True, gc=False):
    """Time has passed: deadlines and leases expire."""


NodeEvent = (
    NodeLeft
    | NodeDescribed
    | NodeWarmed
    | NodeReported
    | NodeProbed
    | NodeJudged
    | NodeDraining
    | NodeChanged
    | CacheChanged
    | CacheTold
    | IndexTrusted
)
"""About an incarnation that has joined."""

Event = (
    Arrived
    | Started
    | Failed
    | Settled
    | NodeJoined
    | NodeEvent
    | PolicyChosen
    | RulesChanged
    | Tick
)

# --- effects ----------------------------------------------------------------------------


class Admitted(msgspec.Struct, frozen=True):
    """The incarnation that the node's events are to name from here on."""

    name: NodeName
    node_id: NodeId


class Turned(msgspec.Struct, frozen=True):
    """The node's health changed: whoever works for it, or watches it, may have to change, too."""

    name: NodeName
    node_id: NodeId
    before: Health
    after: Health
    cause: Cause
    detail: str


class Left(msgspec.Struct, frozen=True):
    """The incarnation has ended: close its connections, stop collecting from it."""

    name: NodeName
    node_id: NodeId


class WarmUp(msgspec.Struct, frozen=True):
    """Have it compute what ends with these blocks first, in order. Answered by `NodeWarmed`."""

    name: NodeName
    node_id: NodeId
    url: str
    blocks: tuple[BlockHash, ...]
    within_s: float


Effect = Placed | Held | Refused | Recalled | Compensated | Admitted | Turned | WarmUp | Left
