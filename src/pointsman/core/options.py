"""How the scheduler decides: its configuration."""

from pointsman.core.limits import INDEX_BYTES_MAX
from pointsman.core.policies import catalog
from pointsman.core.rules import Rules


class SchedulerOptions(Rules, frozen=True, kw_only=True):
    """The rules to begin with, and what a scheduler is made with.

    `policy` is a name of the catalog. `index_bytes_max` bounds the prefix index: less forgets
    prefixes sooner. `seed` makes choices by lot repeatable. All but the last two may change while
    it runs.
    """

    policy: str = catalog.DEFAULT
    index_bytes_max: int = INDEX_BYTES_MAX
    seed: int = 0

    @property
    def rules(self) -> Rules:
        """What may change while a scheduler runs, but for the policy."""
        return Rules(**{name: getattr(self, name) for name in Rules.__struct_fields__})
