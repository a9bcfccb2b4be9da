"""Every policy by its name. Adding one is adding a line."""

from collections.abc import Callable

from pointsman.core.policies.base import Policy
from pointsman.core.policies.cache_aware_equal_cost import CacheAwareEqualCost
from pointsman.core.policies.consistent_hash import ConsistentHash
from pointsman.core.policies.dynamo import Dynamo
from pointsman.core.policies.equal_cost import EqualCost
from pointsman.core.policies.jffc import Jffc
from pointsman.core.policies.least_request import LeastRequest
from pointsman.core.policies.llmd_sticky import LlmdSticky
from pointsman.core.policies.llmd_weighted import LlmdWeighted
from pointsman.core.policies.lmetric import LMetric
from pointsman.core.policies.marginal_cost import MarginalCost
from pointsman.core.policies.power_of_two import PowerOfTwo
from pointsman.core.policies.random_choice import RandomChoice
from pointsman.core.policies.round_robin import RoundRobin
from pointsman.core.policies.session import Session
from pointsman.core.policies.smg_cache_aware import SmgCacheAware
from pointsman.core.policies.weighted_score import WeightedScore
from pointsman.core.policies.weighted_score_jffc import WeightedScoreJffc
from pointsman.core.rules import CostWeights

DEFAULT: str = MarginalCost.name

_CATALOG: dict[str, Callable[[], Policy]] = {
    RoundRobin.name: RoundRobin,
    RandomChoice.name: RandomChoice,
    PowerOfTwo.name: PowerOfTwo,
    LeastRequest.name: LeastRequest,
    Session.name: Session,
    ConsistentHash.name: ConsistentHash,
    WeightedScore.name: WeightedScore,
    WeightedScoreJffc.name: WeightedScoreJffc,
    EqualCost.name: EqualCost,
    CacheAwareEqualCost.name: CacheAwareEqualCost,
    Jffc.name: Jffc,
    LMetric.name: LMetric,
    Dynamo.name: Dynamo,
    SmgCacheAware.name: SmgCacheAware,
    LlmdSticky.name: LlmdSticky,
    LlmdWeighted.name: LlmdWeighted,
    MarginalCost.name: MarginalCost,
}


def names() -> list[str]:
    """Every policy that can be chosen."""
    return list(_CATALOG)


_WEIGHTS = CostWeights()


def make(name: str, weights: CostWeights = _WEIGHTS) -> Policy:
    """A fresh policy, with `weights` if it has any. Raises ValueError naming the choices when
    `name` is none of them."""
    if name == MarginalCost.name:
        return MarginalCost(weights)
    factory = _CATALOG.get(name)
    if factory is None:
        raise ValueError(f"unknown policy {name!r}; choose one of {', '.join(_CATALOG)}")
    return factory()
