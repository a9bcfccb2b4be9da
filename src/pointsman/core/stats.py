"""What the scheduler has counted."""

import msgspec


class Stats(msgspec.Struct):
    """Counts since the start. Each event about an ended incarnation or request is stale."""

    arrived: int = 0
    placed: int = 0
    held: int = 0
    refused: int = 0
    retried: int = 0
    recalled: int = 0
    settled: int = 0
    stale_events: int = 0
    compensated: int = 0
    rebooked: int = 0
