"""Engines beside each other: what must be equal, and what must not."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from pointsman.control.doctor.finding import Check, Finding, Severity
from pointsman.control.doctor.seen import EngineSeen
from pointsman.core.events import NodeFacts

CAPACITY_SPREAD_MAX = 0.1
"""Equal GPUs profile slightly different numbers of KV blocks."""

START_S_MAX = 0.011
"""Process start times are whole hundredths of a second."""

T = TypeVar("T")


def fleet_findings(
    engines: Sequence[EngineSeen], same: Sequence[tuple[int, int]], wanted: Sequence[str]
) -> Iterator[Finding]:
    """`same` are pairs of `engines` that turned out to be one; `wanted` models are expected."""
    for first, second in same:
        one, other = engines[first].target, engines[second].target
        yield Finding(
            Severity.PROBLEM,
            Check.IDENTITY,
            other.name,
            f"it is {one.name}: {one.url} and {other.url} are one engine",
            "remove one; its load is counted half and its cache twice",
        )
    one_of = {second for _, second in same}
    distinct = [engine for index, engine in enumerate(engines) if index not in one_of]
    yield from _event_endpoints(distinct)
    by_model = _by_model(distinct)
    for model, several in by_model.items():
        yield from _unequal(model, several)
    yield from _missing(wanted, engines)


def suspects(engines: Sequence[EngineSeen]) -> list[tuple[int, int]]:
    """Pairs that may be one engine: started at one moment, or answering at one address."""
    return [
        (first, second)
        for second in range(len(engines))
        for first in range(second)
        if _may_be_one(engines[first], engines[second])
    ]


def _may_be_one(one: EngineSeen, other: EngineSeen) -> bool:
    if one.started_s and other.started_s:
        return abs(one.started_s[0] - other.started_s[0]) <= START_S_MAX
    return same_peer(one, other)


def same_peer(one: EngineSeen, other: EngineSeen) -> bool:
    """Whether both addresses lead to one socket."""
    return one.link is not None and other.link is not None and one.link.peer == other.link.peer


def _event_endpoints(engines: Sequence[EngineSeen]) -> Iterator[Finding]:
    owners: dict[str, str] = {}
    for engine in engines:
        name = engine.target.name
        for events in engine.events:
            first = owners.setdefault(events.source.endpoint, name)
            if first != name:
                yield Finding(
                    Severity.PROBLEM,
                    Check.KV_EVENTS,
                    name,
                    f"its KV events come from {events.source.endpoint}, as those of {first}",
                    "give each engine a port of its own in --kv-events-config",
                )


def _by_model(engines: Sequence[EngineSeen]) -> Mapping[str, Sequence[EngineSeen]]:
    """The engines that serve each model, adapters left out; a single one has no equal."""
    found: dict[str, list[EngineSeen]] = {}
    for engine in engines:
        if engine.described is not None:
            for card in engine.described.facts.models:
                if card.parent is None:
                    found.setdefault(card.name, []).append(engine)
    return {model: several for model, several in found.items() if len(several) > 1}


def _unequal(model: str, engines: Sequence[EngineSeen]) -> Iterator[Finding]:
    blocks = _values(engines, lambda facts: facts.block_tokens)
    if len(blocks) > 1:
        text = f"its engines have blocks of different sizes: {_told(blocks)}"
        remedy = "give them one --block-size; a prefix is worth less where blocks are larger"
        yield Finding(Severity.WARNING, Check.KV_CACHE, model, text, remedy)
    contexts = _values(engines, lambda facts: _context(facts, model))
    if len(contexts) > 1:
        text = f"its engines take prompts of different lengths: {_told(contexts)}"
        remedy = "give them one --max-model-len, or pools of their own: long prompts get 400 there"
        yield Finding(Severity.WARNING, Check.MODELS, model, text, remedy)
    capacities = _values(engines, _capacity)
    if capacities and min(capacities) < (1 - CAPACITY_SPREAD_MAX) * max(capacities):
        text = f"its engines hold different numbers of tokens in KV blocks: {_told(capacities)}"
        remedy = "right for different GPUs; else compare --gpu-memory-utilization"
        yield Finding(Severity.NOTE, Check.KV_CACHE, model, text, remedy)
    versions = _values(engines, lambda facts: f"{facts.kind} {facts.version}".strip())
    kinds = _values(engines, lambda facts: facts.kind)
    if len(versions) > 1 and len(kinds) == 1:
        text = f"its engines run different versions: {_told(versions)}"
        remedy = "finish the update; events, hashes and metrics have changed between versions"
        yield Finding(Severity.NOTE, Check.MODELS, model, text, remedy)


def _values(
    engines: Sequence[EngineSeen], value: Callable[[NodeFacts], T | None]
) -> Mapping[T, list[str]]:
    """Each value that is known, with the names of its engines."""
    found: dict[T, list[str]] = {}
    for engine in engines:
        if engine.described is not None:
            known = value(engine.described.facts)
            if known is not None:
                found.setdefault(known, []).append(engine.target.name)
    return found


NAMES_TOLD_MAX = 3


def _told(values: Mapping[T, list[str]]) -> str:
    parts = []
    for value, names in values.items():
        more = f" and {len(names) - NAMES_TOLD_MAX} more" if len(names) > NAMES_TOLD_MAX else ""
        parts.append(f"{value} ({', '.join(names[:NAMES_TOLD_MAX])}{more})")
    return ", ".join(parts)


def _context(facts: NodeFacts, model: str) -> int | None:
    return next((c.context_tokens_max for c in facts.models if c.name == model), None)


def _capacity(facts: NodeFacts) -> int | None:
    if facts.kv_blocks is None or facts.block_tokens is None:
        return None
    return facts.kv_blocks * facts.block_tokens


def _missing(wanted: Sequence[str], engines: Sequence[EngineSeen]) -> Iterator[Finding]:
    served = {
        card.name: None
        for engine in engines
        if engine.described is not None
        for card in engine.described.facts.models
    }
    for model in wanted:
        if model not in served:
            there = ", ".join(served) or "none"
            text = f"no engine serves it; there are: {there}"
            remedy = "correct the name, or start an engine with it"
            yield Finding(Severity.PROBLEM, Check.MODELS, model, text, remedy)
