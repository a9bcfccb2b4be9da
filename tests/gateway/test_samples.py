"""Which requests are kept to warm up nodes with, and how they are replayed."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.core.blocks import Prompt
from pointsman.core.events import WarmUp
from pointsman.core.ids import BlockHash, ModelName, NodeId, NodeName, RequestId
from pointsman.core.request import Request
from pointsman.core.scheme import TEXT_SCHEME, Namespace, Scheme, Unit
from pointsman.gateway.replays import shortened
from pointsman.gateway.samples import HOTTEST_S, LOOK_S, Samples
from pointsman.wire.endpoints import Endpoint
from tests.gateway.conftest import rig
from tests.support.upstreams import answer_ok, closed_url, silent

TOKENS = Scheme(Unit.TOKENS, 16)
PREFIX = b"p" * 1_024
BODY = b'{"model":"m","prompt":"p"}'


def request(text: bytes, tokens: range | None = None) -> Request:
    prompt = Prompt(Namespace("m"), text=text, tokens=tokens)
    return Request(RequestId("r"), ModelName("m"), prompt)


HOT = request(PREFIX).prompt.chain(TEXT_SCHEME)[1]


class Offers:
    """Samples, and a clock that lets each offer be looked at."""

    def __init__(self, *hot: BlockHash, prefixes_max: int = 4, bytes_max: int = 10_000) -> None:
        self.hot = list(hot)
        self.now_s = 100.0
        self.samples = Samples(lambda count: self.hot[:count], lambda: (TEXT_SCHEME, TOKENS))
        self.samples.apply(prefixes_max, bytes_max)

    def offer(
        self,
        body: bytes,
        *,
        text: bytes = PREFIX,
        tokens: range | None = None,
        endpoint: Endpoint = Endpoint.CHAT,
        after_s: float = 2 * HOTTEST_S,
    ) -> None:
        self.now_s += after_s
        self.samples.offer(request(text, tokens), endpoint, b"/v1/x", body, self.now_s)


def test_one_request_is_kept_for_a_hot_prefix_the_shortest() -> None:
    offers = Offers(HOT)
    for body in (b"long" * 10, b"short", b"longer"):
        offers.offer(body)
    kept = offers.samples.get(HOT)
    assert kept is not None
    assert (kept.body, kept.target) == (b"short", b"/v1/x")
    assert (len(offers.samples), offers.samples.bytes) == (1, 5)


def test_prompts_known_as_tokens_are_found_by_their_tokens() -> None:
    block = request(b"", range(64)).prompt.chain(TOKENS)[1]
    offers = Offers(block)
    offers.offer(b"body", tokens=range(80))
    assert offers.samples.get(block) is not None


def test_cold_prefixes_and_other_routes_are_not_kept() -> None:
    offers = Offers(HOT)
    offers.offer(b"body", text=b"q" * 1_024)
    offers.offer(b"body", endpoint=Endpoint.EMBEDDINGS)
    assert len(offers.samples) == 0


def test_a_prefix_that_cools_is_forgotten() -> None:
    offers = Offers(HOT)
    offers.offer(b"body")
    offers.hot = []
    offers.offer(b"body")
    assert (len(offers.samples), offers.samples.bytes) == (0, 0)


def test_looks_are_rare() -> None:
    offers = Offers(HOT)
    offers.offer(b"longer")
    offers.offer(b"short", after_s=LOOK_S / 2)
    kept = offers.samples.get(HOT)
    assert kept is not None
    assert kept.body == b"longer"


def test_switched_off_keeps_nothing_and_forgets_what_there_was() -> None:
    offers = Offers(HOT)
    offers.offer(b"body")
    offers.samples.apply(0, 10_000)
    assert len(offers.samples) == 0
    offers.offer(b"body")
    assert len(offers.samples) == 0


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 60)), max_size=30))
def test_bytes_stay_within_their_bound(bodies: list[tuple[int, int]]) -> None:
    texts = [bytes([97 + i]) * 1_024 for i in range(6)]
    hot = [request(text).prompt.chain(TEXT_SCHEME)[1] for text in texts]
    offers = Offers(*hot, prefixes_max=6, bytes_max=100)
    for which, size in bodies:
        offers.offer(b"x" * size, text=texts[which])
        assert offers.samples.bytes <= 100
        assert len(offers.samples) <= 6


def test_a_replay_asks_for_one_token_in_one_piece() -> None:
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "hé"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_completion_tokens": 500,
        "n": 3,
        "tools": [{"type": "function"}],
    }
    assert json.loads(shortened(json.dumps(body).encode())) == {
        "model": "m",
        "messages": [{"role": "user", "content": "hé"}],
        "tools": [{"type": "function"}],
        "max_tokens": 1,
        "n": 1,
    }


def test_what_is_not_routed_by_is_replayed_as_it_stands() -> None:
    """A client's number that no float holds must not spoil the warm-up of a node."""
    body = b'{"model":"m","prompt":"p","seed":1e999,"n":7}'
    assert shortened(body) == b'{"model":"m","prompt":"p","seed":1e999,"n":1,"max_tokens":1}'


# --- over the wire ------------------------------------------------------------------------


def kept(**bodies: bytes) -> Samples:
    """A body for each prefix, or one for HOT."""
    texts = {name.encode() * 1_024: body for name, body in bodies.items()} or {PREFIX: BODY}
    offers = Offers(*map(hot, texts), prefixes_max=4)
    for text, body in texts.items():
        offers.offer(body, text=text, endpoint=Endpoint.COMPLETIONS)
    return offers.samples


def hot(text: bytes) -> BlockHash:
    return request(text).prompt.chain(TEXT_SCHEME)[1]


def effect(url: str, blocks: tuple[BlockHash, ...], *, within_s: float) -> WarmUp:
    return WarmUp(NodeName("n"), NodeId(1), url, blocks, within_s)


async def test_kept_requests_are_replayed_and_each_end_is_told_once() -> None:
    told: list[Prompt | None] = []
    async with rig(answer_ok, samples=kept()) as it:
        cold = BlockHash(1)
        it.gateway.warm_up(effect(it.engine.url, (cold, HOT), within_s=5.0), told.append)
        await it.until(lambda: None in told)
        (served,) = it.engine.served
        assert json.loads(served.body) == {"model": "m", "prompt": "p", "max_tokens": 1, "n": 1}
        assert len(told) == 2
        assert told[0] is not None
        assert told[0].text == PREFIX


@pytest.mark.parametrize("oddity", [b'"x": 1e999', b'"x": "\xff"', b'"\xff": 1'])
async def test_one_body_that_is_odd_spoils_no_warm_up(oddity: bytes) -> None:
    """Routing passes over what it does not need; so may the first be replayed over a connection
    that is there already."""
    told: list[Prompt | None] = []
    samples = kept(a=BODY, b=BODY[:-1] + b"," + oddity + b"}", c=BODY)
    blocks = tuple(hot(text * 1_024) for text in (b"a", b"b", b"c"))
    async with rig(answer_ok, samples=samples) as it:
        it.gateway.warm_up(effect(it.engine.url, blocks, within_s=5.0), told.append)
        await it.until(lambda: None in told)
        assert {prompt.text[:1] for prompt in told if prompt is not None} >= {b"a", b"c"}
        assert it.engine.connections == 1


@pytest.mark.parametrize("answers", [False, True])
async def test_an_engine_that_cannot_be_warmed_up_is_given_up(answers: bool) -> None:
    told: list[Prompt | None] = []
    async with rig(silent, samples=kept()) as it:
        url = it.engine.url if answers else closed_url()
        it.gateway.warm_up(effect(url, (HOT,), within_s=0.1), told.append)
        await it.until(lambda: bool(told))
        assert told == [None]


async def test_a_gateway_that_stops_ends_its_replays() -> None:
    told: list[Prompt | None] = []
    async with rig(silent, samples=kept()) as it:
        it.gateway.warm_up(effect(it.engine.url, (HOT,), within_s=600.0), told.append)
        await it.until(lambda: bool(it.engine.served))
        await it.gateway.stop()
        assert told == [None]
