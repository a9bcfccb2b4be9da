"""What routing knows of one request."""

from collections.abc import Sequence

import msgspec

from pointsman.core.blocks import Prompt
from pointsman.core.errors import EndCause
from pointsman.core.ids import ModelName, NodeId, RequestId
from pointsman.core.limits import PRIORITY_NORMAL
from pointsman.core.scheme import Namespace


class Request(msgspec.Struct, frozen=True, gc=False):
    """A request as the scheduler sees it: no body, no socket.

    `max_output_tokens` is the client's bound, 0 where the endpoint generates nothing.
    `session` is an affinity key, `tenant` the payer; `pool`, `zone` and `labels` are hard
    constraints. `stream` says whether the first byte will tell when its prefill is over.
    `hold_s` bounds the time in the central queue, None by the scheduler's own bound. `client`
    is who sends it, as well as that is known; `is_crowd` where that may be many people, none of
    whom answers for the others. `continues` names the response that it goes on from, `home` the
    only node that has it, where that is known.
    """

    id: RequestId
    model: ModelName
    prompt: Prompt
    max_output_tokens: int | None = None
    stream: bool = True
    priority: int = PRIORITY_NORMAL
    tenant: str = ""
    session: str | None = None
    pool: str | None = None
    zone: str | None = None
    labels: tuple[tuple[str, str], ...] = ()
    slo_ttft_s: float | None = None
    hold_s: float | None = None
    client: str = ""
    is_crowd: bool = False
    continues: str = ""
    home: NodeId | None = None


def meaning_one_of(request: Request, served: Sequence[ModelName]) -> Request:
    """A request that names no model means the only one served, and is cached under its name;
    where there is another number of them it means none."""
    if request.model or len(served) != 1:
        return request
    return cached_under(msgspec.structs.replace(request, model=served[0]), served[0])


def cached_under(request: Request, model: ModelName) -> Request:
    """The request, its prompt in the namespace of `model`."""
    namespace = Namespace(model, request.prompt.namespace.salt)
    return msgspec.structs.replace(request, prompt=request.prompt.within(namespace))


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """What came of a placed request, reported once when it settles.

    Token counts are the engine's own (`usage`), None where it gave none; `streamed_tokens`
    is what the relay counted. `ttft_s` runs from dispatch to the node to the answer's first
    body byte, `decode_s` from there to the end. `response_id` names the answer where the engine
    keeps it (the Responses API), else it is empty.
    """

    end: EndCause
    streamed: bool = False
    ttft_s: float | None = None
    decode_s: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    streamed_tokens: int = 0
    status: int | None = None
    response_id: str = ""
