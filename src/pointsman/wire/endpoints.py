"""Which path is which kind of request, for every inference route of the engines we front."""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple


class Endpoint(StrEnum):
    """Paths whose bodies are read in the same way."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    GENERATE = "generate"
    EMBEDDINGS = "embeddings"
    RERANK = "rerank"
    SCORE = "score"
    TOKENIZE = "tokenize"
    DETOKENIZE = "detokenize"
    AUDIO = "audio"
    KEPT = "kept_response"
    OTHER = "other"


class KeptRoute(NamedTuple):
    """A path under a response that an engine keeps, and what can be done there."""

    response_id: str
    methods: tuple[bytes, ...]


def kept_route(path: str) -> KeptRoute | None:
    """The route of a path under a response's own; None for any other path."""
    found = _KEPT.fullmatch(path)
    return None if found is None else KeptRoute(found[1], _KEPT_METHODS[found[2] or ""])


def endpoint_of(path: str) -> Endpoint | None:
    """The endpoint of a path without its query; None for a path no engine serves."""
    return _ENDPOINTS.get(path)


# TOKENIZE takes what is rendered or counted without generating; EMBEDDINGS all pooling.
_PATHS: Final[Mapping[Endpoint, str]] = {
    Endpoint.CHAT: "/v1/chat/completions /chat/completions",
    Endpoint.COMPLETIONS: "/v1/completions /completions /completion /infill",
    Endpoint.RESPONSES: "/v1/responses /responses",
    Endpoint.MESSAGES: "/v1/messages",
    Endpoint.GENERATE: "/inference/v1/generate /generate",
    Endpoint.EMBEDDINGS: (
        "/v1/embeddings /embeddings /embedding /v2/embed /pooling /classify /v1/classify "
        "/v1/moderations /encode"
    ),
    Endpoint.RERANK: "/v1/rerank /rerank /v2/rerank /reranking /v1/reranking",
    Endpoint.SCORE: "/v1/score /score",
    Endpoint.TOKENIZE: (
        "/tokenize /v1/tokenize /apply-template /v1/messages/count_tokens "
        "/v1/chat/completions/render /v1/completions/render"
    ),
    Endpoint.DETOKENIZE: "/detokenize /v1/detokenize",
    Endpoint.AUDIO: "/v1/audio/transcriptions /v1/audio/translations /v1/audio/speech",
    Endpoint.OTHER: "/v1/images/generations /v1/images/edits /inference/v1/abort_requests",
}

_ENDPOINTS: Final[dict[str, Endpoint]] = {
    path: endpoint for endpoint, paths in _PATHS.items() for path in paths.split()
}

_KEPT: Final = re.compile(r"(?:/v1)?/responses/([^/]+)(/cancel|/input_items)?")
_KEPT_METHODS: Final = {
    "": (b"GET", b"DELETE"),
    "/cancel": (b"POST",),
    "/input_items": (b"GET",),
}
