"""Judgements on what was seen, without engines."""

import pytest

from pointsman.control.doctor import Check, Finding, Scope, Severity
from pointsman.control.doctor.engine_findings import is_buffered
from pointsman.control.doctor.examination import diagnose
from pointsman.control.doctor.fleet_findings import suspects
from pointsman.control.doctor.seen import (
    ConfigurationSeen,
    EngineSeen,
    EventsSeen,
    GatewaySeen,
    LinkSeen,
    NodeSeen,
    ProbeSeen,
    StateSeen,
    StreamSeen,
    Target,
)
from pointsman.core.events import ModelCard, NodeFacts
from pointsman.core.ids import ModelName
from pointsman.engines.adapters import Description, EventSource
from pointsman.wire.engine_metrics import EngineKind, EngineSignals
from pointsman.wire.usage import Usage

TARGET = Target(name="engine-1", url="http://engine")


def page(kind: EngineKind = EngineKind.VLLM) -> EngineSignals:
    return EngineSignals(kind=kind, running=0, waiting=0, kv_usage=0.0, prefix_hits=0)


def described(kind: str = "vllm", block_tokens: int | None = 16) -> Description:
    facts = NodeFacts(
        kind=kind,
        models=(ModelCard(ModelName("m")),),
        block_tokens=block_tokens,
        kv_blocks=None if block_tokens is None else 100,
    )
    return Description(facts, (), page(EngineKind(kind)))


def engine(**seen: object) -> EngineSeen:
    return EngineSeen(**{"target": TARGET, "described": described(), **seen})  # type: ignore[arg-type]  # any of its fields


def link(**seen: object) -> LinkSeen:
    plain: dict[str, object] = {
        "peer": ("10.0.0.7", 8000),
        "latency_s": 0.001,
        "health_status": 200,
        "reusable": True,
        "clock_ahead_s": 0.0,
        "watched_s": 2.5,
        "closed_after_s": None,
    }
    return LinkSeen(**{**plain, **seen})  # type: ignore[arg-type]  # any of its fields


def found(*engines: EngineSeen, gateway: GatewaySeen | None = None) -> list[Finding]:
    scope = Scope(targets=tuple(each.target for each in engines))
    return list(diagnose(scope, engines, gateway or GatewaySeen(), ()).findings)


def worst(findings: list[Finding]) -> tuple[Severity, Check]:
    return findings[0].severity, findings[0].check


def node(**seen: object) -> NodeSeen:
    plain: dict[str, object] = {"name": "engine-1", "url": "http://engine", "health": "ready"}
    return NodeSeen(**{**plain, **seen})  # type: ignore[arg-type]  # any of its fields


def state(*nodes: NodeSeen, **seen: object) -> GatewaySeen:
    told = StateSeen(**{"ready": True, "nodes": nodes, **seen})  # type: ignore[arg-type]  # as above
    return GatewaySeen(admin_url="http://admin", state=told)


def test_a_quiet_engine_has_nothing_but_its_missing_events() -> None:
    assert [each.severity for each in found(engine(link=link()))] == [Severity.NOTE]


@pytest.mark.parametrize(
    ("seen", "check"),
    [
        ({"latency_s": 0.3}, Check.REACHABLE),
        ({"clock_ahead_s": 5.0}, Check.CLOCK),
        ({"clock_ahead_s": -5.0}, Check.CLOCK),
        ({"closed_after_s": 1.0}, Check.KEEP_ALIVE),
    ],
)
def test_a_connection_that_is_not_as_it_should_be(seen: dict[str, object], check: Check) -> None:
    assert worst(found(engine(link=link(**seen)))) == (Severity.WARNING, check)


def test_an_engine_that_tells_no_block_size() -> None:
    silent = engine(described=described(block_tokens=None))
    assert worst(found(silent)) == (Severity.WARNING, Check.KV_CACHE)
    llamacpp = engine(described=described("llamacpp", None))
    assert found(llamacpp) == []


@pytest.mark.parametrize(
    ("first_s", "last_s", "buffered"),
    [(0.02, 0.32, False), (0.32, 0.32, True), (0.25, 0.32, False), (0.02, 0.03, False)],
)
def test_a_stream_is_buffered_if_its_tokens_come_together_and_late(
    first_s: float, last_s: float, buffered: bool
) -> None:
    stream = StreamSeen(events=16, first_s=first_s, last_s=last_s)
    assert is_buffered(stream, 0.02) is buffered
    assert not is_buffered(stream, None)
    assert not is_buffered(StreamSeen(events=2, first_s=first_s, last_s=last_s), 0.02)


def test_one_stream_that_came_late_is_no_proxy() -> None:
    usages = (Usage(100, 1, 0), Usage(100, 1, 96))
    probe = ProbeSeen(model="m", prompt="p", usages=usages, seconds_min=0.02)
    late, good = (StreamSeen(events=16, first_s=at, last_s=0.4) for at in (0.4, 0.02))
    assert Check.STREAMING not in [f.check for f in found(engine(probe=probe, streams=(good,)))]
    again = found(engine(probe=probe, streams=(late, good)))
    assert Check.STREAMING not in [f.check for f in again]
    twice = found(engine(probe=probe, streams=(late, late)))
    assert worst(twice) == (Severity.PROBLEM, Check.STREAMING)


@pytest.mark.parametrize(("tokens", "block", "hit"), [(64, 32, 32), (65, 32, 64), (20, None, 19)])
def test_a_prompt_that_is_cached_whole_computes_its_last_block(
    tokens: int, block: int | None, hit: int
) -> None:
    """As vLLM does: 64 tokens in blocks of 32 find 32."""
    probe = ProbeSeen(model="m", prompt="p", usages=(Usage(tokens, 1),))
    assert probe.predicted(block) == hit


def test_events_of_another_block_size_are_another_engines() -> None:
    events = EventsSeen(
        source=EventSource("tcp://e:1", "tcp://e:2"), stored=3, block_sizes=(64,), replayed_from=0
    )
    assert worst(found(engine(events=(events,)))) == (Severity.PROBLEM, Check.KV_EVENTS)


def test_a_replay_that_does_not_reach_the_start_is_a_note() -> None:
    source = EventSource("tcp://e:1", "tcp://e:2")
    events = EventsSeen(source=source, stored=3, block_sizes=(16,), replayed_from=7)
    assert worst(found(engine(events=(events,)))) == (Severity.NOTE, Check.KV_EVENTS)


def test_engines_that_started_at_different_times_are_not_one() -> None:
    early, late = engine(started_s=(1.0,), link=link()), engine(started_s=(2.0,), link=link())
    assert suspects([early, late]) == []
    assert suspects([early, early]) == [(0, 1)]
    assert suspects([engine(link=link()), engine(link=link())]) == [(0, 1)]


@pytest.mark.parametrize(
    ("seen", "severity", "check"),
    [
        (node(health="open", health_detail="refused"), Severity.PROBLEM, Check.GATEWAY),
        (node(draining=True), Severity.NOTE, Check.GATEWAY),
        (node(index_trust="degraded"), Severity.WARNING, Check.INDEX),
        (
            node(cached_tokens_predicted=20_000, cached_tokens_reported=15_000),
            Severity.WARNING,
            Check.INDEX,
        ),
        (
            node(cached_tokens_predicted=20_000, cached_tokens_reported=100),
            Severity.PROBLEM,
            Check.INDEX,
        ),
    ],
)
def test_what_the_gateway_thinks_of_a_node(
    seen: NodeSeen, severity: Severity, check: Check
) -> None:
    exact = engine(target=Target(name="engine-1", url="http://engine", kv_events="tcp://e:1"))
    assert worst(found(exact, gateway=state(seen))) == (severity, check)


def test_an_index_that_is_true_or_young_is_left_in_peace() -> None:
    exact = engine(target=Target(name="engine-1", url="http://engine", kv_events="tcp://e:1"))
    good = node(cached_tokens_predicted=20_000, cached_tokens_reported=19_900)
    young = node(cached_tokens_predicted=200, cached_tokens_reported=0)
    assert found(exact, gateway=state(good)) == []
    assert found(exact, gateway=state(young)) == []


@pytest.mark.parametrize(
    ("seen", "severity"),
    [
        ({"ready": False}, Severity.PROBLEM),
        ({"configuration": ConfigurationSeen(("p.yaml:1:1: no",))}, Severity.WARNING),
        ({"failures": {"steps": 1}}, Severity.WARNING),
    ],
)
def test_what_the_gateway_tells_of_itself(seen: dict[str, object], severity: Severity) -> None:
    assert worst(found(gateway=state(**seen))) == (severity, Check.GATEWAY)


def test_a_gateway_that_wants_a_key_is_not_probed() -> None:
    seen = GatewaySeen(url="http://gateway", ready_status=200, models_status=401)
    told = found(gateway=seen)
    assert worst(told) == (Severity.NOTE, Check.GATEWAY)
    assert "POINTSMAN_API_KEY" in told[0].remedy


def test_the_worst_comes_first() -> None:
    bad = engine(
        link=link(clock_ahead_s=9.0, health_status=503),
        started_s=(1.0, 9.0),
    )
    severities = [each.severity for each in found(bad)]
    assert severities == sorted(severities, key=list(Severity).index)
    assert len(set(severities)) == 3
