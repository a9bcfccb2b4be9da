"""The values the compute model takes and gives: jobs, sequences, cache events, block hashes."""

from collections.abc import Sequence

import msgspec
import xxhash


class Job(msgspec.Struct, frozen=True, gc=False):
    """One sequence to compute: a prompt, and how many tokens to generate after it.

    `hashes` are the chained hashes of the full blocks of prompt + output, from the first on. Blocks
    past its end are computed but never cached, so a driver that only knows the prompt gives the
    prompt's. `tokens` (prompt + output ids) is only for who publishes cache events. A lower
    `priority` is sooner, as in vLLM.
    """

    id: str
    prompt_tokens: int
    output_tokens: int
    hashes: Sequence[int] = ()
    priority: int = 0
    tokens: Sequence[int] = ()
    lora: str | None = None
    salt: str | None = None


class EngineSequence:
    """A job inside the model. Drivers read it; only the model writes it.

    computed   tokens whose KV is resident
    target     tokens known (prompt + generated): at computed = target the next one is sampled
    generated  tokens given out
    cached     prompt tokens found in the prefix cache at first admission
    named      hashes of the cached blocks it holds a reference on, in order
    blocks     all blocks it holds: named and anonymous
    """

    __slots__ = (
        "alive",
        "blocks",
        "cached",
        "computed",
        "generated",
        "job",
        "key",
        "named",
        "preemptions",
        "running",
        "target",
    )

    def __init__(self, job: Job, arrival: int) -> None:
        self.job = job
        self.key = (job.priority, arrival)
        self.named: list[int] = []
        self.blocks = 0
        self.computed = 0
        self.target = job.prompt_tokens
        self.generated = 0
        self.cached: int | None = None
        self.preemptions = 0
        self.running = False
        self.alive = True

    @property
    def anonymous(self) -> int:
        return self.blocks - len(self.named)


class Stored(msgspec.Struct, frozen=True, gc=False):
    """Blocks [first, first + count) of the job's chain became reusable."""

    job: Job
    first: int
    count: int


class Removed(msgspec.Struct, frozen=True, gc=False):
    """Blocks were evicted, in this order."""

    hashes: list[int]


class CacheCleared(msgspec.Struct, frozen=True, gc=False):
    """Every cached block was dropped."""


CacheEvent = Stored | Removed | CacheCleared


def root_hash(lora: str | None = None, salt: str | None = None) -> int:
    """The chain's start: sequences share blocks only within one (LoRA, salt) namespace."""
    if lora is None and salt is None:
        return 0
    return xxhash.xxh3_64_intdigest(msgspec.msgpack.encode((lora, salt)))


def chain_hashes(token_bytes: bytes | memoryview, *, block_bytes: int, root: int) -> list[int]:
    """Chained hashes of the full blocks of a buffer; each block's seed is its parent's hash."""
    digest = xxhash.xxh3_64_intdigest
    view = memoryview(token_bytes)
    hashes: list[int] = []
    parent = root
    for end in range(block_bytes, len(view) + 1, block_bytes):
        parent = digest(view[end - block_bytes : end], parent)
        hashes.append(parent)
    return hashes
