"""What routing knows of one request."""

from collections.abc import Sequence
from typing import Final

from pointsman.core.blocks import Prompt
from pointsman.core.errors import EndCause
from pointsman.core.ids import ModelName, NodeId, RequestId
from pointsman.core.limits import PRIORITY_NORMAL
from pointsman.core.scheme import Namespace
from pointsman.core.value import Value


class Request(Value):
    """A request as the scheduler sees it: no body, no socket.

    `max_output_tokens` is the client's bound, 0 where the endpoint generates nothing.
    `session` is an affinity key, `tenant` the payer; `pool`, `zone` and `labels` are hard
    constraints. `stream` says whether the first byte will tell when its prefill is over.
    `hold_s` bounds the time in the central queue, None by the scheduler's own bound. `client`
    is who sends it, as well as that is known; `is_crowd` where that may be many people, none of
    whom answers for the others. `continues` names the response that it goes on from, `home` the
    only node that has it, where that is known.
    """

    __match_args__ = (
        "id",
        "model",
        "prompt",
        "max_output_tokens",
        "stream",
        "priority",
        "tenant",
        "session",
        "pool",
        "zone",
        "labels",
        "slo_ttft_s",
        "hold_s",
        "client",
        "is_crowd",
        "continues",
        "home",
    )
    __slots__ = __match_args__

    def __init__(
        self,
        id: RequestId,  # noqa: A002 - its field's name
        model: ModelName,
        prompt: Prompt,
        *,
        max_output_tokens: int | None = None,
        stream: bool = True,
        priority: int = PRIORITY_NORMAL,
        tenant: str = "",
        session: str | None = None,
        pool: str | None = None,
        zone: str | None = None,
        labels: tuple[tuple[str, str], ...] = (),
        slo_ttft_s: float | None = None,
        hold_s: float | None = None,
        client: str = "",
        is_crowd: bool = False,
        continues: str = "",
        home: NodeId | None = None,
    ) -> None:
        self.id: Final = id
        self.model: Final = model
        self.prompt: Final = prompt
        self.max_output_tokens: Final = max_output_tokens
        self.stream: Final = stream
        self.priority: Final = priority
        self.tenant: Final = tenant
        self.session: Final = session
        self.pool: Final = pool
        self.zone: Final = zone
        self.labels: Final = labels
        self.slo_ttft_s: Final = slo_ttft_s
        self.hold_s: Final = hold_s
        self.client: Final = client
        self.is_crowd: Final = is_crowd
        self.continues: Final = continues
        self.home: Final = home

    def meaning_one_of(self, served: Sequence[ModelName]) -> "Request":
        """One that names no model means the only one served, and is cached under its name; where
        there is another number of them it means none."""
        if self.model or len(served) != 1:
            return self
        return self.but(model=served[0]).cached_under(served[0])

    def cached_under(self, model: ModelName) -> "Request":
        """The same, its prompt in the namespace of `model`."""
        namespace = Namespace(model, self.prompt.namespace.salt)
        return self.but(prompt=self.prompt.within(namespace))


class Outcome(Value):
    """What came of a placed request, reported once when it settles.

    Token counts are the engine's own (`usage`), None where it gave none; `streamed_tokens`
    is what the relay counted, `first_tokens` those of them that came with the first byte.
    `ttft_s` runs from dispatch to the node to the answer's first body byte, `decode_s` from
    there to the end. `response_id` names the answer where the engine keeps it (the Responses
    API), else it is empty.
    """

    __match_args__ = (
        "end",
        "streamed",
        "ttft_s",
        "decode_s",
        "prompt_tokens",
        "output_tokens",
        "cached_tokens",
        "streamed_tokens",
        "first_tokens",
        "status",
        "response_id",
    )
    __slots__ = __match_args__

    def __init__(
        self,
        end: EndCause,
        *,
        streamed: bool = False,
        ttft_s: float | None = None,
        decode_s: float | None = None,
        prompt_tokens: int | None = None,
        output_tokens: int | None = None,
        cached_tokens: int | None = None,
        streamed_tokens: int = 0,
        first_tokens: int = 0,
        status: int | None = None,
        response_id: str = "",
    ) -> None:
        self.end: Final = end
        self.streamed: Final = streamed
        self.ttft_s: Final = ttft_s
        self.decode_s: Final = decode_s
        self.prompt_tokens: Final = prompt_tokens
        self.output_tokens: Final = output_tokens
        self.cached_tokens: Final = cached_tokens
        self.streamed_tokens: Final = streamed_tokens
        self.first_tokens: Final = first_tokens
        self.status: Final = status
        self.response_id: Final = response_id
