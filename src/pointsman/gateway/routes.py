"""The closed table of routes: what is handed to an engine, and what is answered here."""

from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import unquote

import msgspec

from pointsman.core.errors import Reason
from pointsman.core.events import ModelCard
from pointsman.gateway.keys import Key
from pointsman.gateway.replies import Reply
from pointsman.gateway.shared import Shared
from pointsman.ports import Placer
from pointsman.wire.endpoints import Endpoint, endpoint_of, kept_route


class LocalRoute(StrEnum):
    """Answered without an engine."""

    MODELS = "models"
    MODEL = "model"
    HEALTH = "health"
    READY = "ready"
    PREFLIGHT = "preflight"


_LOCAL: Final[Mapping[str, LocalRoute]] = {
    "/v1/models": LocalRoute.MODELS,
    "/models": LocalRoute.MODELS,
    "/health": LocalRoute.HEALTH,
    "/ready": LocalRoute.READY,
}
_MODEL_PREFIX: Final = "/v1/models/"
_READ: Final = b"GET, HEAD, OPTIONS"
_POST: Final = b"POST, OPTIONS"


class NoRoute(NamedTuple):
    """Nothing there, or not with this method; `allow` names those that work."""

    reason: Reason
    allow: bytes = b""


Route = Endpoint | LocalRoute | NoRoute


def route_of(method: bytes, path: str) -> Route:
    """Where a request belongs."""
    if method == b"POST" and (endpoint := endpoint_of(path)) is not None:
        return endpoint
    if method == b"OPTIONS":
        return LocalRoute.PREFLIGHT
    if (kept := kept_route(path)) is not None and method in kept.methods:
        return Endpoint.KEPT
    allowed = allowed_methods(path)
    if not allowed:
        return NoRoute(Reason.ROUTE_NOT_FOUND)
    if allowed is _READ and method in (b"GET", b"HEAD"):
        return _LOCAL.get(path, LocalRoute.MODEL)
    return NoRoute(Reason.METHOD_NOT_ALLOWED, allowed)


def allowed_methods(path: str) -> bytes:
    """The value of an Allow header; empty for a path that is not there."""
    if endpoint_of(path) is not None:
        return _POST
    if path in _LOCAL or (path.startswith(_MODEL_PREFIX) and len(path) > len(_MODEL_PREFIX)):
        return _READ
    if (kept := kept_route(path)) is not None:
        return b", ".join((*kept.methods, b"OPTIONS"))
    return b""


def health_reply() -> Reply:
    """The process lives; whether it can place is `/ready`."""
    return Reply(200, b'{"status":"ok"}')


def ready_reply(shared: Shared) -> Reply:
    """Whether a request sent here can be served."""
    if shared.draining:
        return shared.refusal(Reason.DRAINING)
    if not shared.placer.ready():
        return shared.refusal(Reason.NO_NODE)
    return Reply(200, b'{"status":"ready"}')


def models_reply(placer: Placer, key: Key | None) -> Reply:
    """The registry as OpenAI lists models: what the key may use of it."""
    return Reply(200, _list_body(_visible(placer, key)))


def model_reply(shared: Shared, key: Key | None, path: str) -> Reply:
    """One model. Names may hold slashes, percent-encoded or not."""
    name = unquote(path[len(_MODEL_PREFIX) :])
    for card in _visible(shared.placer, key):
        if card.name == name:
            return Reply(200, msgspec.json.encode(_entry(card)))
    return shared.refusal(Reason.MODEL_NOT_FOUND, param="model")


def _visible(placer: Placer, key: Key | None) -> tuple[ModelCard, ...]:
    return tuple(card for card in placer.models() if key is None or key.allows(card.name))


@lru_cache(maxsize=16)
def _list_body(cards: tuple[ModelCard, ...]) -> bytes:
    return msgspec.json.encode({"object": "list", "data": [_entry(card) for card in cards]})


def _entry(card: ModelCard) -> dict[str, object]:
    entry: dict[str, object] = {
        "id": card.name,
        "object": "model",
        "created": 0,
        "owned_by": "pointsman",
        "root": card.parent or card.name,
        "parent": card.parent,
    }
    if card.context_tokens_max is not None:
        entry["max_model_len"] = card.context_tokens_max
    return entry
