"""KV events from the wire into the index: decode, map to our own chain, insert, remove.

python -m bench.micro_ingest

Budget: 300,000 changes/s with blocks of 16 tokens, goal 600,000. A change is a block that comes
or leaves; here one leaves for each that comes.
"""

import random
import time
from collections.abc import Iterator

import msgspec

from pointsman.core.cache_events import BlockStored
from pointsman.core.cluster import Cluster
from pointsman.core.events import (
    IndexTrust,
    ModelCard,
    NodeFacts,
    NodeSpec,
)
from pointsman.core.ids import ModelName, NodeName
from pointsman.core.node import Node
from pointsman.core.residency import Residency
from pointsman.wire import engine_events as wire

SIZE = 16
BLOCKS_MAX = 1 << 16


def main() -> None:
    print("us/block stored (and one removed):")
    print(f"{'blocks/event':>12} {'decode':>7} {'index':>7} {'changes/s':>11}")
    for blocks in (1, 8, 64):
        decode_s, index_s, count = ingested(list(messages(blocks, 60_000)))
        columns = " ".join(f"{s / count * 1e6:7.2f}" for s in (decode_s, index_s))
        print(f"{blocks:>12} {columns} {2 * count / (decode_s + index_s):11,.0f}")


def ingested(payloads: list[bytes]) -> tuple[float, float, int]:
    """Seconds of decoding, of chaining and indexing, and the blocks that were stored."""
    residency, node = Residency(), _node()
    residency.trust(node, IndexTrust.EXACT)
    decode_s = index_s = 0.0
    clock = time.thread_time
    for payload in payloads:
        begin_s = clock()
        changes = wire.decode_batch(payload).events
        decoded_s = clock()
        residency.cache_changed(node, changes)
        decode_s += decoded_s - begin_s
        index_s += clock() - decoded_s
    residency.check()
    return decode_s, index_s, sum(map(_stored, payloads))


def _node() -> Node:
    node = Cluster().add(NodeSpec(name=NodeName("node"), url="http://node"))
    node.describe(NodeFacts(models=(ModelCard(name=ModelName("model")),), kv_blocks=BLOCKS_MAX))
    return node


def _stored(payload: bytes) -> int:
    changes = wire.decode_batch(payload).events
    return sum(len(change.block_hashes) for change in changes if isinstance(change, BlockStored))


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
