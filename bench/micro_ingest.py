"""KV events from the wire into the index: decode, map to our own chain, insert, remove.

python -m bench.micro_ingest

Budget: 300,000 changes/s with blocks of 16 tokens, goal 600,000. A change is a block that comes
or leaves; here one leaves for each that comes.
"""

import random
import time
from collections.abc import Iterator

import msgspec

from pointsman.core import events
from pointsman.core.engine_blocks import EngineBlocks
from pointsman.core.ids import Slot
from pointsman.core.prefix import PrefixIndex
from pointsman.wire import engine_events as wire

SIZE = 16
BLOCKS_MAX = 1 << 16


def main() -> None:
    print("us/block stored (and one removed):")
    print(f"{'blocks/event':>12} {'decode':>7} {'map':>7} {'index':>7} {'changes/s':>11}")
    for blocks in (1, 8, 64):
        decode_s, map_s, index_s, count = ingested(list(messages(blocks, 60_000)))
        columns = " ".join(f"{s / count * 1e6:7.2f}" for s in (decode_s, map_s, index_s))
        print(f"{blocks:>12} {columns} {2 * count / (decode_s + map_s + index_s):11,.0f}")


def ingested(payloads: list[bytes]) -> tuple[float, float, float, int]:
    """Seconds of decoding, of mapping and of indexing, and the blocks that were stored."""
    engine, index, slot = EngineBlocks("model", 2 * BLOCKS_MAX), PrefixIndex(), Slot(3)
    decode_s = map_s = index_s = 0.0
    count = 0
    clock = time.thread_time
    for payload in payloads:
        begin_s = clock()
        changes = wire.decode_batch(payload).events
        decoded_s = clock()
        mapped = [
            (change, engine.stored(change))
            if isinstance(change, events.BlockStored)
            else (change, engine.removed(change))
            for change in changes
            if not isinstance(change, events.AllBlocksCleared)
        ]
        mapped_s = clock()
        for change, own in mapped:
            if isinstance(change, events.BlockStored):
                index.insert(slot, own)
                count += len(own)
            else:
                index.remove(slot, own)
        decode_s += decoded_s - begin_s
        map_s += mapped_s - decoded_s
        index_s += clock() - mapped_s
    return decode_s, map_s, index_s, count


def messages(blocks: int, total: int) -> Iterator[bytes]:
    """Payloads of 32 blocks each, in events of `blocks`; as many leave once `BLOCKS_MAX` are in."""
    rng = random.Random(5)
    stored: list[list[int]] = []
    for _ in range(total // 32):
        batch: list[dict[str, object]] = []
        parent: int | None = None
        for _ in range(max(1, 32 // blocks)):
            names = [rng.getrandbits(64) for _ in range(blocks)]
            batch.append(
                {
                    "type": "BlockStored",
                    "block_hashes": names,
                    "parent_block_hash": parent,
                    "token_ids": [rng.randrange(100_000) for _ in range(blocks * SIZE)],
                    "block_size": SIZE,
                    "lora_id": None,
                    "medium": "GPU",
                    "lora_name": None,
                    "extra_keys": [None] * blocks,
                    "group_idx": 0,
                }
            )
            parent = names[-1]
            stored.append(names)
        while len(stored) * blocks > BLOCKS_MAX // 2:
            batch += [
                {"type": "BlockRemoved", "block_hashes": [name], "medium": "GPU", "group_idx": 0}
                for name in reversed(stored.pop(0))
            ]
        yield msgspec.msgpack.encode([1.5, batch, 0])


if __name__ == "__main__":
    main()
