"""What people may set of the core. The defaults and their reasons are in `limits` and
`health_limits`. All but the timeouts may change while a scheduler runs, together as `Rules`."""

from enum import StrEnum

import msgspec

from pointsman.core.admission_rules import AdmissionRules
from pointsman.core.health_limits import (
    OPEN_S,
    OPEN_S_MAX,
    OVERDUE_FACTOR,
    OVERDUE_MIN_S,
    SHARED_QUEUE_S,
    SLOW_FACTOR,
    SLOW_SHARE_MAX,
    SLOW_START_S,
    SUSPECT_S,
    SUSPECT_WEIGHT,
    TRIAL_AFTER_S,
    TRIAL_COST_SHARE,
    WARMING_WEIGHT_NEW,
)
from pointsman.core.limits import (
    ATTEMPTS_MAX,
    BUSY_ATTEMPTS_MAX,
    FAILURES_WITHIN_S,
    FIRST_TOKEN_WEIGHT,
    GROWTH,
    HASTY_SHARE,
    HOLD_S,
    HOT_HOLDERS_SLACK,
    HOT_MEMORY_S,
    PROBE_FAILURES_MAX,
    PROBE_SUCCESSES_MIN,
    QUEUE_LENGTH_MAX,
    RECALLS_MAX,
    REQUEST_FAILURES_MAX,
    RESERVATION_S,
    RETRY_BUDGET_MIN,
    RETRY_BUDGET_RATIO,
    ROOM_WITHIN_S,
    SIGNAL_AGE_MAX_S,
    URGENT_IMPOSES,
)


class HealthRules(msgspec.Struct, frozen=True, kw_only=True):
    """When a node is taken out of service, and when it comes back.

    probe_failures_max    failed probes in a row before it is out
    probe_successes_min   good probes in a row before it is back
    request_failures_max  requests in a row that came to nothing there before it is out,
                          within failures_within_s, or twice as many
    open_s, open_s_max    it stays out for so long, twice as long each time up to the maximum
    suspect_s             a suspicion that nothing confirms fades after this
    suspect_weight        of its peers' work, that a suspect may have
    slow_factor           times as long as foreseen, and its peers' are not: it is slow
    slow_share_max        of a model's nodes, that are found slow, late or stuck
    overdue_factor        times as long as foreseen until a first token is overdue
    overdue_min_s         and so long after that
    shared_queue_s        prefills that may wait on a node of lowered weight beside idle peers
    trial_after_s         a slow node that idles counts as any other once after so long
    trial_cost_share      of the time without news of it, that this may take
    slow_start_s          a new node has its full share after this at most; 0 at once
    slow_start_weight     of its peers' work, with which it begins
    signal_age_max_s      a scrape older than this corrects nothing
    """

    probe_failures_max: int = PROBE_FAILURES_MAX
    probe_successes_min: int = PROBE_SUCCESSES_MIN
    request_failures_max: int = REQUEST_FAILURES_MAX
    failures_within_s: float = FAILURES_WITHIN_S
    open_s: float = OPEN_S
    open_s_max: float = OPEN_S_MAX
    suspect_s: float = SUSPECT_S
    suspect_weight: float = SUSPECT_WEIGHT
    slow_factor: float = SLOW_FACTOR
    slow_share_max: float = SLOW_SHARE_MAX
    overdue_factor: float = OVERDUE_FACTOR
    overdue_min_s: float = OVERDUE_MIN_S
    shared_queue_s: float = SHARED_QUEUE_S
    trial_after_s: float = TRIAL_AFTER_S
    trial_cost_share: float = TRIAL_COST_SHARE
    slow_start_s: float = SLOW_START_S
    slow_start_weight: float = WARMING_WEIGHT_NEW
    signal_age_max_s: float = SIGNAL_AGE_MAX_S

    @property
    def well_factor(self) -> float:
        """Up to so many times as long as foreseen a node is well: half of what makes it slow, so
        that none is in and out by turns."""
        return self.slow_factor / 2


class RetryRules(msgspec.Struct, frozen=True, kw_only=True):
    """How often a request may be tried again, and how much of that the cluster bears.

    attempts_max       nodes that one request may fail on
    busy_attempts_max  nodes that may answer "busy" to it
    recalls_max        times that it may be taken back from a node before its first byte
    budget_ratio       retries and recalls as a share of first attempts
    budget_min         of them that are in the budget at the start; ten times as many at most
    """

    attempts_max: int = ATTEMPTS_MAX
    busy_attempts_max: int = BUSY_ATTEMPTS_MAX
    recalls_max: int = RECALLS_MAX
    budget_ratio: float = RETRY_BUDGET_RATIO
    budget_min: int = RETRY_BUDGET_MIN


class GuardRules(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of requests that come back sooner than told while there is no room.

    enabled             whether they are refused first; without, they are only counted
    memory_s            how long a refusal is remembered, and with it what comes again
    penalty_s_max       the longest Retry-After that strikes lead to
    strike_half_life_s  after so long half of the strikes are forgotten
    room_s              there must have been room for so long before who hurries gets it
    room_within_s       a node that would begin within this has room
    hasty_share         of a client's requests that were turned away, that must come too early
                        before it is refused as a whole
    growth              that its traffic may have while it is told to wait
    """

    enabled: bool = True
    memory_s: float = 120.0
    penalty_s_max: float = 30.0
    strike_half_life_s: float = 30.0
    room_s: float = 1.0
    room_within_s: float = ROOM_WITHIN_S
    hasty_share: float = HASTY_SHARE
    growth: float = GROWTH


class Preemption(StrEnum):
    """Who gives way to a request that is more urgent and would come too late."""

    OFF = "off"
    QUEUED = "queued"  # whoever has no first byte yet: it waits again
    STREAMING = "streaming"  # answers under way as well: they break off


class WarmUpRules(msgspec.Struct, frozen=True, kw_only=True):
    """What a node computes before it gets work.

    prefixes  so many of the hottest that it lacks; 0 is off
    within_s  then it gets work, computed or not
    """

    prefixes: int = 0
    within_s: float = 10.0


class HotPrefixRules(msgspec.Struct, frozen=True, kw_only=True):
    """When a prefix is worth a further node.

    memory_s       how long a request counts in its prefix's share of the traffic
    holders_slack  nodes that hold it, over that share; 0 is no node more
    """

    memory_s: float = HOT_MEMORY_S
    holders_slack: float = HOT_HOLDERS_SLACK


class CostWeights(msgspec.Struct, frozen=True, kw_only=True):
    """What `marginal_cost` weighs against what.

    first_token_weight  a second before the first token, in seconds of an answer
    urgent_imposes      of the delay imposed on others, for a request that is more urgent
    """

    first_token_weight: float = FIRST_TOKEN_WEIGHT
    urgent_imposes: float = URGENT_IMPOSES


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What may change while a scheduler runs.

    At most `queue_length_max` requests are held, each for at most `hold_s`, which goes for those
    held from then on: more of either wait longer before they are refused. What was reserved
    `reservation_s` ago for a request that its engine does not count may be given back: sooner
    frees room sooner, and doubts more that are well.
    """

    queue_length_max: int = QUEUE_LENGTH_MAX
    hold_s: float = HOLD_S
    reservation_s: float = RESERVATION_S
    health: HealthRules = HealthRules()
    retries: RetryRules = RetryRules()
    retry_guard: GuardRules = GuardRules()
    preemption: Preemption = Preemption.QUEUED
    admission: AdmissionRules = AdmissionRules()
    warm_up: WarmUpRules = WarmUpRules()
    hot_prefixes: HotPrefixRules = HotPrefixRules()
    marginal_cost: CostWeights = CostWeights()


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds that each stage may take. Time in the queue is bounded by the scheduler.

    connect_s     a host that does not answer costs this much before another is tried
    first_byte_s  long prompts in a long queue take minutes; less turns load into errors
    idle_s        between two chunks of a stream; engines that preempt may pause for long
    total_s       everything; what runs longer holds KV blocks that others wait for
    """

    connect_s: float = 5.0
    first_byte_s: float = 600.0
    idle_s: float = 300.0
    total_s: float = 3_600.0
