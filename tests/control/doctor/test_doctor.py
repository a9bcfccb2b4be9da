"""The doctor before live engines: silent where all is well, and each misconfiguration found.

Planted, each alone:

 1  nothing listens at an engine's address
 2  an engine is configured for a model that it does not serve
 3  engines of one model have blocks of different sizes
 4  prefix caching is off
 5  an engine does not tell cached tokens (--enable-prompt-tokens-details)
 6  KV events go to a port that is not reached
 7  KV events come under a foreign topic
 8  KV events cannot be replayed, or their replay port is closed
 9  data-parallel ranks behind one address
10  two engines announce one event endpoint
11  the metrics page is not served
12  the engine closes idle connections sooner than the pool does
13  the connection is closed after each answer
14  the engine's clock is wrong
15  a proxy buffers streams
16  one engine under two names
17  a balancer before two engines
18  the wrong tokenizer
19  another chat template
20  the engine wants an API key, or is loading, or unwell, or answers no prompt
21  the gateway's address is an engine's, or the gateway is not ready; its admin port is closed
22  the gateway knows other engines
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pointsman.cli.config import Admin, Config, Limits, Listen, Log
from pointsman.control.doctor import (
    Check,
    Diagnosis,
    Finding,
    Scope,
    Severity,
    Target,
    connection,
    engine_findings,
    examine,
    listening,
)
from pointsman.engines.simulated import RunningEngine
from pointsman.engines.tokenizer import ModelTokenizer, Pieces, load
from pointsman.wire.endpoints import Endpoint
from tests.support import upstreams
from tests.support.cluster import running_cluster
from tests.support.engines import running_engine
from tests.support.meddling_proxy import Alter, meddling_proxy
from tests.support.tokenizers import INST, write_folder

POOL_IDLE_S = 0.2


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """On one machine nothing is on its way for long."""
    monkeypatch.setattr(listening, "CONNECT_S", 0.05)
    for module in (connection, engine_findings):
        monkeypatch.setattr(module, "MARGIN_S", 0.1)


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what never comes."""
    monkeypatch.setattr(listening, "WAIT_S_MAX", 0.3)
    monkeypatch.setattr(listening, "REPLAY_S_MAX", 0.3)


def targets(*urls: str, **fields: Any) -> tuple[Target, ...]:
    return tuple(
        Target(**{"name": f"engine-{n}", "url": url, "pool_idle_s": POOL_IDLE_S, **fields})
        for n, url in enumerate(urls, 1)
    )


async def diagnosis(*urls: str, **fields: Any) -> Diagnosis:
    given = {name: fields.pop(name) for name in ("models", "kv_events") if name in fields}
    return await examine(Scope(targets=targets(*urls, **given), **fields))


def telling(found: Diagnosis) -> list[Finding]:
    """All but how long this machine, which is shared, took to answer."""
    return [f for f in found.findings if not re.search(r"takes \d+ ms", f.seen)]


async def the_one(severity: Severity, check: Check, *urls: str, **fields: Any) -> Finding:
    """The only finding there is."""
    found = telling(await diagnosis(*urls, **fields))
    assert [(each.severity, each.check) for each in found] == [(severity, check)], found
    assert found[0].remedy
    return found[0]


def altered(path: str, change: Callable[[bytes], bytes]) -> Alter:
    return lambda asked, body: change(body) if asked == path else body


def replaced(path: str, pattern: str, by: str) -> Alter:
    return altered(path, lambda body: re.sub(pattern.encode(), by.encode(), body))


def sources(**changed: object) -> Alter:
    def change(body: bytes) -> bytes:
        listed = json.loads(body)
        for source in listed.values():
            source.update(changed)
        return json.dumps(listed).encode()

    return altered("/kv_event_sources", change)


# --- healthy --------------------------------------------------------------------------------


async def test_nothing_is_found_in_a_healthy_cluster() -> None:
    async with running_cluster(2, speed=1.0) as cluster:
        urls = [engine.url for engine in cluster.engines]
        done: list[tuple[int, int]] = []
        scope = Scope(
            targets=targets(*urls),
            tokenizers={"sim": None},
            wanted=("sim",),
            gateway_url=cluster.api,
            admin_url=cluster.admin,
        )
        found = await examine(scope, lambda *counts: done.append(counts))
        assert telling(found) == []
        assert found.healthy
        assert done == [(1, 2), (2, 2)]
        assert [engine.cached_share for engine in found.engines] == [1.0, 1.0]
        assert [engine.models for engine in found.engines] == [("sim",), ("sim",)]


@pytest.mark.parametrize(
    "options",
    [
        {"legacy_metrics": True},
        {"kv_events_encoding": "array", "kv_events_hashes": "bytes"},
        {"loras": ["adapter"], "block_size": 64},
        {"max_model_len": 128},
    ],
)
async def test_nothing_is_found_whatever_an_engine_may_be(options: Mapping[str, object]) -> None:
    async with running_engine(kv_events_port=0, **options) as engine:
        assert telling(await diagnosis(engine.url)) == []


async def test_without_probes_no_prompt_is_sent() -> None:
    async with running_engine(kv_events_port=0) as engine:
        assert telling(await diagnosis(engine.url, probing=False)) == []
        assert engine.engine.driver.steps == 0


async def test_an_engine_without_events_is_worth_a_note() -> None:
    async with running_engine() as engine:
        note = await the_one(Severity.NOTE, Check.KV_EVENTS, engine.url)
        assert "--kv-events-config" in note.remedy


# --- planted --------------------------------------------------------------------------------


async def test_an_engine_that_does_not_run() -> None:
    found = await the_one(Severity.PROBLEM, Check.REACHABLE, upstreams.closed_url())
    assert "connection refused" in found.seen


async def test_a_model_that_is_not_served() -> None:
    async with running_engine(kv_events_port=0) as engine:
        found = await the_one(Severity.PROBLEM, Check.MODELS, engine.url, models=("llama",))
        assert "serves sim" in found.seen
        found = await the_one(Severity.PROBLEM, Check.MODELS, engine.url, wanted=("llama",))
        assert found.subject == "llama"


async def test_block_sizes_that_differ() -> None:
    async with (
        running_engine(kv_events_port=0, block_size=16, kv_blocks=1000) as one,
        running_engine(kv_events_port=0, block_size=32, kv_blocks=500) as other,
    ):
        found = await the_one(Severity.WARNING, Check.KV_CACHE, one.url, other.url)
        assert "16 (engine-1), 32 (engine-2)" in found.seen


async def test_context_lengths_and_capacities_that_differ() -> None:
    async with (
        running_engine(kv_events_port=0, max_model_len=4096, kv_blocks=1000) as one,
        running_engine(kv_events_port=0, max_model_len=8192, kv_blocks=2000) as other,
    ):
        found = telling(await diagnosis(one.url, other.url))
        assert [(f.severity, f.check) for f in found] == [
            (Severity.WARNING, Check.MODELS),
            (Severity.NOTE, Check.KV_CACHE),
        ]


async def test_prefix_caching_that_is_off() -> None:
    nothing = replaced("/v1/completions", r'"cached_tokens": ?\d+', '"cached_tokens":0')
    async with running_engine() as engine, meddling_proxy(engine.url, alter=nothing) as url:
        found = await diagnosis(url, kv_events="off")
        assert _told(found, Severity.PROBLEM) == [Check.PREFIX_HITS]
    says_so = replaced("/metrics", 'enable_prefix_caching="True"', 'enable_prefix_caching="False"')
    async with running_engine() as engine, meddling_proxy(engine.url, alter=says_so) as url:
        found = await diagnosis(url, kv_events="off")
        assert _told(found, Severity.PROBLEM) == [Check.KV_CACHE]


async def test_hits_that_are_not_told() -> None:
    untold = replaced("/v1/completions", r'"prompt_tokens_details": ?{[^}]*}', '"x":0')
    async with (
        running_engine(kv_events_port=0) as engine,
        meddling_proxy(engine.url, alter=untold) as url,
    ):
        found = await the_one(Severity.WARNING, Check.PREFIX_HITS, url)
        assert "--enable-prompt-tokens-details" in found.remedy


async def test_hits_that_do_not_follow_from_the_block_size() -> None:
    half = replaced("/v1/completions", r'"cached_tokens": ?[1-9]\d+', '"cached_tokens":16')
    async with running_engine() as engine, meddling_proxy(engine.url, alter=half) as url:
        found = await diagnosis(url, kv_events="off")
        assert _told(found, Severity.WARNING) == [Check.PREFIX_HITS]


@pytest.mark.usefixtures("_impatient")
async def test_events_that_do_not_arrive() -> None:
    nowhere = sources(endpoint=upstreams.closed_url().replace("http", "tcp"))
    async with (
        running_engine(kv_events_port=0) as engine,
        meddling_proxy(engine.url, alter=nowhere) as url,
    ):
        found = await the_one(Severity.PROBLEM, Check.KV_EVENTS, url)
        assert "nothing of it came from tcp://127.0.0.1:" in found.seen


@pytest.mark.usefixtures("_impatient")
async def test_events_under_a_foreign_topic() -> None:
    async with (
        running_engine(kv_events_port=0) as engine,
        meddling_proxy(engine.url, alter=sources(topic="kv@other@sim")) as url,
    ):
        found = await the_one(Severity.PROBLEM, Check.KV_EVENTS, url)
        assert "kv@other@sim" in found.seen


async def test_events_without_a_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_engine(kv_events_port=0) as engine:
        async with meddling_proxy(engine.url, alter=sources(replay_endpoint=None)) as url:
            await the_one(Severity.WARNING, Check.KV_EVENTS, url)
        monkeypatch.setattr(listening, "REPLAY_S_MAX", 0.3)
        closed = upstreams.closed_url().replace("http", "tcp")
        async with meddling_proxy(engine.url, alter=sources(replay_endpoint=closed)) as url:
            found = await the_one(Severity.PROBLEM, Check.KV_EVENTS, url)
            assert "no replay" in found.seen


async def test_data_parallel_ranks_behind_one_address() -> None:
    async with running_engine(kv_events_port=0) as one, running_engine(kv_events_port=0) as other:
        ranks = sources()

        def both(path: str, body: bytes) -> bytes:
            if path != "/kv_event_sources":
                return ranks(path, body)
            source = next(iter(json.loads(body).values()))
            second = {**source, **_events_of(other)}
            return json.dumps({"0": source, "1": second}).encode()

        async with meddling_proxy(one.url, alter=both) as url:
            found = await the_one(Severity.WARNING, Check.KV_EVENTS, url)
            assert "2 data-parallel ranks" in found.seen
            assert f"{url}#0" in found.remedy


@pytest.mark.parametrize("fragments", [("#0", "#1"), ("",)])
async def test_ranks_that_are_told_apart_are_well(fragments: tuple[str, ...]) -> None:
    async with running_engine(kv_events_port=0, data_parallel_size=2) as engine:
        found = await diagnosis(*[engine.url + fragment for fragment in fragments])
    assert found.healthy, found
    assert [each.url for each in found.engines] == [f"{engine.url}#0", f"{engine.url}#1"]
    assert not [each for each in found.findings if each.severity is not Severity.NOTE]


async def test_two_engines_with_one_event_endpoint() -> None:
    async with running_engine(kv_events_port=0) as one, running_engine(kv_events_port=0) as other:
        shared = sources(**_events_of(one))
        async with meddling_proxy(other.url, alter=shared) as url:
            found = await diagnosis(one.url, url)
            assert any("as those of engine-1" in each.seen for each in found.findings)
            assert not found.healthy


async def test_metrics_that_are_not_served() -> None:
    async with (
        running_engine(kv_events_port=0) as engine,
        meddling_proxy(engine.url, statuses={"/metrics": 404}) as url,
    ):
        found = await diagnosis(url)
        assert Check.METRICS in _told(found, Severity.WARNING)


async def test_a_signal_that_has_another_name() -> None:
    renamed = replaced("/metrics", "num_requests_waiting", "num_requests_pending")
    async with (
        running_engine(kv_events_port=0) as engine,
        meddling_proxy(engine.url, alter=renamed) as url,
    ):
        found = await the_one(Severity.WARNING, Check.METRICS, url)
        assert "waiting" in found.seen


async def test_connections_that_close_before_ours() -> None:
    async with running_engine(kv_events_port=0, idle_close_s=0.1) as engine:
        found = await the_one(Severity.WARNING, Check.KEEP_ALIVE, engine.url)
        assert "VLLM_HTTP_TIMEOUT_KEEP_ALIVE" in found.remedy


async def test_connections_that_are_not_kept() -> None:
    async with (
        running_engine(kv_events_port=0) as engine,
        meddling_proxy(engine.url, reuses=False) as url,
    ):
        found = await the_one(Severity.WARNING, Check.KEEP_ALIVE, url)
        assert "after each answer" in found.seen


async def test_a_clock_that_is_wrong() -> None:
    past = {"Date": "Mon, 01 Jan 2024 00:00:00 GMT"}
    async with (
        running_engine(kv_events_port=0) as engine,
        meddling_proxy(engine.url, headers=past) as url,
    ):
        found = await the_one(Severity.WARNING, Check.CLOCK, url)
        assert "behind" in found.seen


async def test_a_proxy_that_buffers() -> None:
    async with (
        running_engine(kv_events_port=0, speed=0.5) as engine,
        meddling_proxy(engine.url, buffers=True) as url,
    ):
        found = await the_one(Severity.PROBLEM, Check.STREAMING, url)
        assert "proxy_buffering off" in found.remedy


async def test_one_engine_under_two_names() -> None:
    async with running_engine(kv_events_port=0) as engine:
        other = engine.url.replace("127.0.0.1", "localhost")
        found = await the_one(Severity.PROBLEM, Check.IDENTITY, engine.url, other)
        assert found.subject == "engine-2"
        await the_one(Severity.PROBLEM, Check.IDENTITY, engine.url, other, probing=False)


async def test_a_balancer_before_two_engines() -> None:
    async with running_engine(kv_events_port=0) as one, running_engine(kv_events_port=0) as other:
        other.engine.started_s += 60
        async with meddling_proxy(one.url, other.url) as url:
            found = await diagnosis(url)
            assert Check.IDENTITY in _told(found, Severity.PROBLEM)


async def test_the_wrong_tokenizer(tmp_path: Path) -> None:
    ours = load(write_folder(tmp_path), Pieces(0))
    async with running_engine(kv_events_port=0) as engine:
        found = telling(await diagnosis(engine.url, tokenizers={"sim": ours}))
        assert [(each.severity, each.check) for each in found] == [
            (Severity.PROBLEM, Check.TOKENIZER)
        ] * 2


async def test_another_chat_template(tmp_path: Path) -> None:
    ours = load(write_folder(tmp_path / "ours"), Pieces(0))
    theirs = load(write_folder(tmp_path / "theirs", template=INST), Pieces(0))
    async with running_engine(kv_events_port=0) as engine:
        async with meddling_proxy(engine.url, instead={"/tokenize": tokenize(theirs)}) as url:
            tokenizers = {"sim": ours}
            found = await the_one(Severity.PROBLEM, Check.TOKENIZER, url, tokenizers=tokenizers)
            assert "chat prompts" in found.seen
        async with meddling_proxy(engine.url, instead={"/tokenize": tokenize(ours)}) as url:
            assert telling(await diagnosis(url, tokenizers={"sim": ours})) == []


async def test_an_engine_that_cannot_tokenise(tmp_path: Path) -> None:
    ours = load(write_folder(tmp_path), Pieces(0))
    async with (
        running_engine(kv_events_port=0) as engine,
        meddling_proxy(engine.url, statuses={"/tokenize": 404}) as url,
    ):
        found = await diagnosis(url, tokenizers={"sim": None})
        assert _told(found, Severity.WARNING) == [Check.TOKENIZER] * 2
        found = await diagnosis(url, tokenizers={"sim": ours})
        assert _told(found, Severity.NOTE) == [Check.TOKENIZER] * 2


@pytest.mark.parametrize(
    ("statuses", "told"),
    [
        ({"/v1/models": 401}, "API key"),
        ({"/v1/models": 503}, "loading"),
        ({"/health": 503}, "/health answers 503"),
    ],
)
async def test_an_engine_that_is_not_to_be_used(statuses: Mapping[str, int], told: str) -> None:
    async with (
        running_engine(kv_events_port=0) as engine,
        meddling_proxy(engine.url, statuses=statuses) as url,
    ):
        assert told in (await the_one(Severity.PROBLEM, Check.REACHABLE, url)).seen


async def test_a_silent_engine_does_not_hold_up_the_rest() -> None:
    async def silent(served: upstreams.Served) -> None:
        await served.reader.read()

    async with upstreams.engine(silent) as engine:
        urls = (engine.url, upstreams.closed_url())
        found = await diagnosis(*urls, gateway_url=engine.url, run_s_max=0.5)
        assert [(each.subject, each.seen) for each in found.findings] == [
            ("engine-1", "it could not be examined within 0.5 s"),
            ("engine-2", "connection refused: is it running, and is this its HTTP port?"),
            ("gateway", f"{engine.url}: no answers in time"),
        ]


@pytest.mark.parametrize(("status", "severity"), [(500, "problem"), (503, "warning")])
async def test_an_engine_that_answers_no_prompt(status: int, severity: str) -> None:
    failing = {"/v1/completions": status}
    async with (
        running_engine(kv_events_port=0) as engine,
        meddling_proxy(engine.url, statuses=failing) as url,
    ):
        await the_one(Severity(severity), Check.PREFIX_HITS, url)


async def test_a_gateway_that_is_none_or_not_ready() -> None:
    async with running_engine(kv_events_port=0) as engine:
        found = await the_one(Severity.PROBLEM, Check.GATEWAY, gateway_url=engine.url)
        assert "has no /ready" in found.seen
    closed = upstreams.closed_url()
    await the_one(Severity.PROBLEM, Check.GATEWAY, gateway_url=closed)
    found = await the_one(Severity.PROBLEM, Check.GATEWAY, admin_url=closed)
    assert found.subject == "admin"


async def test_the_gateways_engines_are_examined_if_none_is_named() -> None:
    async with running_cluster(1) as cluster:
        found = await examine(Scope(admin_url=cluster.admin))
        assert telling(found) == []
        assert [engine.url for engine in found.engines] == [cluster.engines[0].url]


async def test_a_key_goes_to_the_gateway_alone() -> None:
    async with running_cluster(1, config=with_key("secret")) as cluster:
        url, api = cluster.engines[0].url, cluster.api
        note = await the_one(Severity.NOTE, Check.GATEWAY, url, gateway_url=api)
        assert "API key" in note.seen
        found = await diagnosis(url, gateway_url=api, gateway_key="secret", wanted=("sim",))
        assert telling(found) == []
        missing = await diagnosis(gateway_url=api, gateway_key="secret", wanted=("llama",))
        assert "gateway" in [each.subject for each in telling(missing)]


async def test_engines_that_the_gateway_does_not_know() -> None:
    async with running_cluster(1) as cluster, running_engine(kv_events_port=0) as other:
        found = telling(await diagnosis(other.url, admin_url=cluster.admin))
        assert [(each.severity, each.subject) for each in found] == [
            (Severity.WARNING, "engine-1"),
            (Severity.NOTE, "engine-1"),
        ]


def with_key(key: str) -> Config:
    return Config(
        listen=Listen(port=0, api_keys=(key,)),
        admin=Admin(port=0),
        limits=Limits(connections_max=100),
        log=Log(level="warning", access="none"),
    )


def _told(found: Diagnosis, severity: Severity) -> list[Check]:
    return [finding.check for finding in telling(found) if finding.severity is severity]


def _events_of(engine: RunningEngine) -> dict[str, object]:
    publisher = engine.engine.publisher
    assert publisher is not None
    return {
        "endpoint": f"tcp://127.0.0.1:{publisher.port}",
        "replay_endpoint": f"tcp://127.0.0.1:{publisher.replay_port}",
        "topic": publisher.topic,
    }


def tokenize(tokenizer: ModelTokenizer) -> Callable[[bytes], bytes]:
    """An engine's /tokenize with a tokenizer of ours."""

    def answer(body: bytes) -> bytes:
        endpoint = Endpoint.CHAT if b'"messages"' in body else Endpoint.COMPLETIONS
        ids: Sequence[int] = tokenizer.tokens(endpoint, body).tokens
        return json.dumps({"tokens": list(ids)}).encode()

    return answer
