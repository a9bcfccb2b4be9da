"""What the gateway would ask the scheduler about a request, by its own code, and nothing sent."""

import asyncio
from array import array
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping, Sequence

from pointsman.core.events import ModelCard
from pointsman.core.ids import RequestId
from pointsman.core.request import Request
from pointsman.gateway.heads import BadHead, RequestHead
from pointsman.gateway.routing import core_request, routing_fields, with_tokens
from pointsman.ports import PromptTokenizer
from pointsman.wire.endpoints import Endpoint, endpoint_of
from pointsman.wire.openai import BadRequest


async def would_ask(
    path: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    tokenizer: PromptTokenizer | None = None,
    models: Callable[[], Sequence[ModelCard]] = tuple,
) -> Request:
    """The request as it would be asked about; limits of keys do not count. Raises ValueError with a
    sentence for the sender."""
    endpoint = endpoint_of(path)
    if endpoint is None:
        raise ValueError(f"'{path}' is no inference route, like /v1/chat/completions.")
    head = RequestHead(b"POST", path.encode(), is_http_10=True, keep_alive=False)
    body = body.removeprefix(BOM_UTF8)
    try:
        head.read([(name.encode(), value.encode()) for name, value in headers.items()])
        fields = routing_fields(endpoint, head, body)
        request = core_request(RequestId("explain"), fields, head)
        request = request.meaning_one_of([card.name for card in models()])
    except BadHead as bad_head:
        raise ValueError(bad_head.detail) from None
    except BadRequest as bad_request:
        raise ValueError(bad_request.message) from None
    return await _tokenized(tokenizer, request, endpoint, body)


async def _tokenized(
    tokenizer: PromptTokenizer | None, request: Request, endpoint: Endpoint, body: bytes
) -> Request:
    """The request, its prompt as token ids where the gateway would know them."""
    prompt = request.prompt
    if tokenizer is None or prompt.token_count is not None or not prompt.text:
        return request
    ids: asyncio.Future[array[int] | None] = asyncio.get_running_loop().create_future()
    withdraw = tokenizer.tokenize(request.model, endpoint, body, ids.set_result)
    try:
        tokens = await ids
    except asyncio.CancelledError:
        if withdraw is not None:
            withdraw()
        raise
    return request if tokens is None else with_tokens(request, tokens)
