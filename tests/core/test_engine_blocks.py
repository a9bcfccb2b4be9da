"""An engine's KV events become our own chain: recorded ones of vLLM 0.32, and made ones."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.core.blocks import Prompt
from pointsman.core.cache_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    CacheChange,
    EngineHash,
)
from pointsman.core.engine_blocks import EngineBlocks
from pointsman.core.ids import BlockHash
from pointsman.core.scheme import Namespace, Scheme, Unit

RECORDED = Path(__file__).parent / "data" / "kv_events_vllm.jsonl"
MODEL = "tiny"


def recorded(*, as_bytes: bool) -> list[CacheChange]:
    """The recorded events, hashes as sent by default or as the digest's bytes."""

    def named(number: int | None) -> Any:
        return b"\xff" * 24 + number.to_bytes(8) if as_bytes and number is not None else number

    changes: list[CacheChange] = []
    for line in RECORDED.read_text().splitlines():
        for event in json.loads(line)[1]:
            hashes = tuple(named(number) for number in event.get("block_hashes", ()))
            if event["type"] == "BlockStored":
                changes.append(
                    BlockStored(
                        block_hashes=hashes,
                        parent_block_hash=named(event["parent_block_hash"]),
                        token_ids=tuple(event["token_ids"]),
                        block_size=event["block_size"],
                        medium=event["medium"],
                        lora_name=event["lora_name"],
                        extra_keys=tuple(event["extra_keys"]),
                    )
                )
            elif event["type"] == "BlockRemoved":
                changes.append(BlockRemoved(hashes, event["medium"]))
            else:
                changes.append(AllBlocksCleared())
    return changes


def prompt_chain(
    tokens: Sequence[int], size: int, *, model: str = MODEL, salt: str = ""
) -> list[BlockHash]:
    return Prompt(Namespace(model, salt), tokens=tokens).chain(Scheme(Unit.TOKENS, size))


def stored(
    hashes: Sequence[EngineHash],
    tokens: Sequence[int],
    parent: EngineHash | None = None,
    *,
    medium: str | None = None,
    lora_name: str | None = None,
    extra_keys: Sequence[Any] | None = None,
) -> BlockStored:
    return BlockStored(
        tuple(hashes),
        parent,
        tuple(tokens),
        len(tokens) // len(hashes),
        medium=medium,
        lora_name=lora_name,
        extra_keys=None if extra_keys is None else tuple(extra_keys),
    )


@pytest.mark.parametrize("as_bytes", [False, True])
def test_recorded_events_give_the_chain_of_the_prompt(as_bytes: bool) -> None:
    first, second, sibling, salted, *_ = recorded(as_bytes=as_bytes)
    assert isinstance(first, BlockStored)
    assert isinstance(second, BlockStored)
    assert isinstance(sibling, BlockStored)
    assert isinstance(salted, BlockStored)
    engine = EngineBlocks(MODEL, 100)
    own = engine.stored(first) + engine.stored(second)
    assert own == prompt_chain([*first.token_ids, *second.token_ids], 32)
    assert (
        engine.stored(sibling)[-1] == (prompt_chain([*first.token_ids, *sibling.token_ids], 32)[-1])
    )
    assert engine.stored(salted) == prompt_chain(salted.token_ids, 32, salt="s3cret")


@pytest.mark.parametrize("as_bytes", [False, True])
def test_recorded_removals_find_what_was_stored(as_bytes: bool) -> None:
    engine = EngineBlocks(MODEL, 1_000)
    held: dict[BlockHash, None] = {}
    for change in recorded(as_bytes=as_bytes):
        match change:
            case BlockStored():
                held |= dict.fromkeys(engine.stored(change))
            case BlockRemoved():
                for block in engine.removed(change):
                    del held[block]
            case AllBlocksCleared():
                engine.cleared()
                held.clear()
        engine.check()
        assert all(engine.holds(block) for block in held)
    assert len(held) == len(engine) == 1


def test_an_adapter_has_its_own_chain_and_its_name_is_no_salt() -> None:
    engine = EngineBlocks(MODEL, 10)
    own = engine.stored(stored([1, 2], range(8), lora_name="sql", extra_keys=[["sql"], ["sql"]]))
    assert own == prompt_chain(range(8), 4, model="sql")
    salted = stored([3], range(4), lora_name="sql", extra_keys=[["sql", "s3cret"]])
    assert engine.stored(salted) == prompt_chain(range(4), 4, model="sql", salt="s3cret")


@pytest.mark.parametrize(
    "extra_keys",
    [
        [None, ["image-a"], None],
        [None, [["image-a", 2]], None],
        [["image-a", "s3cret"], None, None],
        [["image-a"]],
        [None, "image-a", None],
    ],
)
def test_an_image_in_the_prompt_keeps_its_blocks_apart_from_the_text(extra_keys: Any) -> None:
    engine = EngineBlocks(MODEL, 10)
    text = prompt_chain(range(12), 4)
    seen = engine.stored(stored([1, 2, 3], range(12), extra_keys=extra_keys))
    from_where = next(n for n, keys in enumerate(extra_keys) if keys)
    assert seen[:from_where] == text[:from_where]
    assert len(seen) == 3
    assert not set(seen[from_where:]) & set(text)


def test_two_images_with_the_same_placeholder_tokens_differ() -> None:
    engine = EngineBlocks(MODEL, 10)
    one, other = (
        engine.stored(stored([number], range(4), parent, extra_keys=[[digest]]))
        for number, digest, parent in ((1, "image-a", None), (2, "image-b", None))
    )
    assert one != other


def test_blocks_of_an_unknown_parent_are_counted_and_their_removal_is_harmless() -> None:
    engine = EngineBlocks(MODEL, 10)
    assert engine.stored(stored([2, 3], range(8), parent=1)) == []
    assert engine.stored(stored([4], range(4), parent=3)) == [], "nor do their children have one"
    assert engine.orphans == 3
    assert engine.removed(BlockRemoved((2,))) == []


def test_a_block_stored_twice_is_gone_when_both_copies_are() -> None:
    engine = EngineBlocks(MODEL, 10)
    event = stored([7], range(4))
    assert engine.stored(event) == engine.stored(event) == prompt_chain(range(4), 4)
    assert engine.removed(BlockRemoved((7,))) == []
    assert engine.removed(BlockRemoved((7,))) == prompt_chain(range(4), 4)
    assert engine.removed(BlockRemoved((7,))) == []


def test_two_names_of_one_block_hold_it_until_both_are_removed() -> None:
    engine = EngineBlocks(MODEL, 10)
    [block] = engine.stored(stored([7], range(4)))
    assert engine.stored(stored([8], range(4))) == [block]
    assert engine.removed(BlockRemoved((7,))) == []
    assert engine.holds(block)
    assert engine.removed(BlockRemoved((8,))) == [block]
    assert not engine.holds(block)


def test_other_tiers_leave_the_gpu_alone() -> None:
    engine = EngineBlocks(MODEL, 10)
    [block] = engine.stored(stored([7], range(4), medium="GPU"))
    assert engine.stored(stored([7], range(4), medium="CPU")) == []
    assert engine.removed(BlockRemoved((7,), "CPU")) == []
    assert engine.holds(block)
    assert engine.removed(BlockRemoved((7,), "GPU")) == [block]


def test_what_is_beyond_the_bound_is_left_out_and_counted() -> None:
    engine = EngineBlocks(MODEL, 2)
    assert engine.stored(stored([1, 2, 3, 4], range(16))) == prompt_chain(range(8), 4)
    assert (len(engine), engine.overflows) == (2, 2)
    engine.removed(BlockRemoved((2,)))
    assert len(engine.stored(stored([2], range(4, 8), parent=1))) == 1


@pytest.mark.parametrize(
    "event",
    [
        BlockStored((1, 2), None, tuple(range(7)), 4),
        BlockStored((1,), None, (), 0),
        BlockStored((1,), None, (2**64,), 1),
        BlockStored((), None, (), 4),
    ],
)
def test_events_that_do_not_add_up_are_counted_not_believed(event: BlockStored) -> None:
    engine = EngineBlocks(MODEL, 10)
    assert engine.stored(event) == []
    assert engine.malformed == len(event.block_hashes)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=60
    )
)
def test_holding_is_what_was_stored_and_not_removed(steps: list[tuple[bool, int, int]]) -> None:
    """The twin counts each name; a name here is a token, so that equal names are equal blocks."""
    engine = EngineBlocks(MODEL, 100)
    copies: dict[int, int] = {}
    for is_stored, token, alias in steps:
        name = token * 10 + alias
        if is_stored:
            engine.stored(stored([name], [token]))
            copies[name] = copies.get(name, 0) + 1
        else:
            engine.removed(BlockRemoved((name,)))
            copies[name] = max(0, copies.get(name, 0) - 1)
        engine.check()
        for one in range(6):
            [block] = prompt_chain([one], 1)
            assert engine.holds(block) == any(
                count for other, count in copies.items() if other // 10 == one
            )
