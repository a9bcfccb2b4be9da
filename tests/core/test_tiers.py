"""Blocks that engines keep outside of the GPU's memory: found, priced, and forgotten in time."""

from array import array
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import msgpack

from pointsman.core.cache_events import AllBlocksCleared
from pointsman.core.events import CacheChanged, IndexTrust, IndexTrusted
from pointsman.core.limits import RESTORE_SHARE_HOST, RESTORE_SHARE_STORAGE
from pointsman.core.row import Row
from pointsman.wire.engine_events import decode_batch
from tests.support.driver import Driver, request, teach

BLOCK = 16
BLOCKS = 32
TOKENS = array("q", range(BLOCK * BLOCKS + 1))


def ready(*names: str) -> Driver:
    driver = Driver()
    driver.ready(*names)
    for name in names:
        driver.step(IndexTrusted(driver.ids[name], IndexTrust.EXACT))
    for node in driver.nodes:
        teach(node.calibration)
    return driver


def stored(names: Sequence[int], *, medium: str, parent: int | None = None) -> dict[str, Any]:
    """As vLLM tells of the prompt's blocks, which are named 1, 2, ...; a copy in another tier
    as its OffloadingConnector does, with all of it."""
    first = names[0] - 1
    return {
        "type": "BlockStored",
        "block_hashes": names,
        "parent_block_hash": first or None if parent is None else parent,
        "token_ids": list(TOKENS[first * BLOCK : names[-1] * BLOCK]),
        "block_size": BLOCK,
        "lora_id": None,
        "medium": medium,
        "lora_name": None,
        "locality": "LOCAL",
    }


def by_name(names: Sequence[int], *, medium: str) -> dict[str, Any]:
    """What it tells of a copy whose block it does not remember: a placeholder."""
    told = stored(names, medium=medium)
    return told | {"parent_block_hash": None, "token_ids": [], "block_size": 0}


def removed(names: Sequence[int], *, medium: str) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": names, "medium": medium}


def tell(driver: Driver, *events: dict[str, Any]) -> None:
    batch = decode_batch(msgpack.encode([1.0, events, 0]))
    assert batch.skipped == 0
    driver.step(CacheChanged(driver.ids["a"], batch.events))


def found(driver: Driver, node: str = "a") -> Row:
    decision = driver.scheduler.explain(request("x", "", tokens=TOKENS), driver.now_s)
    [row] = [row for row in decision.candidates if row.node == node]
    return row


ALL = tuple(range(1, BLOCKS + 1))
HALF = tuple(range(1, BLOCKS // 2 + 1))
REST = tuple(range(BLOCKS // 2 + 1, BLOCKS + 1))


@pytest.mark.parametrize("copy", [stored, by_name])
def test_what_has_left_the_gpu_is_found_below(copy: Any) -> None:
    driver = ready("a")
    tell(driver, stored(ALL, medium="GPU"), copy(ALL, medium="CPU"))
    assert (found(driver).hit_tokens, found(driver).restored_tokens) == (512, 0)
    tell(driver, removed(REST, medium="GPU"))
    assert (found(driver).hit_tokens, found(driver).restored_tokens) == (512, 256)
    tell(driver, removed(HALF, medium="GPU"))
    assert (found(driver).hit_tokens, found(driver).restored_tokens) == (512, 512)
    tell(driver, removed(REST, medium="CPU"))
    assert (found(driver).hit_tokens, found(driver).restored_tokens) == (256, 256)


def test_what_was_only_moved_goes_on_below() -> None:
    """An engine that copies what it evicts has the beginning above and the end below."""
    driver = ready("a")
    tell(driver, stored(ALL, medium="GPU"))
    tell(driver, by_name(REST, medium="CPU"), removed(REST, medium="GPU"))
    assert (found(driver).hit_tokens, found(driver).restored_tokens) == (512, 256)


def test_a_copy_of_what_nobody_has_told_of_is_not_believed() -> None:
    driver = ready("a")
    tell(driver, by_name([7, 8], medium="CPU"), stored([9], medium="CPU"))
    assert found(driver).hit_tokens == 0
    tell(driver, removed([7, 8, 9], medium="CPU"))


@pytest.mark.parametrize(
    ("medium", "share"), [("CPU", RESTORE_SHARE_HOST), ("STORAGE", RESTORE_SHARE_STORAGE)]
)
def test_restoring_costs_a_share_of_computing(medium: str, share: float) -> None:
    driver = ready("a", "b")
    tell(driver, stored(ALL, medium="GPU"), stored(ALL, medium=medium), removed(ALL, medium="GPU"))
    here, there = found(driver, "a"), found(driver, "b")
    [node, _] = driver.nodes
    restoring_s = 512 * share * node.speeds.prefill_s_per_token
    assert here.work_s == pytest.approx(
        node.speeds.prefill_s_per_token
        + here.attention * node.speeds.attention_s_per_token2
        + restoring_s
    )
    assert here.work_s < there.work_s
    assert here.kv_blocks == there.kv_blocks, "restored blocks need room, too"
    assert driver.serve("r-1", "", tokens=TOKENS) == "a"


def test_a_cleared_cache_has_nothing_below_either() -> None:
    driver = ready("a")
    tell(driver, stored(ALL, medium="GPU"), stored(ALL, medium="CPU"))
    driver.step(CacheChanged(driver.ids["a"], (AllBlocksCleared(),)))
    assert found(driver).hit_tokens == 0
    driver.scheduler.check()


def test_lost_events_end_it() -> None:
    driver = ready("a")
    tell(driver, stored(ALL, medium="GPU"), stored(ALL, medium="CPU"), removed(ALL, medium="GPU"))
    driver.step(IndexTrusted(driver.ids["a"], IndexTrust.HISTORY))
    assert found(driver).hit_tokens == 0
    driver.scheduler.check()
