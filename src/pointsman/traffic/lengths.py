"""What made-up requests are measured in: blocks, and lengths drawn at random."""

import math
from random import Random

BLOCK_TOKENS = 16
"""vLLM's default block size: finer sharing than this no engine can use."""


def whole_blocks(tokens: int) -> int:
    """How many blocks hold so many tokens."""
    return -(-tokens // BLOCK_TOKENS)


def log_normal(rng: Random, median: int, sigma: float, maximum: int) -> int:
    """A length with a long tail (`sigma` is of its logarithm), cut at `maximum`."""
    return max(1, min(round(rng.lognormvariate(math.log(median), sigma)), maximum))


def positive(**sizes: float) -> None:
    """Raises ValueError for one that is 0 or less."""
    for name, value in sizes.items():
        if value <= 0:
            raise ValueError(f"{name} must be above 0, not {value}")
