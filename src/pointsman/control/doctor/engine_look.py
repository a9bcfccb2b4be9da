"""One engine looked at from every side. Nothing here judges."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from urllib.parse import urlsplit

import aiohttp
import msgspec

from pointsman.collectors.client import EngineClient
from pointsman.collectors.event_socket import EventSockets
from pointsman.collectors.link import wait_for
from pointsman.collectors.ranks import RANKS_MIN, ranks_apart
from pointsman.control.doctor import connection, listening, probes, tokens
from pointsman.control.doctor.engine_findings import is_buffered
from pointsman.control.doctor.listening import Listener
from pointsman.control.doctor.seen import (
    EngineSeen,
    EventsSeen,
    LinkSeen,
    ProbeSeen,
    StreamSeen,
    Target,
    TokensSeen,
)
from pointsman.control.listed import ListedEngine
from pointsman.core.events import NodeSpec
from pointsman.core.ids import NodeName
from pointsman.engines.adapters import Description, EngineTrouble, EventSource, NotReady, describe
from pointsman.engines.adapters.event_sources import source_at
from pointsman.engines.tokenizer import ModelTokenizer
from pointsman.wire.engine_metrics import EngineKind, ranks_on, read_metrics

ANSWER_S_MAX = 5.0

START_LOOKS = 4
"""Metrics pages over fresh connections: two engines taking turns show with 7 of 8."""

RANKS_MAX = 16
"""Publishers listened to at one engine."""

STREAMS_MAX = 4
"""A proxy that buffers holds back each of them; a machine whose cores are taken, seldom three."""


class EngineLooker:
    """Examines engines, one call each; several at once. Owns nothing that it is given.

    `fresh` makes a connection for each request. Without `probing` no prompt is computed.
    """

    def __init__(
        self,
        *,
        session: aiohttp.ClientSession,
        fresh: aiohttp.ClientSession,
        sockets: EventSockets,
        tokenizers: Mapping[str, ModelTokenizer | None],
        probing: bool,
    ) -> None:
        self._session = session
        self._fresh = fresh
        self._sockets = sockets
        self._tokenizers = tokenizers
        self._probing = probing

    async def look_at_nodes(self, target: Target) -> Sequence[EngineSeen]:
        """Everything about the nodes that the gateway makes of an engine."""
        nodes = await self._nodes_of(target)
        async with asyncio.TaskGroup() as tasks:
            looks = [tasks.create_task(self.look_at(node)) for node in nodes]
        return [look.result() for look in looks]

    async def _nodes_of(self, target: Target) -> tuple[Target, ...]:
        """One, or one for each data-parallel rank."""
        spec = NodeSpec(name=NodeName(target.name), url=target.url)
        listed = ListedEngine(spec, target.kv_events, target.ranks)
        if listed.may_be_divided:
            listed.divided_into = await self._ranks_apart(target)
        return tuple(
            msgspec.structs.replace(target, name=node.name, url=node.url) for node in listed.nodes
        )

    async def _ranks_apart(self, target: Target) -> int:
        """The one prompt that is sent without `probing`, too: vLLM refuses it."""
        client = EngineClient(self._session, target.url)
        try:
            page = await client.get("/metrics", timeout_s=ANSWER_S_MAX)
            if len(ranks_on(page.body)) < RANKS_MIN:
                return 0
            return await ranks_apart(client, await _description(client, target))
        except (EngineTrouble, NotReady):
            return 0  # what troubles it is found when it is looked at

    async def look_at(self, target: Target) -> EngineSeen:
        """Everything about one engine. Never raises for what is the engine's fault."""
        client = EngineClient(self._session, target.url)
        try:
            described = await _description(client, target)
        except (EngineTrouble, NotReady) as error:
            return EngineSeen(target=target, trouble=str(error))
        async with asyncio.TaskGroup() as tasks:
            linked = tasks.create_task(_linked(target))
            started = tasks.create_task(_started(EngineClient(self._fresh, target.url)))
            asked = tasks.create_task(self._asked(client, target, described))
        link, trouble = linked.result()
        return msgspec.structs.replace(
            asked.result(), trouble=trouble, link=link, started_s=started.result()
        )

    async def _asked(
        self, client: EngineClient, target: Target, described: Description
    ) -> EngineSeen:
        """What takes prompts, one after the other: each would be in the next one's way."""
        probe, events = await self._probe(client, target, described)
        answered = probe is not None and bool(probe.usages)
        return EngineSeen(
            target=target,
            described=described,
            probe=probe,
            events=events,
            streams=await streamed(client, probe) if probe is not None and answered else (),
            tokens=await self._compared(client, described) if self._probing else (),
        )

    async def _compared(
        self, client: EngineClient, described: Description
    ) -> tuple[TokensSeen, ...]:
        """Of the models that have a tokenizer; llama.cpp publishes no events to find by ids."""
        seen: tuple[TokensSeen, ...] = ()
        for card in described.facts.models:
            if card.name in self._tokenizers:
                tokenizer = self._tokenizers[card.name]
                if tokenizer is None or described.facts.kind != EngineKind.LLAMACPP:
                    seen += await tokens.compare(client, card.name, tokenizer)
        return seen

    async def _probe(
        self, client: EngineClient, target: Target, described: Description
    ) -> tuple[ProbeSeen | None, tuple[EventsSeen, ...]]:
        """The probe, with all publishers of KV events listened to."""
        sources = _sources(target, described)[:RANKS_MAX]
        served = described.facts.models
        heard = asyncio.Event()
        with ExitStack() as stack:
            listeners = []
            for source in sources:
                listener = Listener(self._sockets, source, served=served, heard=heard)
                stack.callback(listener.close)
                listeners.append(listener)
            async with asyncio.TaskGroup() as tasks:
                replays = [
                    tasks.create_task(listening.first_replayed(self._sockets, source))
                    for source in sources
                ]
            probe = None
            if self._probing:
                if not sources:
                    heard.set()  # there is nothing to wait for
                probe = await _probe_until(heard, client, target, described)
            events = (
                each.seen(replay.result()) for each, replay in zip(listeners, replays, strict=True)
            )
            return probe, tuple(events)


async def _description(client: EngineClient, target: Target) -> Description:
    """Raises EngineTrouble and NotReady."""
    get = partial(client.get, timeout_s=ANSWER_S_MAX)
    return await describe(get, urlsplit(target.url).hostname or "", client.rank)


async def _linked(target: Target) -> tuple[LinkSeen | None, str]:
    try:
        return await connection.watch(target.url, pool_idle_s=target.pool_idle_s), ""
    except EngineTrouble as trouble:
        return None, str(trouble)


async def _started(client: EngineClient) -> tuple[float, ...]:
    found: list[float] = []
    for _ in range(START_LOOKS):
        try:
            page = read_metrics((await client.get("/metrics", timeout_s=ANSWER_S_MAX)).body)
        except EngineTrouble:
            break
        if page.process_start_time_s is None:
            break
        found.append(page.process_start_time_s)
    return tuple(found)


async def _probe_until(
    heard: asyncio.Event, client: EngineClient, target: Target, described: Description
) -> ProbeSeen:
    """A second prompt if the first one's events did not come: the way there takes time.

    Of several ranks one has the prompt, so it is enough that one of them is heard.
    """
    if not heard.is_set():
        await asyncio.sleep(listening.CONNECT_S)
    model, context_tokens = _model_of(target, described)
    for _ in range(2):
        prompt = probes.new_prompt(described.facts.block_tokens, context_tokens)
        probe = await probes.repeat(client, model=model, prompt=prompt)
        if not probe.usages or await wait_for(heard, listening.WAIT_S_MAX):
            break
    return probe


async def streamed(client: EngineClient, probe: ProbeSeen) -> tuple[StreamSeen, ...]:
    """One stream; others while they seem to have been held back, as a busy machine may do."""
    seen: tuple[StreamSeen, ...] = ()
    for _ in range(STREAMS_MAX):
        stream = await probes.stream(client, model=probe.model, prompt=probe.prompt)
        seen += (stream,)
        if not is_buffered(stream, probe.seconds_min):
            break
    return seen


def _model_of(target: Target, described: Description) -> tuple[str, int | None]:
    """The model to probe, and its context: one it is configured for, else no adapter."""
    cards = described.facts.models
    chosen = next((card for card in cards if card.name in target.models), None) or next(
        (card for card in cards if card.parent is None), cards[0]
    )
    return chosen.name, chosen.context_tokens_max


def _sources(target: Target, described: Description) -> tuple[EventSource, ...]:
    """Where its events are, as the collectors choose."""
    match target.kv_events:
        case "off":
            return ()
        case "auto":
            return described.sources
        case endpoint:
            return (source_at(endpoint, described.sources),)
