"""CPU seconds and resident memory of a process and all its descendants, on Linux; and the CPU
seconds of the whole machine."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

CLOCK_OF_PROCESS = 2  # CPUCLOCK_SCHED of clock_getcpuclockid(3): run time, to the nanosecond
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def cpu_s(root: int) -> float:
    """User and system time of the living processes under `root`, all threads, ended ones too.

    /proc/PID/stat says the same, but in ticks of 10 ms: too coarse for a short run.
    """
    return sum(time.clock_gettime((~pid << 3) | CLOCK_OF_PROCESS) for pid in _tree(root))


def machine_busy_s() -> float:
    """CPU seconds that the cores, taken together, did not idle since boot, to 10 ms; what a
    hypervisor took away (`steal`) counts, since nobody here had it."""
    _, *ticks = Path("/proc/stat").read_text().partition("\n")[0].split()
    user, nice, system, _idle, _iowait, irq, softirq, steal, *_guests = map(int, ticks)
    return (user + nice + system + irq + softirq + steal) / CLOCK_TICKS


def resident_bytes(root: int) -> int:
    """Resident memory of the tree under `root`; pages shared inside it count more than once."""
    fields = (_stat_fields(pid) for pid in _tree(root))
    return sum(int(stat[21]) for stat in fields if stat) * PAGE_BYTES


def _tree(root: int) -> Iterator[int]:
    parents = {pid: int(stat[1]) for pid in _pids() if (stat := _stat_fields(pid))}
    found = [root]
    for pid in found:
        yield pid
        found.extend(child for child, parent in parents.items() if parent == pid)


def _pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def _stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from `state` (proc(5)'s field 3) on; empty if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return text.rpartition(")")[2].split()
