"""How the scheduler decides: its configuration."""

import msgspec

from pointsman.core.limits import INDEX_BYTES_MAX, QUEUE_LENGTH_MAX, QUEUE_TIMEOUT_S
from pointsman.core.policies import catalog


class SchedulerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`policy` is a name of the catalog. `queue_length_max` requests are held at most, each for
    `hold_s` at most: more of either wait longer before they are refused. `index_bytes_max`
    bounds the prefix index: less forgets prefixes sooner. `seed` makes choices by lot
    repeatable.
    """

    policy: str = catalog.DEFAULT
    queue_length_max: int = QUEUE_LENGTH_MAX
    hold_s: float = QUEUE_TIMEOUT_S
    index_bytes_max: int = INDEX_BYTES_MAX
    seed: int = 0
