"""Decides whether a request comes in, waits or is refused, before any node is looked at.

    below yellow    everybody comes in
    yellow [80 %]   low priority comes in up to its share of the nodes; what is beyond is refused
    red    [90 %]   only high priority comes in, the others wait. The more high priority holds, the
                    lower is this line: as much more of it may come at once
    very long       prompts of 64k tokens and more wait while they hold their share of the nodes

Shares are of the nodes that could serve the request (`load`). A line is compared before the
request is added, so one request may cross it: what fits nowhere is routing's to find out. Only low
priority is refused for lack of room; all else waits.
"""

from enum import StrEnum

from pointsman.core.admission.load import Loads, Part
from pointsman.core.admission_rules import AdmissionRules
from pointsman.core.errors import Reason
from pointsman.core.limits import PRIORITY_HIGH, PRIORITY_LOW
from pointsman.core.placement import Hold, Refusal
from pointsman.core.request import Request


class Watermark(StrEnum):
    """How full a part of the cluster is, as far as admission goes."""

    GREEN = "green"
    YELLOW = "yellow"
    RED = "red"


class Gate:
    """Compares the loads with the watermarks. Changes nothing."""

    def __init__(self, loads: Loads, rules: AdmissionRules) -> None:
        self._loads = loads
        self._rules = rules

    def apply(self, rules: AdmissionRules) -> None:
        """Judge by these from here on."""
        self._rules = rules

    def answer(
        self, request: Request, *, is_very_long: bool, now_s: float
    ) -> Hold | Refusal | None:
        """What the gate says to a request. None lets it pass to routing."""
        rules = self._rules
        part = self._loads.part(request)
        fill = _taken(part, now_s)
        if fill >= rules.yellow_share and request.priority <= PRIORITY_LOW:
            low = part.low_share()
            if low >= rules.low_share:
                return Refusal(Reason.LOW_PRIORITY, _low_detail(fill, low, rules))
        if request.priority < PRIORITY_HIGH:
            if fill >= self._red_share(part):
                return Hold(f"red: {fill:.0%} of the nodes is taken")
            if part.backlog(rules, now_s) >= 1:
                return Hold("red: every node has prompts waiting")
        if is_very_long and self._is_long_full(request, part):
            return Hold(f"long context: such prompts hold {part.long_share():.0%} of the nodes")
        return None

    def may_pass(
        self, request: Request, is_very_long: bool, priority: int, *, now_s: float
    ) -> bool:
        """Whether a request of this priority that waits for the same nodes as `request` may be
        tried."""
        part = self._loads.part(request)
        if is_very_long and self._is_long_full(request, part):
            return False
        rules = self._rules
        if priority >= PRIORITY_HIGH:
            return True
        return _taken(part, now_s) < self._red_share(part) and part.backlog(rules, now_s) < 1

    def load(self, request: Request, now_s: float) -> float:
        """How full the nodes are that could serve the request: the share taken."""
        return self._loads.part(request).fill(now_s)

    def watermark(self, request: Request, now_s: float) -> Watermark:
        """The watermark that the request's nodes have reached."""
        rules, part = self._rules, self._loads.part(request)
        fill = part.fill(now_s)
        if fill >= self._red_share(part) or part.backlog(rules, now_s) >= 1:
            return Watermark.RED
        return Watermark.YELLOW if fill >= rules.yellow_share else Watermark.GREEN

    def _red_share(self, part: Part) -> float:
        """The share at which red begins: below the line by a share of what the urgent hold."""
        return self._rules.red_share - self._rules.urgent_headroom * part.high_share()

    def _is_long_full(self, request: Request, part: Part) -> bool:
        """Whether very long prompts have all of their share. Of a pool that is kept for them that
        is all of it."""
        if request.pool is not None and request.pool == self._rules.long_context_pool:
            return False
        return part.long_share() >= self._rules.long_context_share


def _taken(part: Part, now_s: float) -> float:
    """How full it is for who comes in: others alone never keep all of ours out."""
    return part.fill(now_s) if part.all.inflight else 0.0


def _low_detail(load: float, low: float, rules: AdmissionRules) -> str:
    return (
        f"{load:.0%} of the nodes is taken and low priority has {low:.0%}, its share is "
        f"{rules.low_share:.0%}. Try again later, or with normal priority."
    )
