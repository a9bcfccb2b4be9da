"""Drives one `Scheduler` on the event loop's thread, and is the gateway's `Placer`.

Every event goes through one inbox: a step that is asked for while another's effects are
being delivered (a gateway that settles from inside a verdict) waits its turn, so the core is
never entered twice. A step that fails is logged and counted, its request is refused, and
the process lives on.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol, assert_never

from pointsman.control.counters import ServiceCounters
from pointsman.control.watcher import NodeWatcher, TrafficWatcher
from pointsman.core.decision import Decision, Ruling, without_routing
from pointsman.core.errors import EndCause, FailureKind, Reason
from pointsman.core.events import (
    Admitted,
    Effect,
    Event,
    Left,
    ModelCard,
    PolicyChosen,
    Tick,
    Turned,
    WarmUp,
)
from pointsman.core.health import Health
from pointsman.core.homes import Keeper
from pointsman.core.ids import ModelName, NodeId, RequestId
from pointsman.core.limits import TICK_S_MAX, TICK_S_MIN
from pointsman.core.policies import catalog
from pointsman.core.request import Outcome, Request
from pointsman.core.request_events import (
    Arrived,
    Compensated,
    Failed,
    Held,
    Placed,
    Recalled,
    Refused,
    Settled,
    Started,
    Verdict,
)
from pointsman.core.scheduler import Scheduler
from pointsman.ports import DecisionSink, VerdictSink

OPEN_MAX = 100_000
"""Requests between arrival and settlement. Above the gateway's connections: only a gateway
that forgets to settle gets here, and then it is refused instead of eating the memory."""

log = logging.getLogger(__name__)

_IN_WORDS = {Health.OPEN: "out of service (open)", Health.HALF_OPEN: "on trial (half_open)"}
"""In logs: who knows no circuit breakers takes an open engine for one that takes requests."""

_CLIENT_GONE: Final = EndCause.CLIENT_GONE  # Python 3.11 takes 0.1 us to look an enum's member up


_NO_FAULTS: Final = frozenset({FailureKind.BUSY, FailureKind.RECALLED})
"""Failed attempts that make no node suspicious."""


class _Open:
    """A request between arrival and settlement."""

    __slots__ = ("model", "node_id", "sink", "slo_s", "started")

    def __init__(self, sink: VerdictSink, model: ModelName, slo_s: float | None) -> None:
        self.sink = sink
        self.model = model
        self.slo_s = slo_s  # when its first token is due
        self.node_id: NodeId | None = None
        self.started = False


class ServiceObserver(Protocol):
    """Counts what only the service sees. Quick, bounded, never raising."""

    def decided(self, seconds: float) -> None:
        """A decision took this long."""
        ...

    def slo_met(self, model: ModelName, met: bool) -> None:
        """A request that carried a time-to-first-token objective had its first byte, or will
        never have it."""
        ...


class SchedulerService:
    """Not thread-safe: everything happens on the loop that called `start`."""

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        decisions: DecisionSink,
        clock: Callable[[], float] = time.monotonic,
        observer: ServiceObserver | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.counters = ServiceCounters()
        self.now_s = clock
        self._decisions = decisions
        self._observer = observer
        self._open: dict[RequestId, _Open] = {}
        self._inbox: deque[Event] = deque()
        self._delivering = False
        self._watchers: list[NodeWatcher] = []
        self._traffic_watchers: list[TrafficWatcher] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tick_due_s = float("-inf")  # no deadline is before it: not started

    # --- the gateway's side: Placer -----------------------------------------------------

    def arrive(self, request: Request, on_verdict: VerdictSink) -> None:
        """Exactly one of Placed, Held or Refused reaches `on_verdict`, whatever happens."""
        if request.id in self._open:
            on_verdict(self._refusal(request.id, request.model, "its id is in use"))
            return
        if len(self._open) >= OPEN_MAX:
            self.counters.open_full += 1
            on_verdict(self._refusal(request.id, request.model, "too many requests at once"))
            return
        slo_s = None if request.slo_ttft_s is None else self.now_s() + request.slo_ttft_s
        self._open[request.id] = _Open(on_verdict, request.model, slo_s)
        self.submit(Arrived(request))

    def started(self, request_id: RequestId) -> None:
        entry = self._open.get(request_id)
        if entry is not None and not entry.started:
            entry.started = True
            self._alive(entry)
            self._judge_slo(entry, met=entry.slo_s is not None and self.now_s() <= entry.slo_s)
        self.submit(Started(request_id))

    def failed(self, request_id: RequestId, kind: FailureKind) -> None:
        entry = self._open.get(request_id)
        if entry is not None and entry.node_id is not None and kind not in _NO_FAULTS:
            for watcher in self._traffic_watchers:
                watcher.failed(entry.node_id)
        self.submit(Failed(request_id, kind))

    def settle(self, request_id: RequestId, outcome: Outcome) -> None:
        entry = self._open.pop(request_id, None)
        if entry is not None and not entry.started and outcome.end is not _CLIENT_GONE:
            self._judge_slo(entry, met=False)
        self.submit(Settled(request_id, outcome))

    def models(self) -> Sequence[ModelCard]:
        return self.scheduler.models()

    def ready(self) -> bool:
        return self.scheduler.ready()

    def keeper(self, response_id: str) -> Keeper | None:
        return self.scheduler.keeper(response_id)

    # --- the rest of the process --------------------------------------------------------

    def submit(self, event: Event) -> None:
        """Step the core with `event` and deliver its effects, here and now; or, from inside
        such a delivery, right after it."""
        if self._delivering:
            self._inbox.append(event)  # at most a few for each open request
            return
        self._delivering = True
        try:
            self._process(event)
            while self._inbox:
                self._process(self._inbox.popleft())
        finally:
            self._delivering = False

    def choose_policy(self, name: str) -> None:
        """Place by `name` from here on, which is one of the catalog's."""
        assert name in catalog.names(), name
        self.submit(PolicyChosen(name))

    def explain(self, request: Request) -> Decision:
        """The decision that `request` would get, with every candidate. Changes nothing."""
        return self.scheduler.explain(request, self.now_s())

    def watch(self, watcher: NodeWatcher) -> None:
        """Tell `watcher` of incarnations that begin, change and end."""
        self._watchers.append(watcher)

    def watch_traffic(self, watcher: TrafficWatcher) -> None:
        """Tell `watcher` of requests that go to incarnations, and of life on them."""
        self._traffic_watchers.append(watcher)

    def inflight_on(self, node_id: NodeId | None) -> int:
        """Requests placed on an incarnation; none on one that has ended, or not begun."""
        return 0 if node_id is None else self.scheduler.inflight_on(node_id)

    @property
    def unsettled(self) -> int:
        """Requests that arrived and are not over."""
        return len(self._open)

    def start(self) -> None:
        """Begin to tick, on the running loop."""
        assert self._loop is None, "started twice"
        self._loop = asyncio.get_running_loop()
        self._arm(self.scheduler.next_deadline_s())

    def stop(self) -> None:
        """Stop ticking; a second call changes nothing."""
        self._loop = None
        self._tick_due_s = float("-inf")
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- one event ----------------------------------------------------------------------

    def _process(self, event: Event) -> None:
        effects = self._step(event)
        for effect in effects:
            match effect:
                case Placed() | Held() | Refused() | Recalled():
                    self._deliver(effect)
                case Compensated():
                    self._decisions.record(effect.decision)
                case Admitted():
                    for watcher in self._watchers:
                        watcher.admitted(effect)
                case Turned():
                    self._turned(effect)
                case WarmUp():
                    for watcher in self._watchers:
                        watcher.cold(effect)
                case Left():
                    for watcher in self._watchers:
                        watcher.left(effect)
                case _:
                    assert_never(effect)
        if effects:
            self._catch_up()

    def _step(self, event: Event) -> list[Effect]:
        now_s = self.now_s()
        try:
            effects = self.scheduler.step(event, now_s)
        except Exception:  # the driver's outermost loop: a bug must not stop the service
            self.counters.steps_failed += 1
            log.exception("the scheduler failed on %s", _summary(event))
            return self._after_failure(event)
        if self._observer is not None and isinstance(event, Arrived):
            self._observer.decided(self.now_s() - now_s)
        return effects

    def _catch_up(self) -> None:
        try:
            self.scheduler.catch_up()
        except Exception:  # as above
            self.counters.steps_failed += 1
            log.exception("the scheduler failed to catch up")

    def _after_failure(self, event: Event) -> list[Effect]:
        """A refusal for the request at hand, and a settlement for what the core still holds."""
        match event:
            case Arrived(request=request):
                request_id, model = request.id, request.model
            case Failed(request_id=request_id):
                model = ModelName("")
            case _:
                return []
        self._inbox.append(Settled(request_id, Outcome(end=EndCause.REFUSED)))
        return [self._refusal(request_id, model, "the scheduler failed")]

    def _deliver(self, verdict: Verdict) -> None:
        if not isinstance(verdict, Recalled):
            self._decisions.record(verdict.decision)
        if isinstance(verdict, Held):
            self._arm_for_held()
        entry = self._open.get(verdict.request_id)
        if entry is None:
            return
        if isinstance(verdict, Placed):
            entry.node_id = verdict.node_id
            for watcher in self._traffic_watchers:
                watcher.placed(verdict.node_id)
        elif isinstance(verdict, Refused):
            del self._open[verdict.request_id]
            self._judge_slo(entry, met=False)
        try:
            entry.sink(verdict)
        except Exception:  # the sink's owner is another shell; its bug is not the core's
            self.counters.sinks_failed += 1
            log.exception("a verdict on %s could not be delivered", verdict.request_id)

    def _alive(self, entry: _Open) -> None:
        if entry.node_id is not None:
            for watcher in self._traffic_watchers:
                watcher.alive(entry.node_id)

    def _turned(self, effect: Turned) -> None:
        worse = effect.after in (Health.SUSPECT, Health.OPEN)
        level = logging.WARNING if worse else logging.INFO
        said = ascii(effect.detail)[1:-1]  # an engine's own words may end a line
        why = f"{effect.cause}: {said}" if said else effect.cause
        state = _IN_WORDS.get(effect.after, effect.after)
        log.log(level, "engine %s is %s: %s", effect.name, state, why)
        for watcher in self._watchers:
            watcher.turned(effect)

    def _judge_slo(self, entry: _Open, *, met: bool) -> None:
        if entry.slo_s is not None and self._observer is not None:
            self._observer.slo_met(entry.model, met)

    def _refusal(self, request_id: RequestId, model: ModelName, detail: str) -> Refused:
        decision = without_routing(
            request_id,
            model,
            at_s=self.now_s(),
            ruling=Ruling.REFUSED,
            policy=self.scheduler.policy,
            why=detail,
        )
        return Refused(request_id, Reason.INTERNAL, None, detail, decision)

    # --- time ---------------------------------------------------------------------------

    def _arm(self, deadline_s: float | None) -> None:
        """Have the next tick when the core wants it, and soon at the latest."""
        if self._loop is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        now_s = self.now_s()
        wait_s = TICK_S_MAX if deadline_s is None else deadline_s - now_s
        wait_s = min(max(wait_s, TICK_S_MIN), TICK_S_MAX)
        self._tick_due_s = now_s + wait_s
        self._timer = self._loop.call_later(wait_s, self._tick)

    def _arm_for_held(self) -> None:
        """Only what is held has a deadline."""
        deadline_s = self.scheduler.next_deadline_s()
        if deadline_s is not None and deadline_s < self._tick_due_s:
            self._arm(deadline_s)

    def _tick(self) -> None:
        self._timer = None
        self._tick_due_s = float("-inf")  # what the tick holds must not arm as well
        self.submit(Tick())
        self._arm(self.scheduler.next_deadline_s())


def _summary(event: Event) -> str:
    """What may be logged of an event: its kind and its names, never a prompt."""
    match event:
        case Arrived(request=request):
            return f"Arrived({request.id}, model {request.model})"
        case Started() | Failed() | Settled() | PolicyChosen() | Tick():
            return repr(event)
        case _:
            name = getattr(event, "spec", None) or getattr(event, "node_id", "")
            return f"{type(event).__name__}({name})"
