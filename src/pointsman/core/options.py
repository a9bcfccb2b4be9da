"""How the scheduler decides: its configuration."""

import msgspec

from pointsman.core.admission_rules import AdmissionRules
from pointsman.core.limits import (
    INDEX_BYTES_MAX,
    QUEUE_LENGTH_MAX,
    QUEUE_TIMEOUT_S,
    RESERVATION_S,
    CostWeights,
    GuardRules,
    HealthRules,
    HotPrefixRules,
    Preemption,
    RetryRules,
    Rules,
    WarmUpRules,
)
from pointsman.core.policies import catalog


class SchedulerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`policy` is a name of the catalog. `queue_length_max` requests are held at most, each for
    `hold_s` at most: more of either wait longer before they are refused. What was reserved
    `reservation_s` ago for a request that its engine does not count may be given back: sooner
    frees room sooner, and doubts more that are well. `index_bytes_max` bounds the prefix index:
    less forgets prefixes sooner. `seed` makes choices by lot repeatable. All but the last two may
    change while it runs.
    """

    policy: str = catalog.DEFAULT
    queue_length_max: int = QUEUE_LENGTH_MAX
    hold_s: float = QUEUE_TIMEOUT_S
    reservation_s: float = RESERVATION_S
    health: HealthRules = HealthRules()
    retries: RetryRules = RetryRules()
    retry_guard: GuardRules = GuardRules()
    preemption: Preemption = Preemption.QUEUED
    admission: AdmissionRules = AdmissionRules()
    warm_up: WarmUpRules = WarmUpRules()
    hot_prefixes: HotPrefixRules = HotPrefixRules()
    marginal_cost: CostWeights = CostWeights()
    index_bytes_max: int = INDEX_BYTES_MAX
    seed: int = 0

    @property
    def rules(self) -> Rules:
        """What may change while a scheduler runs, but for the policy."""
        return Rules(
            queue_length_max=self.queue_length_max,
            hold_s=self.hold_s,
            reservation_s=self.reservation_s,
            health=self.health,
            retries=self.retries,
            retry_guard=self.retry_guard,
            preemption=self.preemption,
            admission=self.admission,
            warm_up=self.warm_up,
            hot_prefixes=self.hot_prefixes,
            marginal_cost=self.marginal_cost,
        )
