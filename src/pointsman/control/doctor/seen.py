"""What the doctor looked at, as values: judging them needs no engine. None is not looked at."""

import msgspec

from pointsman.control.listed import Ranks
from pointsman.engines.adapters import Description, EventSource
from pointsman.wire.usage import Usage


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """An engine as configured. `pool_idle_s` is how long the gateway keeps its connections."""

    name: str
    url: str
    models: tuple[str, ...] = ()
    kv_events: str = "auto"
    ranks: Ranks = "auto"
    pool_idle_s: float = 2.0


class LinkSeen(msgspec.Struct, frozen=True, kw_only=True):
    """One connection: its far end, a warm round trip, and what happened when it idled.

    `clock_ahead_s` is the engine's clock against ours, 0 within what a Date header can tell.
    `closed_after_s` None: it was still open after `watched_s`.
    """

    peer: tuple[str, int]
    latency_s: float
    health_status: int
    reusable: bool
    clock_ahead_s: float | None
    watched_s: float
    closed_after_s: float | None


class ProbeSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt sent again and again: the usage of each answer, and the fastest one's time.

    `trouble` says why there is less than was asked for; `refused` is one of no fault: busy, or
    not made for completions.
    """

    model: str
    prompt: str
    usages: tuple[Usage, ...] = ()
    seconds_min: float | None = None
    trouble: str = ""
    refused: bool = False

    @property
    def cached(self) -> int | None:
        """The most that a repetition found cached; None if the engine does not say."""
        told = [u.cached_tokens for u in self.usages[1:] if u.cached_tokens is not None]
        return max(told, default=None)

    def predicted(self, block_tokens: int | None) -> int:
        """Tokens that a repetition finds: whole blocks, never the prompt's last token."""
        block = block_tokens or 1
        return (self.usages[-1].prompt_tokens - 1) // block * block if self.usages else 0


class StreamSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A short streamed answer: its events, and when its first and last bytes came."""

    events: int
    first_s: float
    last_s: float
    trouble: str = ""


class EventsSeen(msgspec.Struct, frozen=True, kw_only=True):
    """What one publisher of KV events sent while the probe ran.

    `foreign` are topics that are not its own. `replayed_from` is the first sequence number
    that its memory gave; None: it gave nothing.
    """

    source: EventSource
    trouble: str = ""
    malformed: int = 0
    stored: int = 0
    block_sizes: tuple[int, ...] = ()
    foreign: tuple[str, ...] = ()
    replayed_from: int | None = None


class TokensSeen(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt as token ids, by us and by the engine. `ours` None: the engine is asked.

    `trouble` says why there is nothing to compare.
    """

    model: str
    endpoint: str
    ours: tuple[int, ...] | None = None
    theirs: tuple[int, ...] | None = None
    trouble: str = ""


class EngineSeen(msgspec.Struct, frozen=True, kw_only=True):
    """One engine. `trouble` says why it could not be described; then little else is known.

    `started_s` are start times by its metrics, each over a connection of its own.
    """

    target: Target
    trouble: str = ""
    described: Description | None = None
    link: LinkSeen | None = None
    started_s: tuple[float, ...] = ()
    probe: ProbeSeen | None = None
    streams: tuple[StreamSeen, ...] = ()
    events: tuple[EventsSeen, ...] = ()
    tokens: tuple[TokensSeen, ...] = ()


class NodeSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A node in the admin plane's state."""

    name: str
    url: str
    health: str
    health_cause: str = ""
    health_detail: str = ""
    problem: str = ""
    draining: bool = False
    index_trust: str = "history"
    cached_tokens_predicted: int = 0
    cached_tokens_reported: int = 0


class ConfigurationSeen(msgspec.Struct, frozen=True):
    """The last reload, in the state."""

    problems: tuple[str, ...] = ()


class StateSeen(msgspec.Struct, frozen=True, kw_only=True):
    """The admin plane's state, as far as the doctor reads it."""

    ready: bool
    nodes: tuple[NodeSeen, ...] = ()
    configuration: ConfigurationSeen = ConfigurationSeen()
    failures: dict[str, int] = {}


class GatewaySeen(msgspec.Struct, frozen=True, kw_only=True):
    """A running gateway. A status of None was not asked for."""

    url: str = ""
    trouble: str = ""
    ready_status: int | None = None
    models_status: int | None = None
    models: tuple[str, ...] = ()
    probe: ProbeSeen | None = None
    streams: tuple[StreamSeen, ...] = ()
    admin_url: str = ""
    admin_trouble: str = ""
    state: StateSeen | None = None
