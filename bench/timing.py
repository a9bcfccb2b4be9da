"""The clock of the micro benchmarks of pure functions."""

import gc
import statistics
import time
from collections.abc import Callable


def median_us(operation: Callable[[], object], *, rounds: int = 15, round_s: float = 0.02) -> float:
    """Microseconds of CPU of one call: the median of `rounds` rounds of `round_s` seconds each.

    CPU of this thread, so that other processes disturb less. The collector is off meanwhile:
    its passes would fall on some rounds and not on others.
    """
    calls = _calls_in(operation, round_s)
    gc.collect()
    gc.disable()
    try:
        return statistics.median(_elapsed_s(operation, calls) for _ in range(rounds)) / calls * 1e6
    finally:
        gc.enable()


def _calls_in(operation: Callable[[], object], round_s: float) -> int:
    calls = 1
    while (elapsed_s := _elapsed_s(operation, calls)) < round_s / 4:
        calls *= 2
    return max(1, round(calls * round_s / elapsed_s))


def _elapsed_s(operation: Callable[[], object], calls: int) -> float:
    begin_s = time.thread_time()
    for _ in range(calls):
        operation()
    return time.thread_time() - begin_s
