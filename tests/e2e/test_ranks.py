"""Data-parallel ranks behind one port: each is a node, with a cache and an index of its own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random

import pytest

from pointsman.cli.config import Engine
from pointsman.control.listed import Ranks
from tests.support.cluster import Cluster, cluster_config, new_session, running_process
from tests.support.engines import running_engine

RANKS = 3


@asynccontextmanager
async def ranks_in_service(
    *fragments: str, ready: bool = True, ranks: Ranks = "off"
) -> AsyncIterator[Cluster]:
    """A gateway before one server of RANKS ranks, with an engine for each fragment of its URL."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(
            running_engine(kv_events_port=0, data_parallel_size=RANKS)
        )
        entries = [Engine(url=server.url + fragment, ranks=ranks) for fragment in fragments]
        process = await stack.enter_async_context(running_process(cluster_config(entries)))
        session = await stack.enter_async_context(new_session())
        cluster = Cluster(process, [server] * len(fragments), session)
        if ready:
            await cluster.until_ready()
        yield cluster
        await cluster.at_rest()


def every_rank() -> list[str]:
    return [f"#{rank}" for rank in range(RANKS)]


async def ask(cluster: Cluster, prompt: list[int]) -> tuple[int, int, str]:
    """Cached tokens foretold and reported, and the node."""
    answer = await cluster.complete(prompt)
    await asyncio.sleep(0.02)  # the way of its events, from socket to socket
    decisions = (await cluster.admin_json("GET", f"/decisions/{answer.id}"))["decisions"]
    return int(decisions[-1]["hit_tokens"]), answer.cached_tokens, answer.node


@pytest.mark.parametrize("fragments", [every_rank(), [""]], ids=["listed", "found"])
async def test_each_ranks_cache_is_known_exactly(fragments: list[str]) -> None:
    rng = Random(3)
    families = [[rng.randrange(1, 100_000) for _ in range(600)] for _ in range(9)]
    async with ranks_in_service(*fragments, ready=False, ranks="auto") as cluster:
        await cluster.process.fleet.until_described()
        await cluster.until_ready()
        nodes = (await cluster.state())["nodes"]
        assert [node["index_trust"] for node in nodes] == ["exact"] * RANKS
        asked = [rng.choice(families)[: rng.choice((100, 333, 600))] for _ in range(90)]
        told = [await ask(cluster, prompt) for prompt in asked]
        held = [len(rank.driver.model.pool.cached) for rank in cluster.engines[0].engine.ranks]
        known = [node["index_blocks"] for node in (await cluster.state())["nodes"]]
    assert all(foretold == reported for foretold, reported, _ in told), told
    assert sum(reported for _, reported, _ in told) > 10_000, "the workload must hit"
    assert known == held
    assert all(held), "every rank must have had something to do"


async def test_a_conversation_stays_with_the_rank_that_holds_it() -> None:
    prompt = list(range(1, 200))
    async with ranks_in_service(*every_rank()) as cluster:
        turns = [await ask(cluster, prompt * count) for count in range(1, 7)]
    assert len({node for _, _, node in turns}) == 1, turns
    assert all(reported > 0 for _, reported, _ in turns[1:])


async def test_what_a_client_says_of_ranks_holds_only_where_they_are_not_told_apart() -> None:
    body, header = {"model": "sim", "prompt": "hello"}, {"X-Data-Parallel-Rank": "7"}
    async with ranks_in_service(*every_rank()) as cluster:
        assert (await cluster.post("/v1/completions", body, header)).status == 200
    async with ranks_in_service("", ready=False) as cluster:
        await cluster.process.fleet.until_described()
        assert (await cluster.post("/v1/completions", body, header)).status == 400


async def test_one_index_for_several_ranks_is_not_believed_to_be_exact() -> None:
    async with ranks_in_service("", ready=False) as cluster:
        await cluster.process.fleet.until_described()
        (node,) = (await cluster.state())["nodes"]
    assert node["index_trust"] == "history"
    assert f"{RANKS} data-parallel ranks" in node["events"]


async def test_a_rank_that_does_not_exist_gets_nothing() -> None:
    async with ranks_in_service("#0", f"#{RANKS}", ready=False) as cluster:
        await cluster.until_shown(lambda s: "no data-parallel rank" in s["nodes"][1]["problem"])
        answers = [await cluster.complete("hello") for _ in range(6)]
    assert {answer.node for answer in answers} == {"engine-1"}


async def test_a_server_that_restarts_is_cold_on_every_rank() -> None:
    async with ranks_in_service(*every_rank()) as cluster:
        (server, *_) = cluster.engines
        for number in range(2 * RANKS):
            await ask(cluster, [number + 1] * 100)
        await cluster.simulate(server, restart=True)
        server.engine.started_s += 60  # no real engine is back within the second
        await cluster.complete([99] * 100)
        await cluster.until_shown(lambda s: all(node["restarts"] for node in s["nodes"]))
        await cluster.until_ready()
        for number in range(2 * RANKS):
            foretold, reported, _ = await ask(cluster, [number + 1] * 100)
            assert foretold == reported


async def test_a_rank_that_vanishes_under_load_costs_no_request() -> None:
    """Until it is noticed the server refuses what names that rank, which is no client's fault."""
    async with ranks_in_service("", ready=False, ranks="auto") as cluster:
        await cluster.process.fleet.until_described()
        await cluster.until_ready()
        asking = asyncio.Event()

        async def work(number: int) -> list[str]:
            nodes = []
            while not asking.is_set():
                nodes.append((await cluster.complete([number + 1] * 100, max_tokens=20)).node)
            return nodes

        async with asyncio.TaskGroup() as group:
            clients = [group.create_task(work(number)) for number in range(12)]
            await asyncio.sleep(0.3)
            cluster.engines[0].engine.ranks.pop()
            await cluster.until_shown(lambda state: len(state["nodes"]) == RANKS - 1)
            await asyncio.sleep(0.3)
            asking.set()
        served = {node for client in clients for node in client.result()}
        assert served == {f"engine-1-rank-{rank}" for rank in range(RANKS)}
        assert {client.result()[-1] for client in clients} <= {
            f"engine-1-rank-{rank}" for rank in range(RANKS - 1)
        }
