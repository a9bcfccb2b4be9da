"""Engines are recognised by what they answer, and each lack of an answer is a fact."""

from collections.abc import Mapping

import pytest

from pointsman.core.events import ModelCard
from pointsman.core.ids import ModelName
from pointsman.engines.adapters import (
    EngineReply,
    EngineTrouble,
    EventSource,
    NotReady,
    describe,
    refresh,
)
from pointsman.engines.adapters.address import Door, one_spelling, rank_of, server_of, url_problem
from pointsman.engines.adapters.event_sources import reachable, read_event_sources, source_at
from pointsman.engines.adapters.reply import Get

VLLM_MODELS = (
    b'{"object":"list","data":[{"id":"base","owned_by":"vllm","max_model_len":4096,"parent":null},'
    b'{"id":"lora","owned_by":"vllm","parent":"base"}]}'
)
VLLM_METRICS = (
    b"process_start_time_seconds 1000.0\n"
    b'vllm:num_requests_running{engine="0"} 1.0\n'
    b'vllm:cache_config_info{block_size="32",num_gpu_blocks="512"} 1.0\n'
)
SOURCES = (
    b'{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557",'
    b'"replay_endpoint":"tcp://*:5558","topic":"kv@h:1@base"}}'
)
VLLM: Mapping[str, bytes] = {
    "/v1/models": VLLM_MODELS,
    "/metrics": VLLM_METRICS,
    "/version": b'{"version":"0.32.0"}',
    "/kv_event_sources": SOURCES,
}
LLAMACPP: Mapping[str, bytes] = {
    "/v1/models": b'{"data":[{"id":"tiny","owned_by":"llamacpp","meta":{"n_ctx_train":8192}}]}',
    "/props": b'{"default_generation_settings":{"n_ctx":1024},"total_slots":4,"build_info":"b1"}',
}


def engine(bodies: Mapping[str, bytes], **statuses: int) -> Get:
    async def get(path: str) -> EngineReply:
        status = statuses.get(path.strip("/").replace("/", "_"))
        if status is not None:
            return EngineReply(status, b"no")
        return EngineReply(200, bodies[path]) if path in bodies else EngineReply(404, b"not found")

    return get


@pytest.mark.parametrize("told", [b"0", b"65537", b"999999999999999"])
async def test_numbers_that_cannot_be_are_not_known(told: bytes) -> None:
    """Blocks of nothing cannot be cut, and a scheduler would refuse an agent that tells of them."""
    metrics = VLLM_METRICS.replace(b'="32"', b'="%b"' % told).replace(b"512", b"9" * 15)
    models = VLLM_MODELS.replace(b"4096", b"-5")
    bodies = {**VLLM, "/metrics": metrics, "/v1/models": models}
    facts = (await describe(engine(bodies), "10.0.0.7")).facts
    assert (facts.block_tokens, facts.kv_blocks) == (None, None)
    assert facts.models[0].context_tokens_max is None


@pytest.mark.parametrize("name", [b"", b"m\\nERROR all is lost", b"\\u001b[2J"])
async def test_what_is_no_name_is_left_out(name: bytes) -> None:
    models = VLLM_MODELS.replace(b'"lora"', b'"%b"' % name)
    facts = (await describe(engine({**VLLM, "/v1/models": models}), "10.0.0.7")).facts
    assert facts.models == (ModelCard(ModelName("base"), 4096),)


async def test_names_without_end_are_left_out() -> None:
    """What is told of an engine has to fit into an agent's frame."""
    long = b"x" * 1_000
    models = VLLM_MODELS.replace(b'"lora"', b'"%b"' % long).replace(
        b'"base",', b'"base","root":"%b",' % long, 1
    )
    bodies = {**VLLM, "/v1/models": models, "/version": b'{"version":"%b"}' % long}
    facts = (await describe(engine(bodies), "10.0.0.7")).facts
    assert facts.models == (ModelCard(ModelName("base"), 4096),)
    assert len(facts.version) == 100


async def test_vllm_says_everything() -> None:
    known = await describe(engine(VLLM), "10.0.0.7")
    assert known.facts.kind == "vllm"
    assert known.facts.version == "0.32.0"
    assert known.facts.block_tokens == 32
    assert known.facts.kv_blocks == 512
    assert known.facts.running_max is None
    assert known.facts.models == (
        ModelCard(ModelName("base"), 4096),
        ModelCard(ModelName("lora"), None, ModelName("base")),
    )
    assert known.sources == (
        EventSource("tcp://10.0.0.7:5557", "tcp://10.0.0.7:5558", "kv@h:1@base"),
    )
    assert known.page.process_start_time_s == 1_000.0


async def test_llamacpp_without_metrics_is_recognised_by_its_props() -> None:
    known = await describe(engine(LLAMACPP), "h")
    assert known.facts.kind == "llamacpp"
    assert known.facts.version == "b1"
    assert known.facts.models == (ModelCard(ModelName("tiny"), 1024),)
    assert known.facts.running_max == 4
    assert known.facts.block_tokens is None
    assert known.sources == ()


@pytest.mark.parametrize("slots", ["0", "-1", "null"])
async def test_slots_that_are_none_bound_nothing(slots: str) -> None:
    props = b'{"default_generation_settings":{"n_ctx":1024},"total_slots":%s}' % slots.encode()
    known = await describe(engine({**LLAMACPP, "/props": props}), "h")
    assert known.facts.running_max is None


async def test_a_plain_openai_server_is_unknown_and_good_enough() -> None:
    known = await describe(engine({"/v1/models": b'{"data":[{"id":"m"}]}'}), "h")
    assert known.facts.kind == "unknown"
    assert known.facts.models == (ModelCard(ModelName("m")),)


@pytest.mark.parametrize(
    ("get", "cause"),
    [
        (engine(VLLM, v1_models=503), "still loading"),
        (engine(VLLM, v1_models=401), "API key"),
        (engine(VLLM, v1_models=404), "is this an inference engine"),
        (engine({"/v1/models": b"<html>"}), "no list of models"),
        (engine({"/v1/models": b'{"data":[]}'}), "lists no model"),
    ],
)
async def test_what_cannot_serve_is_named(get: Get, cause: str) -> None:
    with pytest.raises(NotReady, match=cause):
        await describe(get, "h")


async def test_side_routes_may_fail() -> None:
    async def get(path: str) -> EngineReply:
        if path == "/v1/models":
            return EngineReply(200, VLLM_MODELS)
        raise EngineTrouble("slow", timed_out=True)

    known = await describe(get, "h")
    assert known.facts.kind == "vllm"
    assert known.facts.kv_blocks is None


async def test_a_refresh_sees_adapters_and_asks_for_nothing_else() -> None:
    """production-stack#700: an adapter loaded at run time appears."""
    known = await describe(engine(VLLM), "h")
    more = VLLM_MODELS.replace(b"]}", b',{"id":"late","parent":"base"}]}')
    fresh = await refresh(engine({"/v1/models": more}), known)
    assert [card.name for card in fresh.facts.models] == ["base", "lora", "late"]
    assert fresh.facts.kv_blocks == 512


async def test_a_refresh_sees_the_slots_of_llamacpp() -> None:
    known = await describe(engine(LLAMACPP), "h")
    assert await refresh(engine(LLAMACPP), known) == known
    props = LLAMACPP["/props"].replace(b'_slots":4', b'_slots":2').replace(b"1024", b"2048")
    facts = (await refresh(engine({**LLAMACPP, "/props": props}), known)).facts
    assert (facts.running_max, facts.models[0].context_tokens_max) == (2, 2_048)


async def test_a_refresh_without_an_answer_keeps_what_was_known() -> None:
    known = await describe(engine(LLAMACPP), "h")
    assert await refresh(engine(LLAMACPP, props=503), known) == known


@pytest.mark.parametrize("body", [b"", b"[]", b'{"0":{"publisher":"null","endpoint":"x"}}', b"{}"])
def test_no_event_sources(body: bytes) -> None:
    assert read_event_sources(body, "h") == ()


def test_each_rank_publishes_by_itself() -> None:
    body = b'{"0":{"endpoint":"tcp://*:5557"},"1":{"endpoint":"tcp://*:5558"}}'
    first, second = read_event_sources(body, "h")
    assert read_event_sources(body, "h", 0) == (first,)
    assert read_event_sources(body, "h", 1) == (second,)
    assert read_event_sources(body, "h", 2) == ()


@pytest.mark.parametrize(
    ("announced", "topic", "own"),
    [
        (None, "", True),
        (None, "kv@10.0.0.1:8000@m", True),
        (None, "kv@10.0.0.1:8000@other", False),
        (None, "metrics@m", False),
        ("kv@a@m", "kv@a@m", True),
        ("kv@a@m", "kv@b@m", False),
        ("kv@a@m", "", False),
        ("", "", True),
        ("", "kv@a@m", False),
    ],
)
def test_a_topic_is_the_one_announced_or_else_one_of_its_models(
    announced: str | None, topic: str, own: bool
) -> None:
    source = EventSource("tcp://127.0.0.1:5557", None, announced)
    assert source.owns(topic, (ModelCard(ModelName("m")),)) is own


def test_a_publisher_that_nobody_tells_of_is_replayed_where_the_first_is() -> None:
    first = EventSource("tcp://e:1", "tcp://e:2", "kv@e@m")
    assert source_at("tcp://e:1", (first,)) is first
    assert source_at("tcp://e:9", (first,)) == EventSource("tcp://e:9", "tcp://e:2")
    assert source_at("tcp://e:9", ()) == EventSource("tcp://e:9")


async def test_only_a_rank_that_is_there_is_described() -> None:
    assert (await describe(engine(VLLM), "h", 0)).facts == (await describe(engine(VLLM), "h")).facts
    with pytest.raises(NotReady, match="no data-parallel rank 1"):
        await describe(engine(VLLM), "h", 1)
    with pytest.raises(NotReady, match="no data-parallel rank 0"):
        await describe(engine(LLAMACPP), "h", 0)


@pytest.mark.parametrize(
    ("url", "server", "rank"),
    [
        ("http://gpu-1:8000#2", "http://gpu-1:8000", 2),
        ("http://gpu-1:8000/#0", "http://gpu-1:8000", 0),
        ("http://gpu-1:8000/", "http://gpu-1:8000", None),
    ],
)
def test_an_address_is_a_server_and_maybe_a_rank(url: str, server: str, rank: int | None) -> None:
    assert (url_problem(url), server_of(url), rank_of(url)) == ("", server, rank)


@pytest.mark.parametrize(
    ("url", "spelled"),
    [
        ("HTTP://GPU-1:8000/", "http://gpu-1:8000"),
        ("http://gpu-1:80", "http://gpu-1"),
        ("http://gpu-1:8000/#02", "http://gpu-1:8000#2"),
        ("http://[FD00:0:0::0007]:8000", "http://[fd00::7]:8000"),
        ("http://bücher.example", "http://xn--bcher-kva.example"),
        ("http://gpu-1:8000/v1", "http://gpu-1:8000/v1"),  # no engine's, which is said elsewhere
        ("http://u:P@gpu-1", "http://u:P@gpu-1"),
        ("http://gpu-1:port", "http://gpu-1:port"),
        ("http://[::1", "http://[::1"),
        ("http://gpu-1#two", "http://gpu-1#two"),
    ],
)
def test_an_address_has_one_spelling(url: str, spelled: str) -> None:
    assert one_spelling(url) == spelled
    assert one_spelling(spelled) == spelled


@pytest.mark.parametrize(
    "url", ["http://gpu 1:8000", "http://gpu-1\n:8000", "http://gpu-1\x00:8000"]
)
def test_no_host_has_blanks_in_its_name(url: str) -> None:
    assert "names no host" in url_problem(url)


def test_an_address_may_be_of_any_length() -> None:
    """A path that is too long for the system is no folder, and no bug."""
    assert "has a path" in url_problem("http://gpu-1:8000/" + "a" * 5_000)
    assert "has no scheme" in url_problem("a" * 5_000)


@pytest.mark.parametrize("fragment", ["two", "-1", "1.5", "99999"])
def test_what_follows_the_number_sign_is_a_rank(fragment: str) -> None:
    assert "data-parallel rank" in url_problem(f"http://gpu-1:8000#{fragment}")


@pytest.mark.parametrize(
    ("endpoint", "host", "expected"),
    [
        ("tcp://*:5557", "10.0.0.7", "tcp://10.0.0.7:5557"),
        ("tcp://0.0.0.0:5557", "h", "tcp://h:5557"),
        ("tcp://[::]:5557", "fd00::7", "tcp://[fd00::7]:5557"),
        ("tcp://10.1.1.1:5557", "h", "tcp://10.1.1.1:5557"),
        ("ipc:///tmp/kv", "h", "ipc:///tmp/kv"),
    ],
)
def test_any_address_is_the_engine_s_host(endpoint: str, host: str, expected: str) -> None:
    assert reachable(endpoint, host) == expected


@pytest.mark.parametrize(
    ("host", "url", "is_met"),
    [
        ("127.0.0.1", "http://localhost:8080#1", True),
        ("0.0.0.0", "http://[::1]:8080", True),
        ("127.0.0.1", "http://0.0.0.0:8080", True),  # where this machine is reached, too
        ("10.0.0.7", "http://10.0.0.7:8080", True),
        ("10.0.0.7", "http://127.0.0.1:8080", False),
        ("127.0.0.1", "http://127.0.0.1:8081", False),
        ("0.0.0.0", "http://gpu-1:8080", False),
    ],
)
def test_an_address_leads_to_the_gateway_itself(host: str, url: str, is_met: bool) -> None:
    assert Door("listen.port", host, 8080).is_met_at(url) == is_met
