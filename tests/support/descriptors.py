"""A process that has no file descriptor left."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

SPARE = 8


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Nothing can be opened, and nobody connected to, while it lasts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + SPARE, hard))
    hoard: list[int] = []
    try:
        while True:
            try:
                hoard.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                break
        yield
    finally:
        for descriptor in hoard:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
