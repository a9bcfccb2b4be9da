"""What an engine says of itself: kind, version, models, capacity, event sources.

Only /v1/models must answer. Everything else is asked because some engine has it, and its
absence is a fact like any other: features are detected, never assumed from a name.
"""

import msgspec

from pointsman.core.events import NodeFacts
from pointsman.core.limits import BLOCK_TOKENS_MAX, CONCURRENCY_MAX, KV_BLOCKS_MAX
from pointsman.decoding import decoded_or_none
from pointsman.engines.adapters.event_sources import EventSource, read_event_sources
from pointsman.engines.adapters.model_list import ModelList, read_model_list
from pointsman.engines.adapters.props import Props, read_props
from pointsman.engines.adapters.reply import EngineTrouble, Get
from pointsman.wire.engine_metrics import EngineKind, EngineSignals, ranks_on, read_metrics

VERSION_CHARS_MAX = 100


class NotReady(Exception):  # noqa: N818 - named by whose state it is
    """It answers, but not as an engine that can serve. The text says how."""


class Description(msgspec.Struct, frozen=True):
    """Everything learned at once. `page` is its metrics page at that time, on which the server
    tells of `ranks`."""

    facts: NodeFacts
    sources: tuple[EventSource, ...]
    page: EngineSignals
    ranks: tuple[int, ...] = ()


async def describe(get: Get, host: str, rank: int | None = None) -> Description:
    """Ask everything. Raises NotReady or EngineTrouble when the engine cannot serve."""
    models = await _models(get)
    metrics = await _body(get, "/metrics")
    page = read_metrics(metrics, rank)
    kind = _kind(page, models)
    if rank is not None and (kind is not EngineKind.VLLM or page.running is None):
        raise NotReady(f"GET /metrics tells of no data-parallel rank {rank}")
    props = read_props(await _body(get, "/props")) if kind not in _WITHOUT_PROPS else None
    if props is not None:
        kind = EngineKind.LLAMACPP
    facts = NodeFacts(
        kind=kind,
        version=await _version(get, kind, props),
        models=models.cards,
        block_tokens=_believed(page.block_size, 1, BLOCK_TOKENS_MAX),
        kv_blocks=_believed(page.kv_blocks_total, 0, KV_BLOCKS_MAX),
    )
    if props is not None:
        facts = _with_slots(facts, props)
    has_events = kind in _WITH_EVENTS
    published = await _body(get, "/kv_event_sources") if has_events else b""
    sources = read_event_sources(published, host, rank)
    return Description(facts, sources, page, ranks_on(metrics))


async def refresh(get: Get, known: Description) -> Description:
    """Ask again what its metrics do not tell: its models, and llama.cpp's slots. Raises as
    `describe` does."""
    facts = msgspec.structs.replace(known.facts, models=(await _models(get)).cards)
    if facts.kind == EngineKind.LLAMACPP:
        props = read_props(await _body(get, "/props"))
        if props is None:
            return known
        facts = _with_slots(facts, props)
    return msgspec.structs.replace(known, facts=facts)


_WITH_EVENTS = frozenset({EngineKind.VLLM, EngineKind.SGLANG})
_WITHOUT_PROPS = _WITH_EVENTS


async def _models(get: Get) -> ModelList:
    reply = await get("/v1/models")
    if reply.status in (401, 403):
        raise NotReady(
            f"GET /v1/models answers {reply.status}: give its API key (engines[].api_key)"
        )
    if reply.status == 503:
        raise NotReady("GET /v1/models answers 503: it is still loading its model")
    if reply.status != 200:
        raise NotReady(f"GET /v1/models answers {reply.status}: is this an inference engine?")
    models = read_model_list(reply.body)
    if models is None:
        raise NotReady("GET /v1/models is no list of models: is this an inference engine?")
    if not models.cards:
        raise NotReady("GET /v1/models lists no model")
    return models


async def _body(get: Get, path: str) -> bytes:
    """The body of a good answer, else nothing."""
    try:
        reply = await get(path)
    except EngineTrouble:
        return b""
    return reply.body if reply.status == 200 else b""


def _kind(page: EngineSignals, models: ModelList) -> EngineKind:
    if page.kind is not EngineKind.UNKNOWN:
        return page.kind
    return next((kind for kind in EngineKind if kind == models.owner), EngineKind.UNKNOWN)


def _believed(told: int | None, least: int, most: int) -> int | None:
    """A number that can be. Any other is as good as none: no block of 0 tokens can be cut."""
    return told if told is not None and least <= told <= most else None


class _Version(msgspec.Struct, frozen=True):
    version: str = ""


async def _version(get: Get, kind: EngineKind, props: Props | None) -> str:
    if props is not None:
        return props.build_info[:VERSION_CHARS_MAX]
    if kind is not EngineKind.VLLM:
        return ""
    told = decoded_or_none(msgspec.json.Decoder(_Version).decode, await _body(get, "/version"))
    return told.version[:VERSION_CHARS_MAX] if told else ""


def _with_slots(facts: NodeFacts, props: Props) -> NodeFacts:
    """llama.cpp divides its context among slots; a request gets one slot's share."""
    models, tokens = facts.models, props.context_tokens
    if tokens is not None:
        models = tuple(msgspec.structs.replace(card, context_tokens_max=tokens) for card in models)
    running_max = _believed(props.total_slots, 1, CONCURRENCY_MAX)
    return msgspec.structs.replace(facts, models=models, running_max=running_max)
