"""What one request holds of its key, from its admission to its end."""

from math import ceil

from pointsman.core.admission.pressure import jittered_s
from pointsman.core.blocks import Prompt
from pointsman.core.errors import EndCause, Reason
from pointsman.core.request import Outcome, Request
from pointsman.gateway.heads import RequestHead
from pointsman.gateway.keys import Key
from pointsman.gateway.routing import RequestRefused
from pointsman.gateway.shared import Shared
from pointsman.wire.priority import clamped
from pointsman.wire.routing_fields import RoutingFields

BYTES_PER_TOKEN = 4
"""For the estimate of a prompt that is text: English has 4 to 5, other languages fewer. The
engine's own count corrects it."""

_NOT_RUN = frozenset({EndCause.REFUSED, EndCause.ENGINE_REFUSED})


class Visit:
    """A request enters once at most and leaves once, however often it is told to."""

    def __init__(self, key: Key, shared: Shared) -> None:
        self._key = key
        self._shared = shared
        self._reserved: int | None = None

    def enter(
        self, request: Request, fields: RoutingFields, head: RequestHead, *, replaces: bool
    ) -> Request:
        """The request as its key lets it in, maybe in the place of another.
        Raises RequestRefused."""
        rules = self._key.rules
        if rules.models and not self._key.allows(request.model):
            raise RequestRefused(Reason.MODEL_NOT_ALLOWED)
        # The body goes to the engine as it is, and some would go by this field: lower is sooner.
        if fields.priority is not None and clamped(-fields.priority) > rules.priority_max:
            detail = f"The key's bodies may have a 'priority' of {-rules.priority_max} or more."
            raise RequestRefused(Reason.PRIORITY_NOT_ALLOWED, detail)
        tokens = _estimate(request.prompt)
        exceeded = self._key.quota.enter(tokens, self._shared.now_s(), replaces=replaces)
        if exceeded is not None:
            wait_s = exceeded.wait_s
            told_s = None if wait_s is None else jittered_s(wait_s, self._shared.rng)
            raise RequestRefused(exceeded.reason, exceeded.detail, wait_s=told_s)
        self._reserved = tokens
        return self._under_its_rules(request, head)

    def leave(self, outcome: Outcome) -> None:
        """The request is over, whichever way. A second call changes nothing."""
        reserved, self._reserved = self._reserved, None
        if reserved is not None:
            self._key.quota.leave(reserved, _used(outcome, reserved), self._shared.now_s())

    def _under_its_rules(self, request: Request, head: RequestHead) -> Request:
        rules = self._key.rules
        names_one = rules.names_tenants and bool(head.hints and head.hints.get(b"tenant"))
        tenant = request.tenant if names_one or not rules.name else rules.name
        priority = min(request.priority, rules.priority_max)
        if tenant == request.tenant and priority == request.priority:
            return request
        return request.but(tenant=tenant, priority=priority)


def _estimate(prompt: Prompt) -> int:
    if prompt.token_count is not None:
        return prompt.token_count
    return ceil(len(prompt.text) / BYTES_PER_TOKEN)


def _used(outcome: Outcome, reserved: int) -> int:
    """Tokens that the request cost. Where no usage is told, what was seen of it: a client
    that leaves before the end has not had its answer for nothing."""
    if outcome.end is EndCause.CLIENT_GONE and outcome.ttft_s is None:
        return reserved
    if outcome.end in _NOT_RUN or outcome.ttft_s is None:
        return 0
    prompt = reserved if outcome.prompt_tokens is None else outcome.prompt_tokens
    output = outcome.streamed_tokens if outcome.output_tokens is None else outcome.output_tokens
    return prompt + output
