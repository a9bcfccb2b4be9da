"""The core's structures: match, credit, hash, lease, fit; and the bytes of a block.

python -m bench.micro_core [--json]

Budgets: match of 128 blocks on 64 nodes 22 us, of 1,000 on 1,024 nodes 42 us; 160 bytes a
block (goal 100) with eviction bookkeeping. "cold" touches memory that is in no cache, as a
request does on a large index; the other rows repeat one operation.
"""

import argparse
import gc
import random
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator

import msgspec

from bench.timing import median_us
from pointsman.core.blocks import Prompt
from pointsman.core.calibration import Calibration
from pointsman.core.ids import HASH_BITS, BlockHash, NodeId, RequestId, Slot
from pointsman.core.ledger import Ledger
from pointsman.core.placement import NO_SEGMENTS, Footprint
from pointsman.core.prefix import PrefixIndex
from pointsman.core.scheme import TEXT_SCHEME, Namespace, Scheme, Unit
from pointsman.traffic.quantile import quantile

TOKENS_16 = Scheme(Unit.TOKENS, 16)


class Row(msgspec.Struct, frozen=True):
    what: str
    value: float
    unit: str


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="rows as JSON on stdout")
    arguments = parser.parse_args()
    rows: list[Row] = []
    for row in measured():
        rows.append(row)
        print(f"{row.what:58} {row.value:10.2f} {row.unit}", file=sys.stderr, flush=True)
    if arguments.json:
        sys.stdout.write(msgspec.json.encode(rows).decode() + "\n")


def measured() -> Iterator[Row]:
    yield from hashing()
    yield from matching()
    yield from crediting()
    yield from ledger()
    yield from calibration()
    yield from memory()


def hashing() -> Iterator[Row]:
    text = random.Random(1).randbytes(52_000)
    tokens = [n * 7919 % 128_000 for n in range(100_000)]
    namespace = Namespace("model")
    for what, operation in (
        ("hash 52 kB of text", lambda: Prompt(namespace, text=text).chain(TEXT_SCHEME)),
        ("hash 100k tokens", lambda: Prompt(namespace, tokens=tokens).chain(TOKENS_16)),
    ):
        yield Row(what, median_us(operation), "us")


def hashes(rng: random.Random, count: int) -> list[BlockHash]:
    return [BlockHash(rng.getrandbits(HASH_BITS)) for _ in range(count)]


def matching() -> Iterator[Row]:
    rng = random.Random(2)
    for blocks, nodes in ((128, 64), (1_000, 1_024), (6_000, 64)):
        for depths in (8, nodes):
            index, prompt = PrefixIndex(), hashes(rng, blocks)
            choice = [rng.randint(1, blocks) for _ in range(depths)]
            for slot in range(nodes):
                index.credit(Slot(slot), prompt[: choice[slot % depths]])
            what = f"match {blocks:,} blocks, {nodes:,} nodes of {depths:,} depths"
            yield Row(what, median_us(lambda i=index, p=prompt: i.match(p)), "us")  # type: ignore[misc]  # mypy infers no lambda with defaults


def crediting() -> Iterator[Row]:
    """Conversations on 64 nodes, each with room for 16,384 blocks, until all are full."""
    rng = random.Random(3)
    index = PrefixIndex()
    for slot in range(64):
        index.set_capacity(Slot(slot), 16_384)
    for step in range(64 * 170):
        index.credit(Slot(step % 64), hashes(rng, 100))
    system = hashes(rng, 40)
    conversations = [[*system, *hashes(rng, 60)] for _ in range(2_000)]
    matched: list[float] = []
    credited: list[float] = []
    for _ in range(8_000):
        number = rng.randrange(len(conversations))
        prompt = [*conversations[number][:800], *hashes(rng, 20)]
        conversations[number] = prompt
        matched.append(elapsed_us(lambda: index.match(prompt)))  # noqa: B023 - called at once
        credited.append(elapsed_us(lambda: index.credit(Slot(number % 64), prompt)))  # noqa: B023
    for what, times in (("match", matched), ("credit, evicting", credited)):
        times.sort()
        for share in (0.5, 0.99):
            yield Row(
                f"{what}, cold, 140 blocks, {len_text(index)}, p{share * 100:.0f}",
                quantile(times, share),
                "us",
            )
    prompt = conversations[0]
    yield Row("credit, all held", median_us(lambda: index.credit(Slot(0), prompt)), "us")


def len_text(index: PrefixIndex) -> str:
    return f"{sum(index.blocks(Slot(slot)) for slot in range(64)) / 1e6:.1f} M in the index"


def elapsed_us(operation: Callable[[], object]) -> float:
    begin_s = time.perf_counter()
    operation()
    return (time.perf_counter() - begin_s) * 1e6


def ledger() -> Iterator[Row]:
    book, request = Ledger(), RequestId("0")
    for node in range(64):
        book.set_capacity(NodeId(node), 100_000)
        for n in range(50):
            book.reserve(RequestId(f"{node}/{n}"), NodeId(node), Footprint(10, NO_SEGMENTS))

    def lease() -> None:
        book.reserve(request, NodeId(7), Footprint(10, NO_SEGMENTS))
        book.commit(request)
        book.release(request)

    yield Row("ledger: reserve, commit, release", median_us(lease), "us")
    yield Row("ledger: fits", median_us(lambda: book.account(NodeId(7)).fits(10)), "us")


def calibration() -> Iterator[Row]:
    node = Calibration()

    def observe() -> None:
        node.observe_decode(batch_mean=20.0, kv_tokens_mean=5e4, step_s=0.03)

    yield Row("calibration: observe", median_us(observe), "us")
    yield Row("calibration: speeds", median_us(node.speeds), "us")


def memory() -> Iterator[Row]:
    rng = random.Random(4)
    for what, capacity in (("long tail", None), ("long tail, evicting", 8_000)):
        gc.collect()
        tracemalloc.start()
        index = PrefixIndex()
        index.credit(Slot(0), hashes(rng, 1))  # the dicts come with the first block
        empty = tracemalloc.get_traced_memory()[0]
        for slot in range(16):
            index.set_capacity(Slot(slot), capacity)
        for step in range(3_000):
            index.credit(Slot(step % 16), hashes(rng, 100))
        gc.collect()
        used = tracemalloc.get_traced_memory()[0] - empty
        tracemalloc.stop()
        held = sum(index.blocks(Slot(slot)) for slot in range(16))
        yield Row(f"memory, {what}, {held:,} blocks", used / held, "bytes/block")


if __name__ == "__main__":
    main()
