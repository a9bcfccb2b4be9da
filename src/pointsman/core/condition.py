"""One node's health as it changes: what is reported of it is counted, and steps are taken.

Weight is the share of its peers' work that a node may have, 0 to 1. It bounds requests in flight
(`candidates`) and never costs: a node whose times counted for ten times as long would get nothing
at all until the others are as bad, and nothing is what no node recovers by.
"""

from collections import deque
from collections.abc import Callable
from statistics import median
from typing import Final

from pointsman.core.errors import FAILURE_WORDS, FailureKind
from pointsman.core.health import SERVING, TRANSITIONS, Cause, Health, Step, Turn
from pointsman.core.health_limits import (
    HALF_OPEN_CHOOSY_S,
    HALF_OPEN_TRIALS_MAX,
    PEERS_MIN,
    PROBES_WEIGHT,
    SLOW_SAMPLES,
    SUSPECT_WEIGHT_MIN,
)
from pointsman.core.ids import RequestId
from pointsman.core.limits import PRIORITY_NORMAL
from pointsman.core.rules import HealthRules
from pointsman.core.warming import Warming

_FAILURES_KEPT: Final = 64
_DOUBLINGS_MAX: Final = 16  # far over any bound: 2^16 seconds

_HALF_OPEN: Final = Health.HALF_OPEN  # Python 3.11 takes 0.1 us to look an enum's member up
_RELATIVE: Final = frozenset({Cause.SLOW, Cause.OVERDUE, Cause.QUEUE})
_ANSWERED_BY_PROBES: Final = frozenset({Cause.PROBES, Cause.UNREACHABLE})


class Pacing:
    """Of the last few times that something took: how many times as long it was as foreseen."""

    __slots__ = ("_ratios",)

    def __init__(self) -> None:
        self._ratios: deque[float] = deque(maxlen=SLOW_SAMPLES)

    def observe(self, ratio: float) -> None:
        self._ratios.append(ratio)

    def forget(self) -> None:
        self._ratios.clear()

    @property
    def typical(self) -> float:
        """Their median; 0 if too few are known."""
        return self.so_far if len(self._ratios) == SLOW_SAMPLES else 0.0

    @property
    def so_far(self) -> float:
        """Their median, of however few; 0 of none."""
        return median(self._ratios) if self._ratios else 0.0


class Condition:
    """One incarnation's health. Owned by its `Node`; `on_turn` hears of every step.

    `weight` is the share of its peers' work that it may have; `failures` are requests in a row
    that came to nothing there; it is in its state since `since_s`. `rules` may be replaced at any
    time.
    """

    def __init__(self, rules: HealthRules, on_turn: Callable[[Turn], None]) -> None:
        self.rules = rules
        self.state = Health.JOINING
        self.cause = Cause.JOINED
        self.detail = "not probed yet"
        self.weight = 1.0
        self.failures = 0
        self.joined_s = 0.0
        self.is_choosy = False  # half open: low priority only
        self.is_restart = False  # its engine was here before
        self.restarts = 0  # that nobody planned, one after the other
        self._on_turn = on_turn
        self._failed_s: deque[float] = deque(maxlen=_FAILURES_KEPT)
        self._broke_off = False  # the last failure was after a first byte
        self._probe_failures = 0
        self._probe_successes = 0
        self.first_tokens = Pacing()
        self.decodes = Pacing()
        self.since_s = 0.0
        self._evidence_s = 0.0  # when something last spoke against it
        self._breaks = 0  # in succession, each longer than the last
        self._broke_s = float("-inf")
        self._broke_on_trial = False
        self._restarted_s = float("-inf")
        self._trials: dict[RequestId, None] = {}
        self._warming = Warming()

    # --- what routing asks -------------------------------------------------------------

    @property
    def is_stuck(self) -> bool:
        """Whether what has not begun there had better go elsewhere: it may never begin."""
        suspected = self.state is Health.SUSPECT and self.cause in (Cause.OVERDUE, Cause.QUEUE)
        return suspected or self.state is Health.OPEN

    @property
    def is_relative(self) -> bool:
        """Whether it is only worse than its peers: nothing has failed."""
        return self.cause in _RELATIVE and self.state in (Health.SUSPECT, Health.OPEN)

    def may_take(
        self, inflight: int, queue_s: float, *, peers_mean: float, peers_s: float, priority: int
    ) -> bool:
        """Whether a node of less than full weight may have one more request beside its `inflight`
        and the prefills that wait there for `queue_s`, if nodes of full weight have `peers_mean`
        and `peers_s` of these."""
        if self.state is Health.HALF_OPEN:
            welcome = priority < PRIORITY_NORMAL or not self.is_choosy
            return welcome and len(self._trials) < HALF_OPEN_TRIALS_MAX
        if self.is_stuck or queue_s > max(self.rules.shared_queue_s, self.weight * peers_s):
            return False
        return inflight < max(1.0, self.weight * max(peers_mean, PEERS_MIN))

    def placed(self, request_id: RequestId) -> None:
        """A request goes there. While half open it is the trial."""
        if self.state is _HALF_OPEN:
            self._trials[request_id] = None

    def ended(self, request_id: RequestId) -> None:
        """A request no longer runs there, whatever came of it."""
        self._trials.pop(request_id, None)

    # --- what is reported --------------------------------------------------------------

    def follows(self, before: "Condition", now_s: float, *, planned: bool) -> None:
        """Take over from the engine's incarnation `before`. Restarts that nobody `planned` count
        when they come one after the other: a quiet while, and they are forgotten."""
        self.is_restart = True
        self.restarts, self._restarted_s = before.restarts, before._restarted_s
        if planned or before.state is Health.JOINING:
            return
        if now_s - self._restarted_s > 2 * self.rules.open_s_max:
            self.restarts = 0
        self.restarts += 1
        self._restarted_s = now_s

    def described(self, now_s: float, *, warms: bool, spared: bool = False) -> None:
        """It says what it is. `warms` where others serve, and it is to begin slowly. One restart
        is trusted; after more of them it stays out first, longer each time, unless there is nobody
        else (`spared`)."""
        if self.state is not Health.JOINING:
            return
        self.joined_s = now_s
        if self.restarts > 1 and not spared:
            self._breaks, self._broke_s = self.restarts - 2, now_s
            detail = f"it has restarted {self.restarts} times in a row"
            self._break(Cause.RESTARTS, detail, now_s)
        else:
            self._return(now_s, Cause.JOINED, warms=warms, is_new=True)

    def left(self) -> None:
        self._step(Step.LEAVE, Cause.LEFT, "", self.since_s)

    def succeeded(self, now_s: float, *, whole: bool) -> None:
        """An answer began, or ended (`whole`). One that begins says nothing against answers
        that break off."""
        if self._broke_off and not whole:
            return
        self._clear_failures()
        suspected = self.state is Health.SUSPECT and self.cause not in (Cause.PROBES, Cause.SLOW)
        if suspected or self.state is Health.HALF_OPEN:
            self._return(now_s, Cause.RECOVERED)

    def failed(self, kind: FailureKind, now_s: float, *, spared: bool, began: bool) -> None:
        """A request came to nothing there, before its first byte or after it (`began`).
        `spared`: there is nobody else, so it stays in service."""
        cause = Cause.UNREACHABLE if kind is FailureKind.UNREACHABLE else Cause.ERRORS
        self._fail(cause, f"requests fail: {FAILURE_WORDS[kind]}", now_s, spared, began)

    @property
    def unhealthy(self) -> float:
        """0 to 1: its failures in a row, of those that take it out of service."""
        return min(1.0, self.failures / self.rules.request_failures_max)

    def blamed(self, cause: Cause, detail: str, now_s: float, *, spared: bool) -> None:
        """Somebody says that it does not do what it should: as good as a failed request."""
        self._fail(cause, detail or "said to be not well", now_s, spared, False)

    def _fail(self, cause: Cause, detail: str, now_s: float, spared: bool, began: bool) -> None:
        if self.state not in SERVING:
            return
        self.failures += 1
        self._failed_s.append(now_s)
        self._broke_off = began
        broken = self.state is Health.HALF_OPEN or self._is_broken(cause, now_s)
        if broken and not spared:
            self._break(cause, detail, now_s)
        elif self.failures >= max(1, self.rules.request_failures_max - 1):
            self.suspect(cause, detail, now_s)

    def _is_broken(self, cause: Cause, now_s: float) -> bool:
        """Enough failures in a row and close together; or so many that time does not count."""
        enough = self.rules.request_failures_max
        if self.failures < enough:
            return False
        if cause is Cause.UNREACHABLE or self.failures >= 2 * enough:
            return True
        earliest_s = self._failed_s[-min(enough, len(self._failed_s))]
        return now_s - earliest_s <= self.rules.failures_within_s

    def forgive(self, now_s: float) -> None:
        """The last failure was its request's fault: it failed elsewhere alike."""
        if not self.failures:
            return
        self.failures -= 1
        if self._failed_s:  # the latest only: there may have been more failures than are kept
            self._failed_s.pop()
        if self.cause is not Cause.ERRORS or self.failures >= self.rules.request_failures_max:
            return
        if self.state is Health.OPEN:
            self._breaks -= 1
        if self.state is Health.OPEN and self._broke_on_trial:
            self._try(now_s)
        elif self.state in (Health.OPEN, Health.SUSPECT):
            self._return(now_s, Cause.FORGIVEN, warms=not self._warming.over)

    def probed(self, healthy: bool, detail: str, now_s: float) -> None:
        """Thresholds up and down, so that one slow answer or one lucky one decides nothing."""
        if not healthy:
            self._probe_failures += 1
            self._probe_successes = 0
            self._probes_fail(detail or "health probes fail", now_s)
            return
        self._probe_failures = 0
        self._probe_successes += 1
        if self.state is Health.SUSPECT and self.cause is Cause.PROBES:
            self._return(now_s, Cause.RECOVERED)
        elif self.state is Health.OPEN and self._probe_successes >= self.rules.probe_successes_min:
            if self.cause is Cause.PROBES:
                self._return(now_s, Cause.RECOVERED, warms=True)
            elif self.cause in _ANSWERED_BY_PROBES:
                self._try(now_s)

    def _probes_fail(self, detail: str, now_s: float) -> None:
        if self.state not in SERVING:
            return
        if self._probe_failures >= self.rules.probe_failures_max:
            self._break(Cause.PROBES, detail, now_s)
        elif self._probe_failures >= self.rules.probe_failures_max - 1:
            self.suspect(Cause.PROBES, detail, now_s, PROBES_WEIGHT)

    def first_token(self, ratio: float, now_s: float) -> None:
        """One came after `ratio` times as long as foreseen."""
        self.first_tokens.observe(ratio)
        if self.state is Health.WARMING:
            as_foreseen = ratio <= self.rules.well_factor
            self._warming.first_token(now_s, as_foreseen=as_foreseen)
            self._warm(now_s)

    # --- verdicts ----------------------------------------------------------------------

    def suspect(self, cause: Cause, detail: str, now_s: float, weight: float | None = None) -> None:
        """Something speaks against it. Changes nothing when it is suspected already."""
        if self.state not in (Health.READY, Health.WARMING, Health.SUSPECT):
            return
        self._evidence_s = now_s
        usual = self.rules.suspect_weight
        weight = max(SUSPECT_WEIGHT_MIN, min(usual if weight is None else weight, self.weight))
        if self.state is not Health.SUSPECT:
            self._step(Step.SUSPECT, cause, detail, now_s)
            self._forget_pacings()  # they say nothing of how it is from now on
        self.weight = weight

    def _forget_pacings(self) -> None:
        self.first_tokens.forget()
        self.decodes.forget()

    def give_up(self, cause: Cause, detail: str, now_s: float) -> None:
        """Nothing more goes there for a while."""
        if self.state in SERVING:
            self._break(cause, detail, now_s)

    def _break(self, cause: Cause, detail: str, now_s: float) -> None:
        if now_s - self._broke_s > 2 * self.rules.open_s_max:
            self._breaks = 0
        self._breaks += 1
        self._broke_s = now_s
        self._broke_on_trial = self.state is Health.HALF_OPEN
        self._probe_successes = 0
        self.weight = 0.0
        self._step(Step.BREAK, cause, detail, now_s)

    @property
    def open_s(self) -> float:
        """How long it stays out this time: twice as long as the last time."""
        doubled: float = self.rules.open_s * 2.0 ** min(self._breaks - 1, _DOUBLINGS_MAX)
        return min(doubled, self.rules.open_s_max)

    def _try(self, now_s: float) -> None:
        self._trials.clear()
        self._clear_failures()
        self._forget_pacings()
        self.is_choosy = True
        self.weight = SUSPECT_WEIGHT_MIN
        self._step(Step.TRY, Cause.TRIAL, self.detail, now_s)

    def _return(
        self, now_s: float, cause: Cause, *, warms: bool | None = None, is_new: bool = False
    ) -> None:
        """Back into service, slowly if it `warms`. With None, a warm-up that had begun goes on, and
        a node that had been out begins one."""
        if warms is None:
            warms = self.state is Health.HALF_OPEN or not self._warming.over
        self._clear_failures()
        self._forget_pacings()
        if not warms or not self.rules.slow_start_s:
            self._warming.warmth = self.weight = 1.0
            self._step(Step.RISE, cause, "", now_s)
            return
        if self._warming.over or self.state is not Health.SUSPECT:
            self._warming.begin(now_s, self.rules, is_new=is_new)
        self.weight = self._warming.weight
        self._step(Step.WARM, cause, "", now_s)

    def pass_time(self, now_s: float, *, is_slow: bool = False) -> None:
        """Take the steps that only need time. A node that is still believed slow (`is_slow`) stays
        suspected of that."""
        match self.state:
            case Health.WARMING:
                self._warming.pass_time(now_s)
                self._warm(now_s)
            case Health.SUSPECT if not (is_slow and self.cause is Cause.SLOW):
                self._suspicion_fades(now_s)
            case Health.OPEN:
                rested = now_s - self._broke_s >= self.open_s and not self._probe_failures
                if rested and self.cause is not Cause.PROBES:
                    self._try(now_s)
            case Health.HALF_OPEN:
                self.is_choosy = now_s - self.since_s < HALF_OPEN_CHOOSY_S
            case Health.JOINING | Health.READY | Health.SUSPECT | Health.GONE:
                pass

    def _suspicion_fades(self, now_s: float) -> None:
        """Nothing has confirmed it; but where nothing came, nothing has refuted it either."""
        quiet_s = now_s - self._evidence_s
        if self.is_stuck and quiet_s >= self.rules.open_s:
            self._breaks += 1
            self._try(now_s)
        elif quiet_s >= self.rules.suspect_s and not self._probe_failures:
            self._return(now_s, Cause.RECOVERED, warms=self.cause is Cause.SLOW or None)

    def _warm(self, now_s: float) -> None:
        self.weight = self._warming.weight
        if self._warming.over:
            self._return(now_s, Cause.RECOVERED, warms=False)

    # --- helpers -----------------------------------------------------------------------

    def _clear_failures(self) -> None:
        self.failures = 0
        self._failed_s.clear()
        self._broke_off = False

    def _step(self, step: Step, cause: Cause, detail: str, now_s: float) -> None:
        following = TRANSITIONS[self.state].get(step)
        assert following is not None, f"{step} while {self.state}"
        before, self.state = self.state, following
        self.cause, self.detail, self.since_s = cause, detail, now_s
        self._on_turn(Turn(before, following, cause, detail))

    def check(self) -> None:
        """Weights are those of their states."""
        assert 0.0 <= self.weight <= 1.0, self.weight
        assert (self.weight == 0.0) == (self.state is Health.OPEN), (self.state, self.weight)
        assert self.state is not Health.READY or self.weight == 1.0, self.weight
        assert self.failures >= 0, self.failures
