"""The scheduler's side of the control protocol: who is let in, what is made of what they say."""

import asyncio
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from pointsman.control.agents import AgentListener, ListenerOptions, listener, session
from pointsman.core.block_set import BUCKETS, bucket_of
from pointsman.core.events import IndexTrust, ModelCard, NodeFacts, NodeSpec
from pointsman.core.health import SERVING, Health
from pointsman.core.ids import BlockHash, ModelName, NodeName
from pointsman.wire.control import (
    Ack,
    Announce,
    Bucket,
    Challenge,
    Compare,
    ControlAddress,
    EngineBeat,
    Farewell,
    Heartbeat,
    Hello,
    Refusal,
    Signals,
    Welcome,
    pack_hashes,
    unpack_digests,
)
from pointsman.wire.control_auth import Role, prove, proves
from tests.control.fake_engine import Cluster, fake_engine, running_cluster
from tests.support.agents import RawAgent
from tests.support.waiting import eventually

SECRET = b"sixteen or more bytes"
SPEC = NodeSpec(name=NodeName("e"), url="http://127.0.0.1:9")
FACTS = NodeFacts(
    kind="vllm", models=(ModelCard(ModelName("m")),), block_tokens=16, kv_blocks=100_000
)
BLOCKS = [BlockHash(number << 54 | 1) for number in range(BUCKETS)]


@pytest.fixture(autouse=True)
def _brief(hurried: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "GRACE_S", 0.1)


@asynccontextmanager
async def listening(**options: object) -> AsyncIterator[tuple[Cluster, AgentListener]]:
    async with running_cluster() as cluster:
        agents = AgentListener(cluster.service, cluster.fleet, ListenerOptions(**options))  # type: ignore[arg-type]  # test keywords
        await agents.start()
        try:
            yield cluster, agents
        finally:
            await agents.stop()


def beat(seq: int, *, stored: list[BlockHash] | None = None, **fields: object) -> Heartbeat:
    given: dict[str, object] = {"trust": IndexTrust.EXACT, **fields}
    engine = EngineBeat(0, 1, stored=pack_hashes(stored or []), **given)  # type: ignore[arg-type]  # test keywords
    return Heartbeat(seq, (engine,))


def whole(seq: int, blocks: list[BlockHash], stored: list[BlockHash]) -> Heartbeat:
    """A beat of an agent that holds `blocks`, and tells of `stored`."""
    digest = 0
    for block in blocks:
        digest ^= block
    return beat(seq, stored=stored, blocks=len(blocks), digest=digest)


@asynccontextmanager
async def announced(
    cluster: Cluster, agents: AgentListener, spec: NodeSpec = SPEC
) -> AsyncIterator[RawAgent]:
    raw = await RawAgent.connect(agents.port)
    await raw.greet()
    await raw.send(Announce(0, 1, spec, FACTS))
    await eventually(lambda: bool(cluster.scheduler.nodes(0.0)))
    try:
        yield raw
    finally:
        await raw.close()


# --- who is let in --------------------------------------------------------------------------


async def test_who_knows_the_secret_is_let_in_and_so_does_the_scheduler() -> None:
    async with listening(secret=SECRET) as (_, agents):
        raw = await RawAgent.connect(agents.port)
        challenge = await raw.next()
        assert isinstance(challenge, Challenge)
        assert challenge.wants_proof
        await raw.close()
        raw = await RawAgent.connect(agents.port)
        welcome = await raw.greet(secret=SECRET)
        assert len(welcome.proof) == 32
        await raw.close()


@pytest.mark.parametrize("proof", [b"", b"x" * 32])
async def test_who_does_not_is_told_so_and_dropped(proof: bytes) -> None:
    async with listening(secret=SECRET) as (cluster, agents):
        raw = await RawAgent.connect(agents.port)
        await raw.next()
        await raw.send(Hello("a", b"n" * 16, proof), Announce(0, 1, SPEC, FACTS))
        assert await raw.next() == Refusal("it does not know the secret")
        assert await raw.next() is None
        assert cluster.fleet.names == []


async def test_challenges_are_drawn_anew() -> None:
    """A recorded proof is worth nothing."""
    async with listening(secret=SECRET) as (_, agents):
        nonces = []
        for _ in range(3):
            raw = await RawAgent.connect(agents.port)
            challenge = await raw.next()
            assert isinstance(challenge, Challenge)
            nonces.append(challenge.nonce)
            await raw.close()
        assert len(dict.fromkeys(nonces)) == 3


async def test_the_scheduler_proves_itself() -> None:
    async with listening(secret=SECRET) as (_, agents):
        raw = await RawAgent.connect(agents.port)
        challenge = await raw.next()
        assert isinstance(challenge, Challenge)
        facts = {"challenge": challenge.nonce, "nonce": b"n" * 20}
        await raw.send(Hello("a", b"n" * 20, prove(SECRET, Role.AGENT, agent="a", **facts)))
        welcome = await raw.next()
        assert isinstance(welcome, Welcome)
        assert proves(welcome.proof, SECRET, Role.SCHEDULER, agent="a", **facts)
        await raw.close()


async def test_nothing_is_believed_before_the_greeting() -> None:
    async with listening() as (cluster, agents):
        raw = await RawAgent.connect(agents.port)
        await raw.next()
        await raw.send(Announce(0, 1, SPEC, FACTS))
        refusal = await raw.next()
        assert isinstance(refusal, Refusal)
        assert "no greeting" in refusal.detail
        assert await raw.next() is None
        assert cluster.fleet.names == []


@pytest.mark.parametrize("noise", [b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\2\2\xc0", b"\xff" * 64])
async def test_noise_ends_the_connection_with_a_reason(noise: bytes) -> None:
    async with listening() as (_, agents):
        raw = await RawAgent.connect(agents.port)
        await raw.next()
        raw.writer.write(noise)
        assert isinstance(await raw.next(), Refusal)
        assert await raw.next() is None


async def test_who_says_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "GREETING_S_MAX", 0.05)
    monkeypatch.setattr(session, "SILENCE_S_MAX", 0.1)
    async with listening() as (_, agents):
        raw = await RawAgent.connect(agents.port)
        await raw.next()
        assert isinstance(await raw.next(), Refusal)
        assert await raw.next() is None
        raw = await RawAgent.connect(agents.port)
        await raw.greet()
        assert await raw.next() is None


async def test_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "SESSIONS_MAX", 1)
    async with listening() as (_, agents):
        first = await RawAgent.connect(agents.port)
        await first.greet()
        second = await RawAgent.connect(agents.port)
        assert await second.next() == Refusal("too many agents are connected")
        assert await second.next() is None
        await first.close()


async def test_strangers_keep_no_agent_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever reaches the port can fill it with connections that never prove anything."""
    monkeypatch.setattr(listener, "SESSIONS_MAX", 3)
    async with listening(secret=SECRET) as (_, agents):
        strangers = [await RawAgent.connect(agents.port) for _ in range(6)]
        raw = await RawAgent.connect(agents.port)
        await raw.greet(secret=SECRET)
        for stranger in strangers[:4]:
            assert isinstance(await stranger.next(), Challenge)
            assert await stranger.next() == Refusal("others have come who may greet sooner")
        assert caplog.text.count("is refused") == 1, "a flood of them does not fill the log"
        for each in (raw, *strangers):
            await each.close()


async def test_a_unix_socket_is_for_its_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "agents.sock"
    async with listening(address=ControlAddress(path=str(path))):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        raw = RawAgent(*await asyncio.open_unix_connection(str(path)))
        await raw.greet()
        await raw.close()
    assert not path.exists()


async def test_who_ends_leaves_the_socket_of_who_has_followed(tmp_path: Path) -> None:
    path = tmp_path / "agents.sock"
    address = ControlAddress(path=str(path))
    async with listening(address=address) as (_, before), listening(address=address):
        await before.stop()
        raw = RawAgent(*await asyncio.open_unix_connection(str(path)))
        await raw.greet()
        await raw.close()
    assert not path.exists()


# --- what is made of it ---------------------------------------------------------------------


async def test_an_engine_is_a_node_by_its_agents_word() -> None:
    async with listening() as (cluster, agents), announced(cluster, agents) as raw:
        assert (cluster.node("e").health, cluster.node("e").facts) == (Health.READY, FACTS)
        assert not cluster.fleet.waiting, "it has described itself"
        await raw.send(beat(1, signals=Signals(running=3, gpu_busy=0.5), age_ms=1_500))
        assert await raw.next() == Ack(1)
        view = cluster.node("e")
        assert (view.signals.running, view.signals.waiting) == (3, None)
        assert (view.signals.gpu_busy, view.signals.gpu_power_w) == (0.5, None)
        assert view.signals_age_s is not None
        assert view.signals_age_s >= 1.5
        assert cluster.count("agent_heartbeats", node="e") == 1


async def test_blocks_that_are_told_are_the_index() -> None:
    async with listening() as (cluster, agents), announced(cluster, agents) as raw:
        await raw.send(whole(1, BLOCKS[:3], BLOCKS[:3]))
        assert await raw.next() == Ack(1)
        assert (cluster.node("e").index_blocks, cluster.node("e").index_trust) == (
            3,
            IndexTrust.EXACT,
        )


async def test_copies_that_differ_are_compared_and_healed_with_the_next_beat() -> None:
    """A heartbeat with a delta never comes: the next one shows it, and its answer heals it."""
    async with listening() as (cluster, agents), announced(cluster, agents) as raw:
        await raw.send(whole(1, BLOCKS[:2], BLOCKS[:2]))
        assert await raw.next() == Ack(1)
        await raw.send(whole(3, BLOCKS[:5], BLOCKS[4:5]))  # beat 2 had BLOCKS[2:4]
        compare = await raw.next()
        assert isinstance(compare, Compare)
        assert await raw.next() == Ack(3)
        assert cluster.node("e").index_trust is IndexTrust.DEGRADED
        digests = unpack_digests(compare.digests)
        differing = [b for b in BLOCKS[:5] if digests[bucket_of(b)] != b]
        assert differing == BLOCKS[2:4]
        for block in differing:
            await raw.send(Bucket(0, 1, bucket_of(block), pack_hashes([block])))
        await eventually(lambda: cluster.node("e").index_trust is IndexTrust.EXACT)
        assert cluster.node("e").index_blocks == 5
        await raw.send(whole(4, BLOCKS[:5], []))
        assert await raw.next() == Ack(4), "nothing is left to compare"
        assert cluster.count("index_drifts", node="e") == 1
        assert cluster.count("agent_gaps", node="e") == 1


async def test_an_agent_that_never_agrees_is_not_asked_for_ever() -> None:
    async with listening() as (cluster, agents), announced(cluster, agents) as raw:
        asked = 0
        for seq in range(1, 60):
            await raw.send(whole(seq, BLOCKS[:2], []))
            while (frame := await raw.next()) != Ack(seq):
                assert isinstance(frame, Compare)
                asked += 1
        assert asked == 5
        assert cluster.node("e").index_trust is IndexTrust.DEGRADED


async def test_bad_news_is_believed_and_good_news_is_checked_from_here() -> None:
    """The engine may be well, and yet out of our reach."""
    async with (
        fake_engine() as engine,
        listening() as (cluster, agents),
        announced(cluster, agents) as raw,
    ):
        spec = NodeSpec(name=NodeName("f"), url=engine.url)
        await raw.send(Announce(1, 1, spec, FACTS))
        await eventually(lambda: "f" in cluster.fleet.names)
        engine.status["/health"] = 503
        for seq in range(1, 4):
            sick = EngineBeat(1, 1, healthy=False, detail="GET /health answers 503")
            await raw.send(Heartbeat(seq, (sick,)))
            await raw.next()
        assert cluster.node("f").health is Health.OPEN
        await raw.send(Heartbeat(4, (EngineBeat(1, 1, healthy=True),)))
        assert cluster.node("f").health is Health.OPEN
        engine.status["/health"] = 200
        await eventually(lambda: cluster.node("f").health in SERVING)


async def test_an_agent_that_drains_takes_its_engine_out_of_rotation() -> None:
    async with listening() as (cluster, agents), announced(cluster, agents) as raw:
        await raw.send(beat(1, draining=True))
        await raw.next()
        assert cluster.node("e").draining
        await raw.send(beat(2, draining=True), Farewell(gone=True))
        await eventually(lambda: cluster.fleet.names == [])


async def test_an_operators_drain_is_not_the_agents_to_undo() -> None:
    async with listening() as (cluster, agents), announced(cluster, agents) as raw:
        cluster.fleet.drain(NodeName("e"), True)
        await raw.send(beat(1))
        await raw.next()
        assert cluster.node("e").draining


async def test_an_agent_that_comes_back_finds_its_engines_as_they_were() -> None:
    async with listening() as (cluster, agents):
        async with announced(cluster, agents) as raw:
            await raw.send(whole(1, BLOCKS[:3], BLOCKS[:3]))
            await raw.next()
            node_id = cluster.node("e").incarnation
        async with announced(cluster, agents) as raw:
            await raw.send(whole(1, BLOCKS[:3], []))
            assert await raw.next() == Ack(1)
            assert cluster.node("e").incarnation == node_id
            assert cluster.node("e").index_trust is IndexTrust.EXACT
            assert cluster.count("agent_losses", node="e") == 1


async def test_a_lost_agent_is_no_dead_engine() -> None:
    async with fake_engine() as engine, listening() as (cluster, agents):
        raw = await RawAgent.connect(agents.port)
        await raw.greet()
        await raw.send(Announce(0, 1, NodeSpec(name=NodeName("e"), url=engine.url), FACTS))
        await eventually(lambda: bool(cluster.scheduler.nodes(0.0)))
        await raw.send(whole(1, BLOCKS[:3], BLOCKS[:3]))
        await raw.next()
        node_id = cluster.node("e").incarnation
        assert engine.count("/metrics") == 0
        await raw.close()
        await eventually(lambda: cluster.node("e").index_trust is IndexTrust.DEGRADED)
        assert cluster.node("e").health is Health.READY
        await eventually(lambda: engine.count("/metrics") > 1 and engine.count("/health") > 1)
        assert cluster.node("e").incarnation == node_id
        assert cluster.node("e").index_blocks == 0, "nobody tells of removals any more"


async def test_an_engine_that_an_agent_added_is_forgotten_when_both_are_gone() -> None:
    async with listening(forget_s=0.3) as (cluster, agents):
        async with announced(cluster, agents):
            assert cluster.fleet.names == ["e"]
        await eventually(lambda: cluster.fleet.names == [])
        await eventually(lambda: cluster.scheduler.nodes(0.0) == [])
        async with announced(cluster, agents):
            assert cluster.fleet.names == ["e"], "a new one, when it comes back"


async def test_an_engine_that_answers_stays_and_is_forgotten_when_it_does_not() -> None:
    async with fake_engine() as engine, listening(forget_s=0.3) as (cluster, agents):
        raw = await RawAgent.connect(agents.port)
        await raw.greet()
        await raw.send(Announce(0, 1, NodeSpec(name=NodeName("e"), url=engine.url), FACTS))
        await eventually(lambda: cluster.fleet.names == ["e"])
        await raw.close()
        await eventually(lambda: engine.count("/health") > 10)
        assert cluster.fleet.names == ["e"]
        engine.status["/health"] = 500
        await eventually(lambda: cluster.fleet.names == [])


async def test_an_engine_of_the_configuration_is_never_forgotten() -> None:
    async with listening(forget_s=0.01) as (cluster, agents):
        cluster.add(SPEC.url, "static")
        async with announced(cluster, agents):
            pass
        await eventually(lambda: cluster.count("probes", node="static", result="failed") > 9)
        assert cluster.fleet.names == ["static"]


async def test_an_engine_that_is_configured_after_its_agent_told_of_it_is_never_forgotten() -> None:
    async with listening(forget_s=0.01) as (cluster, agents):
        async with announced(cluster, agents):
            assert await cluster.fleet.remove(SPEC.name)
            cluster.add(SPEC.url, SPEC.name)
        async with announced(cluster, agents):
            pass
        await eventually(lambda: cluster.count("probes", node="e", result="failed") > 9)
        assert cluster.fleet.names == ["e"]


async def test_an_engine_that_is_configured_anew_outlives_the_agent_that_once_added_it() -> None:
    async with listening() as (cluster, agents), announced(cluster, agents) as raw:
        assert await cluster.fleet.remove(SPEC.name)
        cluster.add(SPEC.url, SPEC.name)
        await raw.send(Farewell(gone=True))
        assert await raw.next() is None, "the scheduler has heard it"
        assert cluster.fleet.names == ["e"]
        assert not cluster.fleet.is_retiring(SPEC.name)


async def test_a_new_incarnation_is_a_new_node() -> None:
    async with listening() as (cluster, agents), announced(cluster, agents) as raw:
        await raw.send(whole(1, BLOCKS[:3], BLOCKS[:3]))
        await raw.next()
        before = cluster.node("e").incarnation
        await raw.send(Announce(0, 2, SPEC, FACTS), whole(2, BLOCKS[:3], []))
        assert await raw.next() == Ack(2)
        assert cluster.node("e").incarnation != before
        assert cluster.node("e").index_blocks == 0, "beats of the former incarnation are void"
        assert cluster.node("e").health is Health.READY


async def test_the_later_of_two_connections_of_one_agent_counts() -> None:
    async with (
        listening() as (cluster, agents),
        announced(cluster, agents) as first,
        announced(cluster, agents) as second,
    ):
        refusal = await first.next()
        assert isinstance(refusal, Refusal)
        assert await first.next() is None
        await second.send(beat(1))
        assert isinstance(await second.next(), Compare | Ack)
        assert cluster.fleet.status(NodeName("e")).events == "told by agent raw"  # type: ignore[union-attr]  # it exists


async def test_an_engine_that_a_restarted_agent_has_no_more_is_looked_at_from_here() -> None:
    async with (
        listening() as (cluster, agents),
        fake_engine() as engine,
        announced(cluster, agents, NodeSpec(name=NodeName("e"), url=engine.url)) as first,
    ):
        second = await RawAgent.connect(agents.port)
        await second.greet(boot=2)
        assert isinstance(await first.next(), Refusal)
        await eventually(lambda: not cluster.fleet._links[NodeName("e")].attended.is_set())
        await second.close()


async def test_an_agent_cannot_have_one_engine_twice() -> None:
    async with listening() as (cluster, agents), announced(cluster, agents) as raw:
        for url in (SPEC.url, SPEC.url.upper() + "/"):
            await raw.send(Announce(1, 1, msgspec.structs.replace(SPEC, url=url), FACTS))
            assert await raw.next() == Refusal(f"{SPEC.url} is its engine 0 already", 1)


async def test_a_node_that_an_operator_removes_stays_away_until_it_is_added_again() -> None:
    async with listening() as (cluster, agents), announced(cluster, agents) as raw:
        await raw.send(whole(1, BLOCKS[:3], BLOCKS[:3]))
        assert await raw.next() == Ack(1)
        await cluster.fleet.remove(NodeName("e"))
        await raw.send(whole(2, BLOCKS[:3], []))
        assert await raw.next() == Ack(2)
        assert cluster.fleet.names == []
        cluster.add(SPEC.url, "mine")
        await raw.send(whole(3, BLOCKS[:3], []), whole(4, BLOCKS[:3], []))
        assert await raw.next() == Ack(3)
        assert isinstance(await raw.next(), Compare), "it is told all that it missed"
        assert cluster.node("mine").facts == FACTS


async def test_an_agent_that_comes_back_under_another_name_has_its_engines_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener, "GRACE_S", 5.0)
    async with listening() as (cluster, agents):
        async with announced(cluster, agents) as first:
            await first.send(beat(1))
        await eventually(lambda: not agents._by_agent)
        second = await RawAgent.connect(agents.port)
        await second.greet("other")
        await second.send(Announce(0, 1, SPEC, FACTS), whole(1, BLOCKS[:3], BLOCKS[:3]))
        assert await second.next() == Ack(1)
        assert cluster.node("e").index_trust is IndexTrust.EXACT
        assert not agents._graces
        await second.close()


async def test_two_agents_cannot_have_one_engine() -> None:
    async with listening() as (cluster, agents), announced(cluster, agents):
        other = await RawAgent.connect(agents.port)
        await other.greet("other")
        await other.send(Announce(0, 1, SPEC, FACTS))
        assert await other.next() == Refusal(f"agent raw attends to {SPEC.url} already", 0)
        await other.close()


@pytest.mark.parametrize(
    ("spec", "facts"),
    [
        (NodeSpec(name=NodeName("a\r\nb"), url="http://127.0.0.1:9"), FACTS),
        (NodeSpec(name=NodeName("e"), url="http://127.0.0.1:9\r\nx"), FACTS),
        (NodeSpec(name=NodeName("e"), url="ftp://127.0.0.1:9"), FACTS),
        (NodeSpec(name=NodeName("e"), url="http://127.0.0.1:9"), NodeFacts(block_tokens=0)),
        (NodeSpec(name=NodeName("e"), url="http://127.0.0.1:9"), NodeFacts(kv_blocks=-1)),
        (NodeSpec(name=NodeName("e"), url="http://127.0.0.1:9"), NodeFacts(running_max=0)),
        (NodeSpec(name=NodeName("e"), url="http://127.0.0.1:9", concurrency_max=-5), FACTS),
        (
            NodeSpec(name=NodeName("e"), url="http://127.0.0.1:9"),
            NodeFacts(models=(ModelCard(ModelName("m"), context_tokens_max=0),)),
        ),
    ],
)
async def test_an_engine_that_makes_no_sense_is_refused(spec: NodeSpec, facts: NodeFacts) -> None:
    async with listening() as (cluster, agents):
        raw = await RawAgent.connect(agents.port)
        await raw.greet()
        await raw.send(Announce(0, 1, spec, facts))
        refusal = await raw.next()
        assert isinstance(refusal, Refusal)
        assert refusal.engine == 0
        await raw.send(beat(1))
        assert await raw.next() == Ack(1), "the others of its engines are served on"
        assert cluster.fleet.names == []
        await raw.close()


async def test_an_engine_that_makes_no_sense_later_stays_what_it_was() -> None:
    async with listening() as (cluster, agents), announced(cluster, agents) as raw:
        before = cluster.node("e")
        await raw.send(Announce(0, 2, SPEC, NodeFacts(kv_blocks=-1)))
        assert await raw.next() == Refusal("-1 KV blocks are none", 0)
        assert (cluster.node("e").incarnation, cluster.node("e").facts) == (
            before.incarnation,
            FACTS,
        )


async def test_beats_that_go_back_end_the_connection() -> None:
    async with listening() as (cluster, agents), announced(cluster, agents) as raw:
        await raw.send(Heartbeat(2))
        assert await raw.next() == Ack(2)
        await raw.send(Heartbeat(2))
        assert isinstance(await raw.next(), Refusal)
        assert await raw.next() is None
