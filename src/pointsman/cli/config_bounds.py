"""Bounds in the configuration: on time, on memory, on attempts.

Defaults are those of the parts that go by them; each description says what a value trades.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from pointsman.core import rules
from pointsman.core.limits import (
    HOLD_S,
    INDEX_BYTES_MAX,
    QUEUE_LENGTH_MAX,
    RESERVATION_S,
    RETRY_AFTER_MAX_S,
)
from pointsman.gateway.options import GatewayOptions

Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Count = Annotated[int, Meta(ge=1, le=1_000)]

_STAGES = rules.Timeouts()
_RETRIES = rules.RetryRules()
_GUARD = rules.GuardRules()
_GATEWAY = GatewayOptions()


class Timeouts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long each stage of a request may take."""

    connect_s: Annotated[
        Seconds, Meta(description="Seconds to connect to an engine before another is tried.")
    ] = _STAGES.connect_s
    first_byte_s: Annotated[
        Seconds,
        Meta(
            description="Seconds until an engine's first byte. Long prompts in a long queue need "
            "minutes; short values turn load into errors."
        ),
    ] = _STAGES.first_byte_s
    idle_s: Annotated[
        Seconds,
        Meta(
            description="Seconds between two chunks of a stream before it counts as hung. "
            "Engines that preempt a request may pause it for long."
        ),
    ] = _STAGES.idle_s
    total_s: Annotated[
        Seconds,
        Meta(
            description="Seconds for a whole request. What runs longer holds KV blocks that "
            "others wait for."
        ),
    ] = _STAGES.total_s
    reservation_s: Annotated[
        Seconds,
        Meta(
            description="Seconds after which a request that its engine does not count gives back "
            "what is reserved for it, but never before three times its own expected wait. Shorter "
            "frees sooner what a dead gateway or a lost message has left behind."
        ),
    ] = RESERVATION_S
    queue_s: Annotated[
        Seconds,
        Meta(
            description="Seconds that a request may wait for an engine with room before it gets "
            "429. Longer than its client waits helps nobody."
        ),
    ] = HOLD_S
    drain_s: Annotated[
        Seconds,
        Meta(
            description="Seconds that running requests get to finish after SIGTERM. Keep it "
            "below the supervisor's own patience (Kubernetes: terminationGracePeriodSeconds)."
        ),
    ] = 30.0
    head_s: Annotated[
        Seconds,
        Meta(
            description="Seconds from a request's first byte to the end of its head; later gets "
            "408. Bounds what a client can hold up by sending slowly."
        ),
    ] = _GATEWAY.head_s
    body_gap_s: Annotated[
        Seconds,
        Meta(description="Seconds between two pieces of a request's body; more gets 408."),
    ] = _GATEWAY.body_gap_s
    body_s: Annotated[
        Seconds,
        Meta(
            description="Seconds for a whole request body; more gets 408. Large uploads on slow "
            "lines need it long."
        ),
    ] = _GATEWAY.body_s
    keep_alive_s: Annotated[
        Seconds,
        Meta(
            description="Seconds that an idle client connection is kept. Longer than the clients' "
            "own pools, so that they close first and no request meets a closed connection."
        ),
    ] = _GATEWAY.keep_alive_s
    engine_idle_s: Annotated[
        Seconds,
        Meta(
            description="Seconds that an idle connection to an engine is kept. Shorter than the "
            "engines keep theirs (vLLM: 5 s), for the same reason."
        ),
    ] = _GATEWAY.idle_s


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds on memory."""

    connections_max: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000,
            description="Client connections at once; more get 429. Each open stream costs some "
            "tens of KiB and two file descriptors (ulimit -n).",
        ),
    ] = _GATEWAY.connections_max
    body_bytes_max: Annotated[
        int,
        Meta(
            ge=1_024,
            le=1 << 30,
            description="Bytes of a request body; larger gets 413. Images travel in it as base64.",
        ),
    ] = _GATEWAY.body_bytes_max
    queue_length_max: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000,
            description="Requests held centrally while no engine has room; more get 429. A longer "
            "queue answers later instead of refusing sooner.",
        ),
    ] = QUEUE_LENGTH_MAX
    index_bytes_max: Annotated[
        int,
        Meta(
            ge=1 << 20,
            le=1 << 38,
            description="Bytes of the prefix index, about 128 a block. Too small forgets prefixes "
            "that the engines still hold.",
        ),
    ] = INDEX_BYTES_MAX
    tokenizer_bytes_max: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 38,
            description="Bytes of remembered texts and their token ids, about 13 a token, for all "
            "models together. What is forgotten is encoded anew, at a megabyte a second.",
        ),
    ] = 64 * 1024 * 1024
    head_bytes_max: Annotated[
        int,
        Meta(
            ge=1_024,
            le=1 << 20,
            description="Bytes of a request's line and header fields; more gets 431.",
        ),
    ] = _GATEWAY.head_bytes_max
    headers_max: Annotated[
        int, Meta(ge=8, le=10_000, description="Header fields of a request; more gets 431.")
    ] = _GATEWAY.headers_max
    bodies_bytes_max: Annotated[
        int,
        Meta(
            ge=1 << 20,
            le=1 << 40,
            description="Bytes of all request bodies held at once; more get 429. Bounds what many "
            "large uploads can take together.",
        ),
    ] = _GATEWAY.bodies_bytes_max
    write_buffer_bytes: Annotated[
        int,
        Meta(
            ge=1_024,
            le=1 << 26,
            description="Bytes of an answer held for a client that reads slowly, before its engine "
            "is made to wait.",
        ),
    ] = _GATEWAY.write_buffer_bytes
    engine_connections_idle_max: Annotated[
        int,
        Meta(
            ge=0,
            le=100_000,
            description="Idle connections kept to one engine. Fewer mean more new ones in a burst.",
        ),
    ] = _GATEWAY.idle_max


class Retries(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How often a request that failed before its first byte is tried again, elsewhere."""

    attempts_max: Annotated[
        Count,
        Meta(
            description="Engines that one request may fail on; 1 never tries again. Two failures "
            "are more likely the request's fault than the engines'."
        ),
    ] = _RETRIES.attempts_max
    busy_attempts_max: Annotated[
        Count,
        Meta(description="Engines that may answer 'busy' to it before its client is told."),
    ] = _RETRIES.busy_attempts_max
    recalls_max: Annotated[
        int,
        Meta(
            ge=0,
            le=10,
            description="Times that a request may be taken back from an engine before its first "
            "byte, to wait or run elsewhere; 0 leaves everything where it was sent.",
        ),
    ] = _RETRIES.recalls_max
    preemption: Annotated[
        Literal["off", "queued", "streaming"],
        Meta(
            description="Who gives way to a request that is more urgent by 10 or more and would "
            "miss its time: queued, whoever has no first byte yet and then waits again; "
            "streaming, answers under way as well, which break off; off, nobody."
        ),
    ] = "queued"
    budget_ratio: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="Second attempts as a share of first ones: a cluster in trouble gets at "
            "most so much more load.",
        ),
    ] = _RETRIES.budget_ratio
    budget_min: Annotated[
        int,
        Meta(
            ge=0,
            le=10_000,
            description="Second attempts in the budget at the start; ten times as many at most.",
        ),
    ] = _RETRIES.budget_min


class RetryGuard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What becomes of clients that retry without waiting, while no engine has room."""

    enabled: Annotated[
        bool,
        Meta(
            description="Refuse first what comes back before its Retry-After. Without, repeats are "
            "only counted, and a retry storm lasts as long as its clients like."
        ),
    ] = _GUARD.enabled
    memory_s: Annotated[
        Seconds,
        Meta(
            description="Seconds that a refusal is remembered, and with it what comes again. "
            "Shorter than clients wait sees fewer repeats."
        ),
    ] = _GUARD.memory_s
    penalty_s_max: Annotated[
        float,
        Meta(
            gt=0,
            le=RETRY_AFTER_MAX_S,
            description="The longest Retry-After, in seconds, that a client's haste leads to. "
            "Longer keeps a storm away for longer, and those that learned from it.",
        ),
    ] = _GUARD.penalty_s_max
    strike_half_life_s: Annotated[
        Seconds, Meta(description="Seconds after which half of its haste is forgotten.")
    ] = _GUARD.strike_half_life_s
    room_s: Annotated[
        float,
        Meta(
            ge=0,
            le=60,
            description="Seconds for which some engine must have had room before who hurries gets "
            "it. With 0 the gaps between others go to those who try most often; longer leaves "
            "engines idle when only they are left.",
        ),
    ] = _GUARD.room_s
    room_within_s: Annotated[
        Seconds,
        Meta(
            description="Seconds of prompts waiting on an engine with which it still has room. "
            "Engines whose single prompt takes longer need more, or they never have room."
        ),
    ] = _GUARD.room_within_s
    hasty_share: Annotated[
        float,
        Meta(
            gt=0,
            le=1,
            description="Of a key's requests that were turned away, how many must have come back "
            "too early before its other requests are refused, too. Less is strict with keys that "
            "many share.",
        ),
    ] = _GUARD.hasty_share
    growth: Annotated[
        float,
        Meta(
            ge=1,
            le=1_000,
            description="Times the traffic that a key had before, that it may send while it is "
            "told to wait; it is for repeats that differ a little each time.",
        ),
    ] = _GUARD.growth
