"""What an engine's KV events tell of the index that they feed."""

from collections.abc import Iterator

from pointsman.collectors.describer import NAMES_ITS_MODELS
from pointsman.control.doctor.finding import Check, Finding, Severity
from pointsman.control.doctor.seen import EngineSeen, EventsSeen

_FLAG = (
    '--kv-events-config \'{"enable_kv_cache_events": true, "publisher": "zmq", '
    '"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558"}\''
)


def event_findings(engine: EngineSeen) -> Iterator[Finding]:
    """What the KV events of one engine tell; it must have been described."""
    if engine.described is None:
        return
    name, facts = engine.target.name, engine.described.facts
    if engine.target.kv_events == "off":
        text = "its KV events are switched off here (kv_events: off): hits are guessed"
        yield Finding(Severity.NOTE, Check.KV_EVENTS, name, text, "kv_events: auto asks the engine")
        return
    if not engine.events:
        if facts.kind in NAMES_ITS_MODELS and engine.target.kv_events == "auto":
            text = "it publishes no KV events: the index lives on what went through the gateway"
            yield Finding(Severity.NOTE, Check.KV_EVENTS, name, text, f"vLLM: {_FLAG}")
        return
    if len(engine.events) > 1:
        yield Finding(
            Severity.WARNING,
            Check.KV_EVENTS,
            name,
            f"{len(engine.events)} data-parallel ranks publish KV events behind one address: "
            "which rank a request meets is not known, so own history is used",
            f"ranks: auto makes each a node, where a request may name each; or give each as an "
            f"engine of its own: {engine.target.url}#0 and so on",
        )
    for seen in engine.events:
        yield from _publisher(name, seen, facts.block_tokens, silent=_is_silent(engine))


def _is_silent(engine: EngineSeen) -> bool:
    """A probe was answered, and no rank told of its blocks; one of several has it."""
    probed = engine.probe is not None and bool(engine.probe.usages)
    return probed and not any(seen.stored for seen in engine.events)


def _publisher(
    name: str, seen: EventsSeen, block_tokens: int | None, *, silent: bool
) -> Iterator[Finding]:
    endpoint = seen.source.endpoint
    if seen.trouble:
        remedy = "give an endpoint like tcp://10.0.0.7:5557"
        yield Finding(Severity.PROBLEM, Check.KV_EVENTS, name, seen.trouble, remedy)
        return
    yield from _silence(name, seen, silent=silent)
    if seen.malformed:
        text = f"{seen.malformed} messages at {endpoint} are no KV events"
        remedy = "is that its port of KV events? Another engine's version may encode them anew"
        yield Finding(Severity.PROBLEM, Check.KV_EVENTS, name, text, remedy)
    wrong = [size for size in seen.block_sizes if block_tokens not in (None, size)]
    if wrong:
        text = f"its events have blocks of {wrong[0]} tokens, its metrics say {block_tokens}"
        remedy = "is the endpoint another engine's? Every hit would be missed"
        yield Finding(Severity.PROBLEM, Check.KV_EVENTS, name, text, remedy)
    yield from _replay(name, seen)


def _silence(name: str, seen: EventsSeen, *, silent: bool) -> Iterator[Finding]:
    endpoint = seen.source.endpoint
    if seen.foreign and not seen.stored:
        own = seen.source.topic or "kv@…@MODEL"
        yield Finding(
            Severity.PROBLEM,
            Check.KV_EVENTS,
            name,
            f"events at {endpoint} come under '{seen.foreign[0]}', not {own}: they are ignored",
            "set topic in its --kv-events-config to what /kv_event_sources says, or name its "
            "own endpoint (kv_events)",
        )
    elif silent:
        yield Finding(
            Severity.PROBLEM,
            Check.KV_EVENTS,
            name,
            f"a probe stored blocks, and nothing of it came from {endpoint}",
            "open that port to this machine; an endpoint on 127.0.0.1 needs tcp://*:PORT there, "
            "or kv_events: tcp://HOST:PORT here",
        )


def _replay(name: str, seen: EventsSeen) -> Iterator[Finding]:
    if seen.source.replay_endpoint is None:
        yield Finding(
            Severity.WARNING,
            Check.KV_EVENTS,
            name,
            "its events cannot be replayed: what it held before the gateway came, and what one "
            "lost message told, stay unknown",
            f"add a replay_endpoint: {_FLAG}",
        )
    elif seen.replayed_from is None:
        yield Finding(
            Severity.PROBLEM,
            Check.KV_EVENTS,
            name,
            f"no replay comes from {seen.source.replay_endpoint}",
            "open that port to this machine, too",
        )
    elif seen.replayed_from > 0:
        yield Finding(
            Severity.NOTE,
            Check.KV_EVENTS,
            name,
            f"its replay begins at message {seen.replayed_from}: a gateway that starts now "
            "begins with a part of its cache",
            "raise buffer_steps in its --kv-events-config, or let history fill the rest",
        )
