"""Decoding KV events. Goal: 600,000 blocks/s and more, in each shape and size of event.

python -m bench.micro_kv_events
"""

from typing import Any

import msgspec

from bench.timing import median_us
from pointsman.wire.engine_events import decode_batch


def stored(blocks: int, block_size: int) -> dict[str, Any]:
    """One event with `blocks` blocks, as vLLM sends it."""
    return {
        "type": "BlockStored",
        "block_hashes": [2**63 + index for index in range(blocks)],
        "parent_block_hash": 2**63 - 1,
        "token_ids": [index * 7919 % 100_000 for index in range(blocks * block_size)],
        "block_size": block_size,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None] * blocks,
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }


def payload(events: int, blocks: int, block_size: int, *, as_array: bool) -> bytes:
    event: Any = stored(blocks, block_size)
    if as_array:
        event = list(event.values())
    return msgspec.msgpack.encode([1795993604.5, [event] * events, 0])


def main() -> None:
    print(f"{'shape':>6} {'events':>7} {'blocks':>7} {'size':>5} {'us':>9} {'blocks/s':>11}")
    for as_array in (False, True):
        for events, blocks, size in ((1, 1, 16), (100, 1, 16), (1, 100, 16), (100, 1, 64)):
            data = payload(events, blocks, size, as_array=as_array)
            us = median_us(lambda data=data: decode_batch(data))  # type: ignore[misc]  # mypy infers no lambda with defaults
            shape, rate = "array" if as_array else "map", events * blocks / us * 1e6
            print(f"{shape:>6} {events:>7} {blocks:>7} {size:>5} {us:9.2f} {rate:11,.0f}")


if __name__ == "__main__":
    main()
