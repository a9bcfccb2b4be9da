"""What routing needs of a request body, and nothing else; and the shape of an error answer.

A body is decoded once, into a struct that names only the fields needed: the decoder skips
the rest without building it. Values are taken as leniently as the engines take them
(`"10"` and `10.0` are integers, `1` is true), so that nothing is refused here that an engine
would serve.
"""

import re
from array import array
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import Raw

from pointsman.wire.canonical import (
    PIECES_MAX,
    Content,
    Message,
    conversation,
    items_conversation,
    joined_content,
)
from pointsman.wire.endpoints import Endpoint, endpoint_of

__all__ = [
    "BadRequest",
    "Endpoint",
    "RoutingFields",
    "endpoint_of",
    "error_body",
    "read_request",
]


class RoutingFields(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What a placement depends on. None: the client did not say.

    `prompt_text` are canonical bytes (see `canonical`), `prompt_tokens` ids as signed 64-bit
    (read, never written); of a list of prompts they are the first, and `prompts` counts all.
    `max_output_tokens` is for one choice of one prompt; 0 where nothing is generated.
    """

    model: str | None = None
    stream: bool = False
    prompt_text: bytes | None = None
    prompt_tokens: "array[int] | None" = None
    prompts: int = 1
    max_output_tokens: int | None = None
    n: int = 1
    cache_salt: str | None = None
    prompt_cache_key: str | None = None
    previous_response_id: str | None = None
    service_tier: str | None = None
    priority: int | None = None
    user: str | None = None
    safety_identifier: str | None = None


class BadRequest(Exception):  # noqa: N818 - named by whose fault it is
    """The client's body cannot be read. `message` names the field and the remedy."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


def read_request(endpoint: Endpoint, body: bytes) -> RoutingFields:
    """The routing fields of a JSON body. Raises BadRequest, and nothing else."""
    try:
        return _READERS[endpoint](body)
    except msgspec.ValidationError as error:
        raise _bad_field(str(error)) from None
    except msgspec.DecodeError as error:
        message = f"The body is not valid JSON: {error}. Send one JSON object in UTF-8."
        raise BadRequest(message, code="invalid_json") from None
    except RecursionError:
        message = "The body is nested too deeply. Send a flatter JSON object."
        raise BadRequest(message, code="invalid_json") from None


def error_body(message: str, type: str, code: str | None, param: str | None) -> bytes:  # noqa: A002 - OpenAI's name
    """An error answer in OpenAI's shape."""
    error = {"message": message, "type": type, "param": param, "code": code}
    return msgspec.json.encode({"error": error})


class _Body(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    model: str | None = None
    stream: bool | None = None
    cache_salt: str | None = None
    prompt_cache_key: str | None = None
    service_tier: str | None = None
    priority: int | None = None
    user: str | None = None
    safety_identifier: str | None = None


class _Chat(_Body, frozen=True, gc=False, kw_only=True):
    messages: list[Message]
    tools: Raw = Raw()
    functions: Raw = Raw()
    documents: Raw = Raw()
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None


def _read_chat(body: bytes) -> RoutingFields:
    chat = _decode_chat(body)
    limit = chat.max_completion_tokens
    return _fields(
        chat,
        text=conversation((chat.tools, chat.functions, chat.documents), None, chat.messages),
        limit=chat.max_tokens if limit is None else limit,
        n=chat.n,
    )


class _Metadata(msgspec.Struct, frozen=True, gc=False):
    user_id: str | None = None


class _Messages(_Body, frozen=True, gc=False, kw_only=True):
    messages: list[Message]
    system: Content = None
    tools: Raw = Raw()
    max_tokens: int | None = None
    metadata: _Metadata | None = None


def _read_messages(body: bytes) -> RoutingFields:
    request = _decode_messages(body)
    text = conversation((request.tools,), request.system, request.messages)
    user = request.metadata.user_id if request.metadata else None
    return _fields(request, text=text, limit=request.max_tokens, user=user)


class _Responses(_Body, frozen=True, gc=False, kw_only=True):
    input: Content = None
    instructions: Content = None
    tools: Raw = Raw()
    max_output_tokens: int | None = None
    previous_response_id: str | None = None


def _read_responses(body: bytes) -> RoutingFields:
    request = _decode_responses(body)
    return _fields(
        request,
        text=items_conversation((request.tools,), request.instructions, request.input),
        limit=request.max_output_tokens,
        previous_response_id=request.previous_response_id,
    )


_Prompt = str | list[int | str | list[int] | dict[str, Any]] | None


class _Completions(_Body, frozen=True, gc=False, kw_only=True):
    prompt: _Prompt = None
    max_tokens: int | None = None
    n_predict: int | None = None  # llama.cpp's /completion
    n: int | None = None


def _read_completions(body: bytes) -> RoutingFields:
    request = _decode_completions(body)
    text, tokens, prompts = _first_prompt(request.prompt, "prompt")
    limit = request.n_predict if request.max_tokens is None else request.max_tokens
    return _fields(request, text=text, tokens=tokens, prompts=prompts, limit=limit, n=request.n)


class _Sampling(msgspec.Struct, frozen=True, gc=False):
    max_tokens: int | None = None
    max_new_tokens: int | None = None  # SGLang's
    n: int | None = None


class _Generate(_Body, frozen=True, gc=False, kw_only=True):
    token_ids: _Prompt = None
    input_ids: _Prompt = None  # SGLang's
    text: _Prompt = None
    sampling_params: _Sampling = _Sampling()


def _read_generate(body: bytes) -> RoutingFields:
    request = _decode_generate(body)
    param = next((p for p in ("token_ids", "input_ids") if getattr(request, p) is not None), "text")
    text, tokens, prompts = _first_prompt(getattr(request, param), param)
    sampling = request.sampling_params
    limit = sampling.max_new_tokens if sampling.max_tokens is None else sampling.max_tokens
    return _fields(request, text=text, tokens=tokens, prompts=prompts, limit=limit, n=sampling.n)


class _Pooling(_Body, frozen=True, gc=False, kw_only=True):
    input: _Prompt = None
    content: _Prompt = None  # llama.cpp's /embedding
    messages: list[Message] | None = None


def _read_pooling(body: bytes) -> RoutingFields:
    request = _decode_pooling(body)
    if request.messages is not None:
        return _fields(request, text=conversation((), None, request.messages), limit=0)
    param = "content" if request.input is None else "input"
    text, tokens, prompts = _first_prompt(getattr(request, param), param)
    return _fields(request, text=text, tokens=tokens, prompts=prompts, limit=0)


class _Tokenize(_Body, frozen=True, gc=False, kw_only=True):
    prompt: _Prompt = None
    content: _Prompt = None  # llama.cpp's
    messages: list[Message] | None = None
    system: Content = None
    tools: Raw = Raw()


def _read_tokenize(body: bytes) -> RoutingFields:
    request = _decode_tokenize(body)
    if request.messages is not None:
        text = conversation((request.tools,), request.system, request.messages)
        return _fields(request, text=text, limit=0)
    param = "content" if request.prompt is None else "prompt"
    first, tokens, prompts = _first_prompt(getattr(request, param), param)
    return _fields(request, text=first, tokens=tokens, prompts=prompts, limit=0)


class _Rerank(_Body, frozen=True, gc=False, kw_only=True):
    query: Raw = Raw()
    documents: list[Raw] | None = None


def _read_rerank(body: bytes) -> RoutingFields:
    request = _decode_rerank(body)
    documents = request.documents or []
    query = [request.query] if bytes(request.query) else None
    apart, rest = documents[:PIECES_MAX], documents[PIECES_MAX:]
    contents: list[Content] = [query, *([document] for document in apart)]
    if rest:
        contents.append(rest)
    text = joined_content(contents)
    return _fields(request, text=text, prompts=max(1, len(documents)), limit=0)


class _Score(_Body, frozen=True, gc=False, kw_only=True):
    text_1: Content = None
    text_2: Content = None
    queries: Content = None
    documents: Content = None
    items: Content = None
    data_1: Content = None
    data_2: Content = None


def _read_score(body: bytes) -> RoutingFields:
    request = _decode_score(body)
    left = _first_of(request.text_1, request.queries, request.data_1)
    right = _first_of(request.text_2, request.documents, request.items, request.data_2)
    prompts = max(1, _count(left), _count(right))
    return _fields(request, text=joined_content((left, right)), prompts=prompts, limit=0)


def _read_other(body: bytes) -> RoutingFields:
    return _fields(_decode_other(body))


def _fields(
    body: _Body,
    *,
    text: bytes | None = None,
    tokens: "array[int] | None" = None,
    prompts: int = 1,
    limit: int | None = None,
    n: int | None = None,
    user: str | None = None,
    previous_response_id: str | None = None,
) -> RoutingFields:
    return RoutingFields(
        model=body.model,
        stream=bool(body.stream),
        prompt_text=text,
        prompt_tokens=tokens,
        prompts=prompts,
        # llama.cpp's -1 means no limit; other negatives are the engine's to refuse.
        max_output_tokens=limit if limit is None or limit >= 0 else None,
        n=max(1, n or 1),
        cache_salt=body.cache_salt,
        prompt_cache_key=body.prompt_cache_key,
        previous_response_id=previous_response_id,
        service_tier=body.service_tier,
        priority=body.priority,
        user=body.user if user is None else user,
        safety_identifier=body.safety_identifier,
    )


def _first_prompt(prompt: _Prompt, param: str) -> "tuple[bytes | None, array[int] | None, int]":
    """Text or token ids of the first prompt, and how many prompts there are."""
    if isinstance(prompt, str):
        return prompt.encode(), None, 1
    if not prompt:
        return None, None, 1
    match prompt[0]:
        case int():
            return None, _token_array(prompt, param), 1
        case str() as first:
            return first.encode(), None, len(prompt)
        case list() as ids:
            return None, _token_array(ids, f"{param}[0]"), len(prompt)
        case dict() as part:
            return msgspec.json.encode(part), None, len(prompt)


def _token_array(ids: list[Any], param: str) -> "array[int]":
    try:
        return array("q", ids)
    except (TypeError, OverflowError):
        message = f"'{param}' mixes token ids with other values. Send integers only, below 2^63."
        raise BadRequest(message, param, "invalid_type") from None


def _first_of(*contents: Content) -> Content:
    return next((content for content in contents if content is not None), None)


def _count(content: Content) -> int:
    return len(content) if isinstance(content, list) else 1


_MISMATCH = re.compile(r"Expected `(.+?)`(?:, got `(.+?)`)?(?: - at `\$\.?(.*)`)?$")
_MISSING = re.compile(r"Object missing required field `(.+?)`(?: - at `\$\.?(.*)`)?$")
_JSON_NAMES = MappingProxyType(
    {
        "str": "a string",
        "int": "an integer",
        "float": "a number",
        "bool": "a boolean",
        "array": "an array",
        "object": "an object",
        "null": "null",
    }
)


def _bad_field(error: str) -> BadRequest:
    if found := _MISSING.match(error):
        name, parent = found.groups()
        param = f"{parent}.{name}" if parent else name
        message = f"Missing required parameter: '{param}'. Add it to the request body."
        return BadRequest(message, param, "missing_required_parameter")
    if found := _MISMATCH.match(error):
        expected, got, path = found.groups()
        where = f"for '{path}'" if path else "for the body"
        wanted = " or ".join(_JSON_NAMES.get(kind, kind) for kind in expected.split(" | "))
        but = f", got {_JSON_NAMES.get(got, got)}" if got else ""
        message = f"Invalid type {where}: expected {wanted}{but}. Send {wanted}."
        return BadRequest(message, path or None, "invalid_type")
    reason, _, path = error.partition(" - at `$")
    param = path.strip(".`")
    message = f"Invalid value for '{param}': {reason}. Correct it or leave it out."
    return BadRequest(message, param or None, "invalid_value")


_decode_chat = msgspec.json.Decoder(_Chat, strict=False).decode
_decode_messages = msgspec.json.Decoder(_Messages, strict=False).decode
_decode_responses = msgspec.json.Decoder(_Responses, strict=False).decode
_decode_completions = msgspec.json.Decoder(_Completions, strict=False).decode
_decode_generate = msgspec.json.Decoder(_Generate, strict=False).decode
_decode_pooling = msgspec.json.Decoder(_Pooling, strict=False).decode
_decode_tokenize = msgspec.json.Decoder(_Tokenize, strict=False).decode
_decode_rerank = msgspec.json.Decoder(_Rerank, strict=False).decode
_decode_score = msgspec.json.Decoder(_Score, strict=False).decode
_decode_other = msgspec.json.Decoder(_Body, strict=False).decode

_READERS: Mapping[Endpoint, Callable[[bytes], RoutingFields]] = MappingProxyType(
    {
        Endpoint.CHAT: _read_chat,
        Endpoint.COMPLETIONS: _read_completions,
        Endpoint.RESPONSES: _read_responses,
        Endpoint.MESSAGES: _read_messages,
        Endpoint.GENERATE: _read_generate,
        Endpoint.EMBEDDINGS: _read_pooling,
        Endpoint.RERANK: _read_rerank,
        Endpoint.SCORE: _read_score,
        Endpoint.TOKENIZE: _read_tokenize,
        Endpoint.DETOKENIZE: _read_other,
        Endpoint.AUDIO: _read_other,
        Endpoint.KEPT: _read_other,
        Endpoint.OTHER: _read_other,
    }
)
assert set(_READERS) == set(Endpoint), "every endpoint has a reader"
