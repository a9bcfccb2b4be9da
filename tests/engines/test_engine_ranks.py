"""A simulated engine of several data-parallel ranks, as vLLM's are behind one port."""

import aiohttp

from pointsman.engines.simulated import RunningEngine
from pointsman.wire.engine_metrics import read_metrics
from tests.support.engines import running_engine

PROMPT = list(range(1, 101))


async def ask(engine: RunningEngine, rank: str | None = None) -> tuple[int, int]:
    """Status and cached tokens."""
    headers = {} if rank is None else {"X-data-parallel-rank": rank}
    async with (
        aiohttp.ClientSession(engine.url, headers=headers) as http,
        http.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 2}) as reply,
    ):
        usage = (await reply.json()).get("usage") or {"prompt_tokens_details": {}}
        return reply.status, usage["prompt_tokens_details"].get("cached_tokens", 0)


async def get(engine: RunningEngine, path: str) -> bytes:
    async with aiohttp.ClientSession(engine.url) as http, http.get(path) as reply:
        return await reply.read()


async def test_a_request_goes_to_the_rank_that_it_names() -> None:
    async with running_engine(data_parallel_size=2) as engine:
        assert [await ask(engine, rank) for rank in ("1", "0", "1", "0")] == [
            *((200, 0), (200, 0)),
            *((200, 96), (200, 96)),
        ]
        counts = [rank.stats.prompt_tokens for rank in engine.engine.ranks]
    assert counts == [200, 200]


async def test_a_rank_beyond_the_last_is_refused_and_nonsense_is_ignored() -> None:
    async with running_engine(data_parallel_size=2) as engine:
        assert (await ask(engine, "2"))[0] == 400
        assert (await ask(engine, "first"))[0] == 200


async def test_each_rank_has_its_own_series_and_its_own_events() -> None:
    async with running_engine(data_parallel_size=2, kv_events_port=0, kv_blocks=50) as engine:
        await ask(engine, "1")
        page = await get(engine, "/metrics")
        sources = await get(engine, "/kv_event_sources")
        sequences = [rank.publisher.sequence for rank in engine.engine.ranks if rank.publisher]
        ports = {rank.publisher.port for rank in engine.engine.ranks if rank.publisher}
    found = [read_metrics(page, rank) for rank in (0, 1, 2, None)]
    assert [signals.prompt_tokens_total for signals in found] == [0, 100, None, 100]
    assert [signals.kv_blocks_total for signals in found] == [50, 50, None, 100]
    assert page.count(b"# TYPE vllm:num_requests_running gauge") == 1
    assert sequences[0] == 0 < sequences[1]
    assert len(ports) == 2
    assert all(str(port).encode() in sources for port in ports)
