"""Two copies of a node's blocks are compared by digests."""

from hypothesis import given
from hypothesis import strategies as st

from pointsman.core.block_set import BUCKETS, BlockSet, bucket_of
from pointsman.core.ids import HASH_MASK, BlockHash

HASHES = st.integers(0, HASH_MASK).map(BlockHash)
FEW = st.sampled_from([BlockHash((n << 54) + k) for n in (0, 1, 63) for k in range(1, 5)])
CHANGES = st.lists(
    st.tuples(st.sampled_from(["add", "remove", "replace", "clear"]), st.lists(FEW, max_size=6))
)


@given(CHANGES)
def test_it_is_a_set_whatever_happens(changes: list[tuple[str, list[BlockHash]]]) -> None:
    blocks, twin = BlockSet(1_000), set[BlockHash]()
    for what, hashes in changes:
        before = set(twin)
        match what:
            case "add":
                came, gone = blocks.add(hashes), list[BlockHash]()
                twin |= set(hashes)
            case "remove":
                came, gone = list[BlockHash](), blocks.remove(hashes)
                twin -= set(hashes)
            case "replace":
                came, gone = blocks.replace(1, hashes)
                twin = {b for b in twin if bucket_of(b) != 1}
                twin |= {b for b in hashes if bucket_of(b) == 1}
            case _:
                came, gone = list[BlockHash](), blocks.remove(blocks.blocks())
                twin = set()
        assert sorted(came) == sorted(twin - before)
        assert sorted(gone) == sorted(before - twin)
        blocks.check()
    assert sorted(twin) == sorted(b for n in range(BUCKETS) for b in blocks.bucket(n))
    assert len(blocks) == len(twin)
    assert all(block in blocks for block in twin)


@given(st.lists(HASHES, unique=True, max_size=50), st.randoms(use_true_random=False))
def test_the_digest_does_not_depend_on_the_way(hashes: list[BlockHash], random: object) -> None:
    one, other = BlockSet(1_000), BlockSet(1_000)
    one.add(hashes)
    other.add([*reversed(hashes), BlockHash(7)])
    other.remove([BlockHash(7)] if 7 not in hashes else [])
    assert one.digest == other.digest
    assert one.bucket_digests() == other.bucket_digests()


def test_only_the_bucket_that_differs_has_another_digest() -> None:
    one, other = BlockSet(100), BlockSet(100)
    hashes = [BlockHash(n << 54 | 1) for n in range(BUCKETS)]
    one.add(hashes)
    other.add(hashes[:5] + hashes[6:])
    pairs = enumerate(zip(one.bucket_digests(), other.bucket_digests(), strict=True))
    assert [number for number, (a, b) in pairs if a != b] == [5]
    other.replace(5, one.bucket(5))
    assert (one.digest, len(one)) == (other.digest, len(other))


def test_it_is_bounded_and_says_so() -> None:
    blocks = BlockSet(3)
    assert blocks.add([BlockHash(n) for n in (1, 2, 2, 3, 4, 5)]) == [1, 2, 3]
    assert (len(blocks), blocks.overflows) == (3, 2)
    assert blocks.add([BlockHash(1)]) == []
    blocks.remove([BlockHash(1)])
    assert blocks.add([BlockHash(4)]) == [4]
    blocks.check()
