"""Small prompts as token ids: by our tokenizer, and by the engine's /tokenize."""

import asyncio

import msgspec
from msgspec import Raw

from pointsman.collectors.client import EngineClient
from pointsman.control.doctor.probes import error_of
from pointsman.control.doctor.seen import TokensSeen
from pointsman.core.ids import ModelName
from pointsman.decoding import decoded_or_none
from pointsman.engines.adapters import EngineTrouble
from pointsman.engines.tokenizer import Fallback, ModelTokenizer
from pointsman.engines.tokenizer.engine_source import question_of
from pointsman.engines.tokenizer.fallback import Inexact
from pointsman.wire.endpoints import Endpoint

ANSWER_S_MAX = 5.0

_TEXT = "Which track is set for the 12:05 to Überlingen?\n  Two blanks, digits 1234567, 信号 🚂."
_BODIES = (
    (Endpoint.COMPLETIONS, "completion", {"prompt": _TEXT}),
    (Endpoint.CHAT, "chat", {"messages": [{"role": "user", "content": _TEXT}]}),
)


async def compare(
    client: EngineClient, model: str, tokenizer: ModelTokenizer | None
) -> tuple[TokensSeen, ...]:
    """The ids of a completion and of a chat; without `tokenizer` only the engine is asked."""
    seen = []
    for endpoint, word, fields in _BODIES:
        body = msgspec.json.encode({"model": model, **fields})
        ours, theirs, trouble = None, None, ""
        try:
            ours = await _encoded(tokenizer, endpoint, body)
        except Inexact as inexact:
            if inexact.cause is Fallback.OPTIONS:
                continue  # configured without a chat template
            trouble = str(inexact)
        try:
            theirs = await _asked(client, question_of(ModelName(model), endpoint, body))
        except EngineTrouble as error:
            trouble = trouble or str(error)
        seen.append(
            TokensSeen(model=model, endpoint=word, ours=ours, theirs=theirs, trouble=trouble)
        )
    return tuple(seen)


async def _encoded(
    tokenizer: ModelTokenizer | None, endpoint: Endpoint, body: bytes
) -> tuple[int, ...] | None:
    """Our ids; None without a tokenizer. Raises Inexact."""
    if tokenizer is None:
        return None
    encoded = await asyncio.to_thread(tokenizer.tokens, endpoint, body)
    return tuple(encoded.tokens)


class _Ids(msgspec.Struct, frozen=True):
    tokens: tuple[int, ...]


async def _asked(client: EngineClient, question: bytes) -> tuple[int, ...]:
    """The engine's ids. Raises EngineTrouble."""
    reply = await client.post("/tokenize", Raw(question), timeout_s=ANSWER_S_MAX)
    if reply.status != 200:
        raise EngineTrouble(f"POST /tokenize answers {reply.status}: {error_of(reply.body)}")
    told = decoded_or_none(msgspec.json.Decoder(_Ids).decode, reply.body)
    if told is None:
        raise EngineTrouble("POST /tokenize answers no token ids")
    ids = told.tokens
    if not ids:  # llama.cpp takes another body, and gives none for one that it does not know
        raise EngineTrouble("POST /tokenize gives no ids for this engine's kind")
    return ids
