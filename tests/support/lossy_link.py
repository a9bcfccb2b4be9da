"""A gateway's line to the scheduler that loses what is said on it, and breaks."""

from collections.abc import Sequence
from random import Random

from pointsman.core.errors import FailureKind
from pointsman.core.events import ModelCard
from pointsman.core.homes import Keeper
from pointsman.core.ids import RequestId
from pointsman.core.request import Outcome, Request
from pointsman.core.request_events import Verdict
from pointsman.ports import Placer, VerdictSink


class LossyLink:
    """A `Placer` before another one. Each message is lost with the same chance, either way; of a
    request whose verdict was lost no later one arrives. Once `broken`, all are lost."""

    def __init__(self, placer: Placer, loss: float, rng: Random) -> None:
        self.broken = False
        self.lost = 0
        self._placer = placer
        self._loss = loss
        self._rng = rng

    def arrive(self, request: Request, on_verdict: VerdictSink) -> None:
        deaf = False

        def hear(verdict: Verdict) -> None:
            nonlocal deaf
            deaf = deaf or self._loses()
            if not deaf:
                on_verdict(verdict)

        if not self._loses():
            self._placer.arrive(request, hear)

    def started(self, request_id: RequestId) -> None:
        if not self._loses():
            self._placer.started(request_id)

    def failed(self, request_id: RequestId, kind: FailureKind) -> None:
        if not self._loses():
            self._placer.failed(request_id, kind)

    def settle(self, request_id: RequestId, outcome: Outcome) -> None:
        if not self._loses():
            self._placer.settle(request_id, outcome)

    def keeper(self, response_id: str) -> Keeper | None:
        return self._placer.keeper(response_id)

    def models(self) -> Sequence[ModelCard]:
        return self._placer.models()

    def ready(self) -> bool:
        return self._placer.ready()

    def _loses(self) -> bool:
        is_lost = self.broken or self._rng.random() < self._loss
        self.lost += is_lost
        return is_lost
