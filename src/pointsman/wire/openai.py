"""What routing needs of a request body, and nothing else; and the shape of an error answer.

A body is decoded once, into a struct of `bodies` that names only the fields needed.
"""

import re
from array import array
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from pointsman.wire.bodies import (
    Body,
    PromptField,
    decode_chat,
    decode_completions,
    decode_generate,
    decode_messages,
    decode_other,
    decode_pooling,
    decode_rerank,
    decode_responses,
    decode_score,
    decode_tokenize,
)
from pointsman.wire.canonical import (
    PIECES_MAX,
    conversation,
    items_conversation,
    joined_content,
)
from pointsman.wire.endpoints import Endpoint
from pointsman.wire.messages import Content
from pointsman.wire.routing_fields import RoutingFields


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
        cause = _HALF_CHARACTER if _HALF.search(body) else str(error)
        message = f"The body is not valid JSON: {cause}. Send one JSON object in UTF-8."
        raise BadRequest(message, code="invalid_json") from None
    except RecursionError:
        message = "The body is nested too deeply. Send a flatter JSON object."
        raise BadRequest(message, code="invalid_json") from None


_HALF_CHARACTER = "it escapes half a character, like an emoji that was cut in two"
_HALF = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F]"
)
"""A UTF-16 surrogate without its other half, which the decoder calls many things."""


def error_body(message: str, type: str, code: str | None, param: str | None) -> bytes:  # noqa: A002 - OpenAI's name
    """An error answer in OpenAI's shape."""
    error = {"message": message, "type": type, "param": param, "code": code}
    return msgspec.json.encode({"error": error})


def _read_chat(body: bytes) -> RoutingFields:
    chat = decode_chat(body)
    limit = chat.max_completion_tokens
    return _fields(
        chat,
        text=conversation((chat.tools, chat.functions, chat.documents), None, chat.messages),
        limit=chat.max_tokens if limit is None else limit,
        n=chat.n,
    )


def _read_messages(body: bytes) -> RoutingFields:
    request = decode_messages(body)
    text = conversation((request.tools,), request.system, request.messages)
    user = request.metadata.user_id if request.metadata else None
    return _fields(request, text=text, limit=request.max_tokens, user=user)


def _read_responses(body: bytes) -> RoutingFields:
    request = decode_responses(body)
    return _fields(
        request,
        text=items_conversation((request.tools,), request.instructions, request.input),
        limit=request.max_output_tokens,
        previous_response_id=request.previous_response_id,
    )


def _read_completions(body: bytes) -> RoutingFields:
    request = decode_completions(body)
    text, tokens, prompts = _first_prompt(request.prompt, "prompt")
    limit = request.n_predict if request.max_tokens is None else request.max_tokens
    return _fields(request, text=text, tokens=tokens, prompts=prompts, limit=limit, n=request.n)


def _read_generate(body: bytes) -> RoutingFields:
    request = decode_generate(body)
    param = "text" if request.input_ids is None else "input_ids"
    if request.token_ids is not None:
        param = "token_ids"
    text, tokens, prompts = _first_prompt(getattr(request, param), param)
    sampling = request.sampling
    limit = sampling.max_new_tokens if sampling.max_tokens is None else sampling.max_tokens
    return _fields(request, text=text, tokens=tokens, prompts=prompts, limit=limit, n=sampling.n)


def _read_pooling(body: bytes) -> RoutingFields:
    request = decode_pooling(body)
    if request.messages is not None:
        return _fields(request, text=conversation((), None, request.messages), limit=0)
    param = "content" if request.input is None else "input"
    text, tokens, prompts = _first_prompt(getattr(request, param), param)
    return _fields(request, text=text, tokens=tokens, prompts=prompts, limit=0)


def _read_tokenize(body: bytes) -> RoutingFields:
    request = decode_tokenize(body)
    if request.messages is not None:
        text = conversation((request.tools,), request.system, request.messages)
        return _fields(request, text=text, limit=0)
    param = "content" if request.prompt is None else "prompt"
    first, tokens, prompts = _first_prompt(getattr(request, param), param)
    return _fields(request, text=first, tokens=tokens, prompts=prompts, limit=0)


def _read_rerank(body: bytes) -> RoutingFields:
    request = decode_rerank(body)
    documents = request.documents or []
    query = [request.query] if bytes(request.query) else None
    apart, rest = documents[:PIECES_MAX], documents[PIECES_MAX:]
    contents: list[Content] = [query, *[[document] for document in apart]]
    if rest:
        contents.append(rest)
    text = joined_content(contents)
    return _fields(request, text=text, prompts=max(1, len(documents)), limit=0)


def _read_score(body: bytes) -> RoutingFields:
    request = decode_score(body)
    left = _first_of(request.text_1, request.queries, request.data_1)
    right = _first_of(request.text_2, request.documents, request.items, request.data_2)
    prompts = max(1, _count(left), _count(right))
    return _fields(request, text=joined_content((left, right)), prompts=prompts, limit=0)


def _read_other(body: bytes) -> RoutingFields:
    return _fields(decode_other(body))


def _fields(
    body: Body,
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


def _first_prompt(prompt: PromptField, param: str) -> "tuple[bytes | None, array[int] | None, int]":
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


_READERS: Final[Mapping[Endpoint, Callable[[bytes], RoutingFields]]] = MappingProxyType(
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
