"""Prompts share exactly the blocks that the trace says, whatever an engine's block size."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from pointsman.core.ids import RequestId
from pointsman.core.node import BLOCK_TOKENS_DEFAULT
from pointsman.core.scheme import Scheme, Unit
from pointsman.sim.prompts import Prompts, block_tokens_of
from pointsman.traffic.request import TrafficRequest


def request(blocks: tuple[int, ...], size: int, own: int = 0) -> TrafficRequest:
    return TrafficRequest(
        at_s=0.0,
        input_tokens=max(1, len(blocks) * size + own),
        output_tokens=3,
        block_ids=blocks,
        block_tokens=size,
        session="s",
        tenant="t",
        priority=7,
    )


def common(one: Sequence[int], two: Sequence[int]) -> int:
    count = 0
    for left, right in zip(one, two, strict=False):
        if left != right:
            break
        count += 1
    return count


CHAINS = st.lists(st.integers(0, 3), max_size=5).map(
    lambda path: tuple(int("1" + "".join(map(str, path[: end + 1]))) for end in range(len(path)))
)  # an id names its whole way, so equal ids have equal predecessors


@given(
    CHAINS, CHAINS, st.sampled_from([1, 2, 4, 8, 32]), st.integers(-31, 100), st.integers(0, 100)
)
def test_two_prompts_share_their_common_blocks(
    one: tuple[int, ...], two: tuple[int, ...], size: int, own: int, other: int
) -> None:
    """Also of a last block that the prompt does not fill: only full pieces count."""
    stream = [request(one, 32, own if one else abs(own)), request(two, 32, other)]
    prompts = Prompts(stream, [size])
    chains = [prompts.chain(index, size) for index in range(2)]
    for asked, chain in zip(stream, chains, strict=True):
        assert len(chain) == asked.input_tokens // size
        assert len(set(chain)) == len(chain)
    named = min(common(one, two) * 32 // size, *map(len, chains))
    assert common(*chains) == named


def test_what_has_no_name_is_the_requests_own_also_when_it_comes_again() -> None:
    stream = [request((), 0, 100), request((), 0, 100)]
    prompts = Prompts(stream, [16, 8])
    assert common(prompts.chain(0, 16), prompts.chain(1, 16)) == 0
    assert prompts.chain(0, 16) == prompts.chain(0, 16)
    assert not set(prompts.chain(0, 16)) & set(prompts.chain(0, 8))


def test_the_scheduler_gets_every_chain_and_the_length_only_if_the_client_tells() -> None:
    prompts = Prompts([request((4, 5), 32, 7)], [16, 32])
    for bounds_output, expected in ((True, 3), (False, None)):
        made = prompts.request(0, RequestId("x"), bounds_output=bounds_output)
        assert made.max_output_tokens == expected
        assert made.prompt.token_count == 71
        assert (made.session, made.tenant, made.priority) == ("s", "t", 7)
        for size in (16, 32):
            chain = made.prompt.chain(Scheme(Unit.TOKENS, size))
            assert list(chain) == prompts.chain(0, size)


def test_traffic_without_names_fits_any_size() -> None:
    stream = [request((), 0, 100)]
    assert block_tokens_of(stream) == BLOCK_TOKENS_DEFAULT
    assert len(Prompts(stream, [12]).chain(0, 12)) == 8
    assert len(Prompts(stream, [50]).chain(0, 50)) == 2
