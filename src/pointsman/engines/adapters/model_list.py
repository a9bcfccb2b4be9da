"""GET /v1/models: what an engine serves, its adapters included."""

import msgspec

from pointsman.core.events import ModelCard
from pointsman.core.ids import ModelName
from pointsman.core.limits import MODEL_CHARS_MAX
from pointsman.decoding import decoded_or_none

MODELS_MAX = 1_000
"""Models of one engine: vLLM can hold hundreds of LoRA adapters. More are cut off."""


class ModelList(msgspec.Struct, frozen=True):
    """The cards, and which engine the list says it is from (`owned_by`)."""

    cards: tuple[ModelCard, ...]
    owner: str


class _Meta(msgspec.Struct, frozen=True):
    n_ctx: int | None = None


class _Entry(msgspec.Struct, frozen=True):
    id: str
    owned_by: str | None = None
    parent: str | None = None
    root: str | None = None
    max_model_len: int | None = None
    meta: _Meta | None = None  # llama.cpp's


class _List(msgspec.Struct, frozen=True):
    data: list[_Entry]


_decode = msgspec.json.Decoder(_List, strict=False).decode


def read_model_list(body: bytes) -> ModelList | None:
    """The models of an answer's body; None if it is no list of models."""
    found = decoded_or_none(_decode, body)
    if found is None:
        return None
    entries = found.data
    owner = entries[0].owned_by if entries else None
    named = [entry for entry in entries if _is_name(entry.id)]
    return ModelList(tuple(map(_card, named[:MODELS_MAX])), owner or "")


def _is_name(text: str) -> bool:
    """It stands in logs, where a line's end would begin another one."""
    return 0 < len(text) <= MODEL_CHARS_MAX and text.isprintable()


def _card(entry: _Entry) -> ModelCard:
    context = entry.max_model_len or (entry.meta.n_ctx if entry.meta else None) or 0
    parent = ModelName(entry.parent) if entry.parent else None
    root = entry.root if len(entry.root or "") <= MODEL_CHARS_MAX else None
    return ModelCard(ModelName(entry.id), context if context > 0 else None, parent, root)
