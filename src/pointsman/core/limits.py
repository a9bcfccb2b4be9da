"""Bounds of the core that several parts go by, or people may set, each with its reason. What one
part alone goes by is beside its code."""

from enum import StrEnum
from typing import Final

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

PRIORITY_HIGH: Final = 10
PRIORITY_NORMAL: Final = 0
PRIORITY_LOW: Final = -10
"""Larger is more urgent. The distance leaves room for integers between the names."""

PRIORITY_MAX: Final = 100
"""Priorities are clamped to ±100: beyond it an order is a mistake, not a wish."""

ATTEMPTS_MAX: Final = 2
"""Nodes that one request may fail on. A third try helps nobody: two failures of the same
request are more likely the request's fault than the nodes' (a poison request)."""

BUSY_ATTEMPTS_MAX: Final = 3
"""Nodes that may answer "busy" to one request before the client is told. Each is asked once."""

RECALLS_MAX: Final = 1
"""Times that one request may be taken back from a node before its first byte: whoever has waited
twice would wait longer than the others."""

RETRY_BUDGET_RATIO: Final = 0.2
"""Retries allowed as a share of first attempts: a cluster in trouble gets at most 1.2 times
its load (the value of Finagle's and Envoy's retry budgets)."""

RETRY_BUDGET_MIN: Final = 10
"""Retries in the budget at the start, so that a quiet cluster can retry at all."""

PREEMPTION_GAP: Final = 10
"""How much more urgent a request must be than one that gives way to it: the distance between
the names of priorities, so that small differences order a queue and move nobody."""

PREEMPTION_SCAN_MAX: Final = 64
"""Requests on a node that are looked at for one that may give way, the newest first."""

PREEMPTION_LOOK_MAX: Final = 1_024
"""Where answers under way may be broken off: how many requests are looked at for that, the newest
first."""

PREEMPTED_MAX: Final = 8
"""Requests that give way to one."""

BUSY_MEMORY_S: Final = 1.0
"""How long an engine that called itself busy is sent no more than it had; then a tenth more
each time, or one."""

QUEUE_LENGTH_MAX: Final = 4_096
"""Requests held centrally. At 10 ms of service a request this is 40 s of work for one node."""

HELD_SCAN_MAX: Final = 32
"""Held requests that are tried in vain before a scan stops: one completion frees room for a
few, and a scan is on the way of that completion."""

FLIGHTS_MAX: Final = 65_536
"""Requests placed and not settled: more than the gateway has connections."""

STARTING_S: Final = 60.0
"""How long an engine that has not described itself is called starting. Most have loaded their model
by then; of the others, and of those that never will, whoever waits is told where to look."""

RETRY_AFTER_MAX_S: Final = 60.0
"""The longest wait a client is told: a cluster changes in a minute."""

HOLD_S: Final = 30.0
"""A held request is refused after this long; a client that waits longer has given up."""

LEARN_INTERVAL_S: Final = 0.05
"""A node's speeds and hits are learned from at most one of its requests in this time: a change of
the engine shows within 30 samples, 1.5 s, and a sample costs about 50 µs."""

RESERVATION_S: Final = 30.0
RESERVATION_FACTOR: Final = 3.0
"""A request may be missing on its engine after this long, and not before so many times what was
foreseen for it: predictions are rarely off by more where they matter."""

RESERVATION_S_MAX: Final = 600.0
"""A reservation that nobody commits is given back: longer than the slowest first token allowed."""

LEASE_S_MAX: Final = 7_200.0
"""A lease that nobody releases is given back: longer than the longest request allowed."""

PREFILL_SHARE_MAX: Final = 0.75
"""The most that prefills are expected to interrupt decoding: four times its own time. Beyond it
the estimate would go to infinity, and a node that is this busy is shunned anyway."""

PREFILL_MEMORY_S: Final = 40.0
"""How long a prefill counts in the share of time that a node spends on them: a few times as
long as an answer, so that it is a forecast and not the last prefill's echo. 15 to 80 s serve
about as well."""

RETURN_MEMORY_S: Final = 120.0
"""How long a request that came for what a node holds counts in the rate at which such come: a few
turns of a conversation or an agent."""

TICK_S_MAX: Final = 1.0
"""Between ticks, at most: what expires without an event does so at least this exactly."""

TICK_S_MIN: Final = 0.002
"""Between ticks, at least: a deadline that stays due must not spin a shell's loop."""

BLOCK_TOKENS_MAX: Final = 1 << 16
KV_BLOCKS_MAX: Final = 1 << 32
"""What is believed of an engine's KV blocks: a page of 65,536 tokens, and more of them than any
memory holds."""

MODEL_CHARS_MAX: Final = 512
"""Of a model's name, asked for or served: it stands in keys, labels and answers."""

CONCURRENCY_MAX: Final = 100_000
"""What may be configured as a node's requests in flight: more than the gateway has."""

NODE_CONCURRENCY_MAX: Final = 256
"""Requests in flight on one node when its own limit is unknown: vLLM's default max_num_seqs."""

CERTAIN_SHARE: Final = 0.8
"""The share of a text's estimated tokens that it has for certain: nodes with less context are left
out. An estimate that is wrong must not keep a prompt from the only engine that is free."""

NODES_MAX: Final = 4_096
"""Nodes in a cluster: masks in the prefix index stay under 512 bytes."""

ROOM_WITHIN_S: Final = 0.25
"""A node has room while no more prefill work than this is ahead of a newcomer: less than one prompt
of 5,000 tokens. With 1 s, a fifth more is placed again in a simulated storm."""

HASTY_SHARE: Final = 0.75
"""Of its requests that were turned away, that must have come too early before a client counts as
hasty. One user in a hurry does not make all that share a key so, however often it comes."""

GROWTH: Final = 1.5
"""That a client's traffic may grow while it is told to wait."""

HOT_MEMORY_S: Final = 10.0
"""How long a request counts in its prefix's share of the traffic: a few times as long as a long
prefix takes to compute, so that a sudden one is met before its holders drown in it."""

HOT_HOLDERS_SLACK: Final = 1.5
"""Nodes that hold a hot prefix, over its share of the requests: as many as its share carry it only
if they do nothing else."""

FIRST_TOKEN_WEIGHT: Final = 5.0
"""What a second before the first token counts beside one of an answer (measured in
docs/POLICIES.md)."""

URGENT_IMPOSES: Final = 0.5
"""Of the delay that a request imposes on others, what counts if it is more urgent than usual: it
finds mostly such there whose delay matters less than its own."""

CLIENTS_REMEMBERED_MAX: Final = 4_096
"""Clients whose rate is known, 0.3 KiB each; the one that was silent for longest is forgotten."""

REFUSALS_REMEMBERED_MAX: Final = 32_768
"""Requests that were turned away and may come again, 0.4 KiB each: those of half a minute at
1,000 refusals a second. A storm beyond that is refused by the queue's bound."""

SESSIONS_MAX: Final = 100_000
"""Sessions remembered for affinity; the least recently used is forgotten first."""

CANDIDATES_MAX: Final = 16
"""Candidates that a cost policy looks at. Above it, the holders of the longest prefixes and
the least loaded of the rest stand for all. On 32 to 256 nodes under load, with hot prefixes
and without, mean latencies are within half a per cent of the full field's, p99 within 4 %;
a row takes 2 to 3 µs."""

DECISION_ROWS_MAX: Final = 8
"""Candidates kept in a decision record; a dry run shows all of them."""

PROBE_S: Final = 10.0
"""Between probes of a node that is well."""

PROBE_RETRY_S: Final = 1.0
"""Between probes of a node that is not well, or that something else speaks against: with three
failures in a row to take it out, it is out within 3 s."""

PROBE_FAILURES_MAX: Final = 3
"""Failed probes in a row before a node is out: one slow answer is not a death."""

PROBE_SUCCESSES_MIN: Final = 2
"""Good probes in a row before a node that was out is back: no flapping."""

REQUEST_FAILURES_MAX: Final = 3
"""Requests in a row that came to nothing on a node before it is out, probes or not."""

FAILURES_WITHIN_S: Final = 10.0
"""Failures in a row count as one trouble when they are this close together. Twice as many in a
row are one whatever the time between them: a quiet cluster has broken engines, too."""

SIGNAL_AGE_MAX_S: Final = 10.0
"""A polled signal older than this corrects nothing: own counts stand alone."""

RESTORE_SHARE_HOST: Final = 0.2
RESTORE_SHARE_STORAGE: Final = 0.5
"""What a token from a slower tier takes of its prefill time: llm-d counts a block in the host's
memory as 0.8 of one on the GPU. Copying 128 KiB a token (8B, 16 bits) over PCIe 4 takes 6 us,
from a fast disk 40 us, and computing it 60 to 100 us; waiting for the copy adds to that."""

INDEX_BYTES_MAX: Final = 512 * 1024 * 1024
"""The prefix index's hard cap: about 4 million blocks."""

TEXT_BLOCK_BYTES: Final = 512
"""Prompt bytes a block where no tokens are known: about 128 tokens, eight of vLLM's default
blocks. Smaller blocks cost time to hash and index, larger ones lose a longer tail of each
hit: on average half a block, 4 ms of prefill."""


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
