"""Drives a `Scheduler` in tests: a clock that is set by hand, requests and nodes in a line."""

from collections.abc import Collection

import msgspec

from pointsman.core.admission_rules import AdmissionRules
from pointsman.core.blocks import Prompt
from pointsman.core.calibration import Calibration, Pace
from pointsman.core.errors import EndCause, FailureKind
from pointsman.core.events import (
    Admitted,
    Effect,
    Event,
    ModelCard,
    NodeDescribed,
    NodeFacts,
    NodeJoined,
    NodeSpec,
    Tick,
    Turned,
)
from pointsman.core.ids import ModelName, NodeId, NodeName, RequestId
from pointsman.core.node import Node
from pointsman.core.options import SchedulerOptions
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
)
from pointsman.core.scheduler import Scheduler
from pointsman.core.scheme import Namespace

MODEL = ModelName("m")


OPEN_GATE = AdmissionRules(yellow_share=9.0, red_share=9.0, backlog_s=1e9)
"""For tests that fill nodes up, and have no request begin: routing alone says who waits."""


class Driver:
    """A scheduler, a clock, and the names that tests use. All invariants are checked after every
    step."""

    def __init__(
        self,
        options: SchedulerOptions | None = None,
        admission: AdmissionRules = OPEN_GATE,
    ) -> None:
        options = options or SchedulerOptions()
        self.scheduler = Scheduler(msgspec.structs.replace(options, admission=admission))
        self.now_s = 0.0
        self.ids: dict[str, NodeId] = {}

    @property
    def nodes(self) -> Collection[Node]:
        """The scheduler's own nodes, for tests that teach them speeds."""
        return self.scheduler._cluster.nodes

    def node(self, name: str) -> Node:
        """The scheduler's own node of that name."""
        return next(node for node in self.nodes if node.name == name)

    def step(self, event: Event) -> list[Effect]:
        effects = self.scheduler.step(event, self.now_s)
        self.scheduler.check()
        return effects

    def advance(self, seconds: float) -> list[Effect]:
        self.now_s += seconds
        return self.step(Tick())

    def join(self, name: str, **spec: object) -> list[Effect]:
        """A node that has joined and not yet described itself."""
        event = NodeJoined(NodeSpec(name=NodeName(name), url=f"http://{name}", **spec))  # type: ignore[arg-type]  # test keywords
        effects = self.step(event)
        (self.ids[name],) = [e.node_id for e in effects if isinstance(e, Admitted)]
        return effects

    def describe(self, name: str, **facts: object) -> list[Effect]:
        known = {"models": (ModelCard(name=MODEL),), "block_tokens": 16, "kv_blocks": 10_000}
        return self.step(NodeDescribed(self.ids[name], NodeFacts(**{**known, **facts})))  # type: ignore[arg-type]  # test keywords

    def ready(self, *names: str, **facts: object) -> None:
        for name in names:
            self.join(name)
            self.describe(name, **facts)

    def arrive(self, request_id: str, text: str = "hello", **fields: object) -> list[Effect]:
        return self.step(Arrived(request(request_id, text, **fields)))

    def start(self, request_id: str) -> list[Effect]:
        return self.step(Started(RequestId(request_id)))

    def fail(self, request_id: str, kind: FailureKind) -> list[Effect]:
        return self.step(Failed(RequestId(request_id), kind))

    def obey(self, effects: list[Effect]) -> list[Effect]:
        """The effects, and what comes of giving back what they recall, as a gateway does."""
        all_effects: list[Effect] = []
        for effect in effects:
            all_effects.append(effect)
            if isinstance(effect, Recalled):
                back = self.fail(effect.request_id, FailureKind.RECALLED)
                all_effects += self.obey(back)
        return all_effects

    def settle(
        self, request_id: str, end: EndCause = EndCause.FINISHED, **fields: object
    ) -> list[Effect]:
        return self.step(Settled(RequestId(request_id), Outcome(end, **fields)))  # type: ignore[arg-type]  # test keywords

    def serve(self, request_id: str, text: str = "hello", **fields: object) -> str:
        """Arrive, start and finish at once; returns the node's name."""
        (placed,) = self.arrive(request_id, text, **fields)
        assert isinstance(placed, Placed), placed
        self.start(request_id)
        self.settle(request_id, streamed=True)
        return placed.node


def request(request_id: str, text: str = "hello", **fields: object) -> Request:
    model = ModelName(str(fields.pop("model", MODEL)))
    tokens = fields.pop("tokens", None)
    prompt = Prompt(Namespace(model), text=text.encode(), tokens=tokens)  # type: ignore[arg-type]  # test keywords
    return Request(id=RequestId(request_id), model=model, prompt=prompt, **fields)  # type: ignore[arg-type]  # test keywords


def told(effects: list[Effect]) -> list[str]:
    """Effects in words, one line each."""
    return [_told(effect) for effect in effects]


def _told(effect: Effect) -> str:
    match effect:
        case Placed():
            return f"placed {effect.request_id} on {effect.node}: {effect.decision.why}"
        case Held():
            return f"held {effect.request_id} at {effect.position}: {effect.decision.why}"
        case Refused():
            wait = "never" if effect.retry_after_s is None else f"{effect.retry_after_s:.1f} s"
            return f"refused {effect.request_id}, retry after {wait}: {effect.decision.why}"
        case Recalled():
            return f"recalled {effect.request_id} from #{effect.node_id}: {effect.cause}"
        case Compensated():
            return f"compensated {effect.request_id} on #{effect.node_id}: {effect.decision.why}"
        case Admitted():
            return f"admitted {effect.name} as #{effect.node_id}"
        case Turned():
            return f"{effect.name} is {effect.after}: {effect.cause}"
        case _:
            return f"left {effect.name} #{effect.node_id}"


def teach(calibration: Calibration | Pace, *, times: float = 1.0) -> None:
    """Samples of an engine that takes so many times as long as is believed: calibrated, then."""
    speeds = calibration.speeds()
    for i in range(1, 41):
        tokens, batch = 200 * i, 1 + i % 8
        attention = tokens * tokens / 2
        first_token_s = speeds.dispatch_s + tokens * speeds.prefill_s_per_token
        first_token_s += attention * speeds.attention_s_per_token2
        step_s = speeds.step_s + speeds.sequence_s * batch + speeds.kv_token_s * 1000 * i
        calibration.observe_prefill(
            tokens_ahead=0,
            tokens_own=tokens,
            attention_ahead=0.0,
            attention_own=attention,
            ttft_s=times * first_token_s,
        )
        calibration.observe_decode(
            batch_mean=batch, kv_tokens_mean=1000.0 * i, step_s=times * step_s
        )
    assert calibration.calibrated
