"""Which prompts share block hashes, and how many: the start that agrees, in one namespace."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.core.blocks import Prompt, root_hash
from pointsman.core.ids import BlockHash
from pointsman.core.scheme import TEXT_SCHEME, Namespace, Scheme, Unit

SIXTEEN = Scheme(Unit.TOKENS, 16)

tokens = st.lists(st.integers(0, 3), max_size=80)


def hashes(ids: list[int], scheme: Scheme = SIXTEEN, **namespace: str) -> list[BlockHash]:
    named = Namespace(**{"model": "m", **namespace})
    return Prompt(named, tokens=array("q", ids)).chain(scheme)


def shared(one: list[BlockHash], other: list[BlockHash]) -> int:
    """How many leading hashes agree; no hash may agree behind one that does not."""
    count = len([1 for a, b in zip(one, other, strict=False) if a == b])
    assert one[:count] == other[:count]
    assert not set(one[count:]) & set(other[count:])
    return count


@given(tokens, tokens, tokens)
def test_prompts_share_the_whole_blocks_of_their_common_start(
    start: list[int], one: list[int], other: list[int]
) -> None:
    first, second = start + one, start + other
    same = 0
    while same < min(len(first), len(second)) and first[same] == second[same]:
        same += 1
    assert shared(hashes(first), hashes(second)) == same // 16


def test_token_prompts_of_one_length_are_told_apart_by_their_ids() -> None:
    """vllm-project/router#237: prompts were keyed by how many ids they have."""
    one, other = list(range(64)), list(range(64, 128))
    assert shared(hashes(one), hashes(other)) == 0
    assert shared(hashes(one), hashes([*one[:40], *other[40:]])) == 2


def test_an_id_is_hashed_whole() -> None:
    """Ids above 16 or 32 bits must not be cut: [1] and [65537] are two tokens."""
    for big in (1 << 16, 1 << 32, 1 << 40):
        assert shared(hashes([1] * 16), hashes([big + 1] * 16)) == 0
    with pytest.raises(OverflowError):
        hashes([1 << 63] * 16)


def test_models_adapters_and_salts_share_nothing() -> None:
    """TensorRT-LLM#18156: the adapter was dropped, the salt hashed otherwise than by the engine."""
    ids = list(range(48))
    namespaces = [
        {},
        {"model": "other"},
        {"model": "adapter-of-m"},
        {"salt": "s"},
        {"salt": "t"},
        {"model": "other", "salt": "s"},
        {"model": "ms", "salt": ""},  # not "m" salted with "s"
    ]
    chains = [hashes(ids, SIXTEEN, **namespace) for namespace in namespaces]
    assert len({chain[0] for chain in chains}) == len(namespaces)
    for at, chain in enumerate(chains):
        assert all(shared(chain, other) == 0 for other in chains[:at])


def test_schemes_share_nothing() -> None:
    """One dict indexes them all: a block of 32 tokens is not the second one of 16."""
    ids = list(range(96))
    sizes = [hashes(ids, Scheme(Unit.TOKENS, size)) for size in (16, 32, 48)]
    assert len({block for chain in sizes for block in chain}) == 6 + 3 + 2
    roots = {root_hash(Namespace("m"), scheme) for scheme in (SIXTEEN, Scheme(Unit.BYTES, 16))}
    assert len(roots) == 2


def test_a_prompt_without_ids_has_no_token_blocks() -> None:
    prompt = Prompt(Namespace("m"), text=b"x" * 2_000)
    assert prompt.chain(SIXTEEN) == []
    assert len(prompt.chain(TEXT_SCHEME)) == 2_000 // TEXT_SCHEME.size


@pytest.mark.parametrize("count", [0, 1, 15])
def test_less_than_a_block_has_no_hash(count: int) -> None:
    assert hashes([7] * count) == []
