"""A placer that says what a test tells it to, and remembers what it was told."""

from collections.abc import Callable, Sequence

import msgspec

from pointsman.core.blocks import Prompt
from pointsman.core.decision import Decision, Ruling
from pointsman.core.errors import ANSWERS, FAILURE_REASONS, FailureKind, Reason
from pointsman.core.events import ModelCard
from pointsman.core.homes import Keeper
from pointsman.core.ids import ModelName, NodeId, NodeName, RequestId
from pointsman.core.limits import BUSY_ATTEMPTS_MAX
from pointsman.core.request import Outcome, Request
from pointsman.core.request_events import Held, Placed, RecallCause, Recalled, Refused
from pointsman.core.scheme import Namespace
from pointsman.ports import Placer, VerdictSink


class Told(msgspec.Struct):
    """What a placer was told of one request."""

    request: Request
    sink: VerdictSink
    nodes: list[int] = []
    started: int = 0
    failures: list[FailureKind] = []
    settled: list[Outcome] = []
    refused: bool = False

    @property
    def owes(self) -> bool:
        """Whether a settlement is due."""
        return not self.refused and not self.settled


class ScriptedPlacer:
    """Places on the given URLs in turn, and after a failure on the next one untried.

    `hold` keeps newcomers until `place_held`; `reason` refuses all of them; `models` empty
    serves any.
    """

    def __init__(self, urls: Sequence[str], *, models: Sequence[str] = ("m",)) -> None:
        self.urls = list(urls)
        self.hold = False
        self.reason: Reason | None = None
        self.is_ready = True
        self.retry_after_s: float | None = None
        self.told: dict[RequestId, Told] = {}
        self.order: list[Told] = []
        self.keepers: dict[str, Keeper] = {}
        self.before_verdict: Callable[[], None] | None = None
        self._models = [ModelCard(ModelName(name), 8_192) for name in models]
        self.turn = 0

    # --- Placer ---------------------------------------------------------------------------

    def arrive(self, request: Request, on_verdict: VerdictSink) -> None:
        assert request.id not in self.told or not self.told[request.id].owes, "id in use"
        told = self.told[request.id] = Told(request, on_verdict)
        self.order.append(told)
        if self.before_verdict is not None:
            self.before_verdict()
        if self.reason is not None:
            self.refuse(told, self.reason, ANSWERS[self.reason].message)
        elif self.hold:
            on_verdict(Held(request.id, 1, self._decision(told, Ruling.HELD)))
        else:
            self.place(told)

    def started(self, request_id: RequestId) -> None:
        told = self.told[request_id]
        assert told.owes, "started after the end"
        told.started += 1

    def failed(self, request_id: RequestId, kind: FailureKind) -> None:
        told = self.told[request_id]
        assert told.owes, "failed after the end"
        told.failures.append(kind)
        if kind is FailureKind.RECALLED and self.hold:
            told.sink(Held(request_id, 1, self._decision(told, Ruling.HELD)))
            return
        if len(told.failures) < min(len(self.urls), BUSY_ATTEMPTS_MAX):
            self.place(told)
        else:
            self.refuse(told, FAILURE_REASONS[kind], "")

    def settle(self, request_id: RequestId, outcome: Outcome) -> None:
        self.told[request_id].settled.append(outcome)

    def keeper(self, response_id: str) -> Keeper | None:
        return self.keepers.get(response_id)

    def models(self) -> Sequence[ModelCard]:
        return self._models

    def ready(self) -> bool:
        return self.is_ready

    # --- the script's side ------------------------------------------------------------------

    def place(self, told: Told) -> None:
        """Send it to the next URL that it has not tried."""
        node = self.turn % len(self.urls)
        while node in told.nodes:
            node = (node + 1) % len(self.urls)
        self.turn = node + 1
        told.nodes.append(node)
        placed = Placed(
            told.request.id,
            NodeId(node + 1),
            NodeName(f"engine-{node + 1}"),
            self.urls[node],
            self._decision(told, Ruling.PLACED),
        )
        told.sink(placed)

    def recall(self, told: Told, *, breaks: bool = False) -> None:
        """Take its last placement back."""
        node_id = NodeId(told.nodes[-1] + 1)
        told.sink(Recalled(told.request.id, node_id, RecallCause.NODE_DOWN, breaks))

    def place_held(self) -> None:
        """Place all that are held."""
        for told in self.order:
            if told.owes and not told.nodes:
                self.place(told)

    def refuse_held(self, reason: Reason) -> None:
        """Refuse all that are held."""
        for told in self.order:
            if told.owes and not told.nodes:
                self.refuse(told, reason, ANSWERS[reason].message)

    def check(self) -> None:
        """Every request is over, and was settled exactly once where that was due."""
        for told in self.order:
            expected = 0 if told.refused else 1
            assert len(told.settled) == expected, (told.request.id, told)

    @property
    def outcomes(self) -> list[Outcome]:
        return [outcome for told in self.order for outcome in told.settled]

    def refuse(self, told: Told, reason: Reason, detail: str) -> None:
        """End it without a node."""
        told.refused = True
        decision = self._decision(told, Ruling.REFUSED)
        told.sink(Refused(told.request.id, reason, self.retry_after_s, detail, decision))

    def _decision(self, told: Told, ruling: Ruling) -> Decision:
        return Decision(
            request_id=told.request.id,
            model=told.request.model,
            at_s=0.0,
            ruling=ruling,
            policy="scripted",
            why="told so",
            node=None,
            attempt=len(told.nodes),
            prompt_tokens=0,
            output_tokens_expected=0,
            hit_tokens=7,
            queued_s=0.0,
            candidate_count=len(self.urls),
            tie_count=0,
            candidates=(),
            excluded=(),
        )


class _TurnPlacer:
    """Round robin that keeps no books."""

    def __init__(self, urls: Sequence[str], model: str) -> None:
        script = ScriptedPlacer(urls, models=(model,))
        told = Told(Request(RequestId(""), ModelName(model), Prompt(Namespace(model))), print)
        self._decision = script._decision(told, Ruling.PLACED)
        self._urls = urls
        self._models = script.models()
        self._turn = 0

    def arrive(self, request: Request, on_verdict: VerdictSink) -> None:
        node = self._turn = (self._turn + 1) % len(self._urls)
        name = NodeName(f"engine-{node + 1}")
        on_verdict(Placed(request.id, NodeId(node + 1), name, self._urls[node], self._decision))

    def started(self, request_id: RequestId) -> None:
        pass

    def failed(self, request_id: RequestId, kind: FailureKind) -> None:
        raise NotImplementedError("nothing fails here")

    def settle(self, request_id: RequestId, outcome: Outcome) -> None:
        pass

    def keeper(self, response_id: str) -> Keeper | None:
        return None

    def models(self) -> Sequence[ModelCard]:
        return self._models

    def ready(self) -> bool:
        return True


def turn_placer(urls: Sequence[str], model: str) -> Placer:
    """A placer that takes the URLs in turn and costs next to nothing, for measurements."""
    return _TurnPlacer(urls, model)
