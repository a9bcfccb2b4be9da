"""Gateway, agents and simulated engines: the whole way, over real sockets."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import msgspec
import pytest

from pointsman.agent import FrontOptions
from pointsman.cli.config import Admin, Agents, Config, Engine, Limits, Listen, Log
from pointsman.control.agents import listener
from pointsman.core.events import IndexTrust
from pointsman.core.health import Health
from pointsman.core.views import NodeView
from pointsman.engines.simulated import RunningEngine
from tests.support.agents import LossyWire, agent_options, running_agent
from tests.support.cluster import Answer, Cluster, new_session, running_process
from tests.support.engines import running_engine
from tests.support.waiting import eventually

PROMPT = list(range(1, 200))

CONFIG = Config(
    listen=Listen(port=0, reply_headers=True),
    admin=Admin(port=0),
    limits=Limits(connections_max=1_000),
    log=Log(level="warning", access="none"),
    agents=Agents(listen="127.0.0.1:0"),
)


@asynccontextmanager
async def gateway(*engines: Engine, config: Config = CONFIG) -> AsyncIterator[Cluster]:
    config = msgspec.structs.replace(config, engines=engines)
    async with running_process(config) as process, new_session() as session:
        cluster = Cluster(process, [], session)
        yield cluster
        await cluster.at_rest()


def node(cluster: Cluster) -> NodeView:
    (view,) = cluster.scheduler.nodes(cluster.process.service.now_s())
    return view


@asynccontextmanager
async def attended() -> AsyncIterator[tuple[RunningEngine, Cluster]]:
    """An engine that the gateway knows by an agent alone."""
    async with (
        running_engine(kv_events_port=0) as engine,
        gateway() as cluster,
        running_agent(agent_options(cluster.process.agents_port, [engine.url])),
    ):
        await eventually(is_exact(cluster))
        yield engine, cluster


def blocks(engine: RunningEngine) -> int:
    """How many an engine holds."""
    return len(engine.engine.driver.model.pool.cached)


def is_exact(cluster: Cluster) -> Callable[[], bool]:
    return lambda: [n.index_trust for n in cluster.scheduler.nodes(0.0)] == [IndexTrust.EXACT]


async def test_an_agent_is_all_that_a_gateway_needs_to_know_its_engines() -> None:
    async with running_engine(kv_events_port=0) as engine, gateway() as cluster:
        options = agent_options(cluster.process.agents_port, [engine.url])
        async with running_agent(options):
            await eventually(is_exact(cluster))
            view = node(cluster)
            assert (view.name, view.health) == ("a-1", Health.READY)
            assert (view.facts.kind, view.facts.block_tokens) == ("vllm", 16)
            await eventually(lambda: node(cluster).signals.running == 0)
            answer = await cluster.complete(PROMPT)
            assert answer.node == "a-1"


async def test_an_agent_with_a_front_is_all_that_knows_its_engines_key() -> None:
    async with running_engine(api_key="engines-own") as engine, gateway() as cluster:
        options = agent_options(cluster.process.agents_port, [engine.url], FrontOptions())
        [entry] = options.engines
        keyed = msgspec.structs.replace(entry, api_key="engines-own", kv_events="off")
        async with running_agent(msgspec.structs.replace(options, engines=(keyed,))):
            await eventually(lambda: [n.health for n in cluster.scheduler.nodes(0.0)] == ["ready"])
            assert (await cluster.complete(PROMPT)).node == "a-1"
            assert "engines-own" not in str(await cluster.state())


async def test_hits_are_foretold_exactly() -> None:
    """The agent chains the engine's token ids itself; so what it tells is what prompts find."""
    async with attended() as (engine, cluster):
        prompt = list(PROMPT)
        for turn in range(6):
            answer = await cluster.complete(prompt, max_tokens=40)
            assert answer.cached_tokens == await predicted_tokens(cluster, answer)
            assert (answer.cached_tokens > 0) is (turn > 0)
            await eventually(lambda: node(cluster).index_blocks == blocks(engine))
            prompt = [*prompt, *range(500, 540)]


async def test_a_configured_engine_keeps_its_name_and_is_not_asked_twice() -> None:
    async with (
        running_engine(kv_events_port=0) as engine,
        gateway(Engine(url=engine.url, name="mine")) as cluster,
    ):
        await eventually(is_exact(cluster))
        await cluster.complete(PROMPT)
        await eventually(lambda: node(cluster).index_blocks == blocks(engine))
        before = node(cluster)
        agent = running_agent(agent_options(cluster.process.agents_port, [engine.url]))
        async with least_known(cluster) as fewest, agent:
            await eventually(
                lambda: cluster.process.fleet.status("mine").events == "told by agent a"  # type: ignore[arg-type, union-attr]  # it exists
            )
            await eventually(is_exact(cluster))
            assert (node(cluster).name, node(cluster).incarnation) == ("mine", before.incarnation)
            assert (await cluster.complete(PROMPT)).node == "mine"
            assert fewest == [before.index_blocks], "what was known stays known"


@asynccontextmanager
async def least_known(cluster: Cluster) -> AsyncIterator[list[int]]:
    """The fewest blocks that the index had of the only node: a look in every turn of the loop."""
    fewest = [node(cluster).index_blocks]

    async def look() -> None:
        while True:
            fewest[0] = min(fewest[0], *[view.index_blocks for view in views(cluster)])
            await asyncio.sleep(0)

    looking = asyncio.create_task(look())
    try:
        yield fewest
    finally:
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking


async def test_without_its_agent_the_gateway_looks_for_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener, "GRACE_S", 0.1)
    async with running_engine(kv_events_port=0) as engine, gateway() as cluster:
        async with running_agent(agent_options(cluster.process.agents_port, [engine.url])):
            await eventually(is_exact(cluster))
            await cluster.complete(PROMPT)
            node_id = node(cluster).incarnation
        await eventually(lambda: "subscribed" in cluster.process.fleet.status("a-1").events)  # type: ignore[arg-type, union-attr]  # it exists
        await eventually(is_exact(cluster))
        await eventually(lambda: node(cluster).index_blocks > 0)
        answer = await cluster.complete(PROMPT)
        assert answer.cached_tokens == await predicted_tokens(cluster, answer) == 192
        assert (node(cluster).incarnation, node(cluster).health) == (node_id, Health.READY)


async def test_a_restart_of_the_engine_is_a_new_incarnation() -> None:
    async with attended() as (engine, cluster):
        await cluster.complete(PROMPT)
        await eventually(lambda: (node(cluster).signals.prefix_queries or 0) > 0)
        before = node(cluster)
        await cluster.simulate(engine, restart=True)
        await eventually(lambda: node(cluster).incarnation != before.incarnation)
        await eventually(is_exact(cluster))
        assert (await cluster.complete(PROMPT)).cached_tokens == 0


async def test_an_index_that_lost_changes_is_healed_within_two_heartbeats() -> None:
    async with (
        running_engine(kv_events_port=0) as engine,
        gateway() as cluster,
        LossyWire(cluster.process.agents_port).running() as link,
        running_agent(agent_options(link.port, [engine.url])),
    ):
        await eventually(is_exact(cluster))
        await cluster.complete(PROMPT)
        await eventually(lambda: told_blocks(cluster) == blocks(engine))
        for number in range(1, 6):
            link.lose = True
            await cluster.complete(list(range(1_000 * number, 1_000 * number + 200)))
            lost = link.lost
            await eventually(lambda least=lost + 2: link.lost >= least)  # type: ignore[misc]  # mypy and defaults
            assert told_blocks(cluster) < blocks(engine)
            before = len(link.beats)
            link.lose = False
            await eventually(lambda: told_blocks(cluster) == blocks(engine))
            assert len(link.beats) - before <= 2
        await eventually(is_exact(cluster))
        assert node(cluster).index_blocks == blocks(engine)
        again = await cluster.complete(list(range(5_000, 5_200)))
        assert again.cached_tokens == await predicted_tokens(cluster, again) > 0


async def test_what_an_agent_hands_back_is_served_elsewhere() -> None:
    """The cache is on the one engine, but somebody else keeps it busy: the agent in front of it
    says so, and the gateway places the request again."""
    front = FrontOptions(running_max=1, waiting_max=0)
    async with (
        running_engine(kv_events_port=0) as first,
        running_engine(kv_events_port=0) as second,
        gateway() as cluster,
        running_agent(
            agent_options(cluster.process.agents_port, [first.url, second.url], front)
        ) as agent,
    ):
        await eventually(lambda: [n.index_trust for n in views(cluster)] == [IndexTrust.EXACT] * 2)
        holder = (await cluster.complete(PROMPT)).node
        assert (await cluster.complete(PROMPT)).node == holder
        busy = agent.reports[int(holder[-1]) - 1].front
        assert busy is not None
        engine = (first, second)[int(holder[-1]) - 1]
        await cluster.simulate(engine, hang=True)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(send_past_the_gateway(cluster, busy.port))
            await eventually(lambda: busy.queue.running == 1)
            answer = await cluster.complete(PROMPT)
            assert answer.node != holder
            assert busy.handed_back >= 1
            await cluster.simulate(engine, reset=True)


async def send_past_the_gateway(cluster: Cluster, port: int) -> None:
    body = {"model": "sim", "prompt": "hello", "max_tokens": 4}
    url = f"http://127.0.0.1:{port}/v1/completions"
    async with cluster.session.post(url, json=body) as reply:
        assert reply.status == 200


async def predicted_tokens(cluster: Cluster, answer: Answer) -> int:
    """The hit that the decision about it counted on."""
    decisions = (await cluster.admin_json("GET", f"/decisions/{answer.id}"))["decisions"]
    return int(decisions[-1]["hit_tokens"])


def views(cluster: Cluster) -> list[NodeView]:
    return cluster.scheduler.nodes(cluster.process.service.now_s())


def told_blocks(cluster: Cluster) -> int:
    blocks = cluster.scheduler.told(node(cluster).incarnation)
    return 0 if blocks is None else len(blocks)


async def test_an_agent_outlives_the_scheduler() -> None:
    """Another one at the same address is told everything anew."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    config = msgspec.structs.replace(CONFIG, agents=Agents(listen=f"127.0.0.1:{port}"))
    async with (
        running_engine(kv_events_port=0) as engine,
        running_agent(agent_options(port, [engine.url])),
    ):
        for round_ in range(2):
            async with gateway(config=config) as cluster:
                await eventually(is_exact(cluster))
                assert node(cluster).index_blocks == blocks(engine)
                answer = await cluster.complete(PROMPT)
                assert answer.cached_tokens == (192 if round_ else 0)
                assert answer.cached_tokens == await predicted_tokens(cluster, answer)
                await eventually(lambda: node(cluster).index_blocks == blocks(engine))
