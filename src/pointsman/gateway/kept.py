"""Requests about a response that an engine keeps: read, cancelled or deleted where it is.

There is nothing to choose and next to nothing to compute, so they take no lease, do not wait
and teach nothing.
"""

from collections.abc import Callable, Sequence
from typing import Final

from pointsman.core.decision import Decision, Ruling, without_routing
from pointsman.core.errors import FAILURE_REASONS, FailureKind, Reason
from pointsman.core.events import ModelCard
from pointsman.core.homes import Keeper
from pointsman.core.ids import RequestId
from pointsman.core.request import Outcome, Request
from pointsman.core.request_events import Placed, Refused
from pointsman.ports import Placer, VerdictSink

POLICY: Final = "keeper"
"""What decisions and answers name instead of a policy."""


class KeptPlacer:
    """Places each request with the keeper of the response that it `continues`, once."""

    def __init__(self, placer: Placer, now_s: Callable[[], float]) -> None:
        self._placer = placer
        self._now_s = now_s
        self._open: dict[RequestId, tuple[Request, VerdictSink]] = {}

    def arrive(self, request: Request, on_verdict: VerdictSink) -> None:
        keeper = self._placer.keeper(request.continues)
        if keeper is None:
            on_verdict(self._refused(request, Reason.RESPONSE_NOT_FOUND))
            return
        self._open[request.id] = request, on_verdict
        decision = self._decision(request, keeper)
        on_verdict(Placed(request.id, keeper.node_id, keeper.node, keeper.url, decision))

    def started(self, request_id: RequestId) -> None:
        """Of no interest: nothing is learned from such a request."""

    def failed(self, request_id: RequestId, kind: FailureKind) -> None:
        request, on_verdict = self._open.pop(request_id)
        on_verdict(self._refused(request, FAILURE_REASONS[kind]))

    def settle(self, request_id: RequestId, outcome: Outcome) -> None:
        self._open.pop(request_id, None)

    def models(self) -> Sequence[ModelCard]:
        return self._placer.models()

    def ready(self) -> bool:
        return self._placer.ready()

    def keeper(self, response_id: str) -> Keeper | None:
        return self._placer.keeper(response_id)

    def _refused(self, request: Request, reason: Reason) -> Refused:
        return Refused(request.id, reason, None, "", self._decision(request, None))

    def _decision(self, request: Request, keeper: Keeper | None) -> Decision:
        return without_routing(
            request.id,
            request.model,
            at_s=self._now_s(),
            ruling=Ruling.REFUSED if keeper is None else Ruling.PLACED,
            policy=POLICY,
            why="no node keeps it" if keeper is None else "it keeps the response",
            node=None if keeper is None else keeper.node,
        )
