"""What the scheduler service counts of itself."""

import msgspec


class ServiceCounters(msgspec.Struct):
    """Totals since the start."""

    steps_failed: int = 0
    sinks_failed: int = 0
    open_full: int = 0
