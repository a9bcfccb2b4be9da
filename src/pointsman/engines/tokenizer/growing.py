"""Chats of one template that writes each message by itself: what it wrote of a message, and the
ids of that, need not be found out again.

A message is known by its bytes in the body, within a context: all else that its text may depend
on. The leading messages and the last one are never known: the context has the former, and behind
the latter the template may write what it likes.
"""

from collections.abc import Sequence
from hashlib import blake2b
from threading import Lock

import msgspec
from msgspec import Raw

from pointsman.engines.tokenizer.chat import Chat, ChatBody, chat_of, read_message
from pointsman.engines.tokenizer.encoded import Encoded
from pointsman.engines.tokenizer.encoder import Encoder
from pointsman.engines.tokenizer.itemwise import KNOWN
from pointsman.engines.tokenizer.template import ChatTemplate

MESSAGES_MIN = 16
"""Shorter chats are rendered as fast as looked up."""

CONTEXTS_MAX = 4_096
"""Contexts that are remembered: 100 bytes each. A conversation has one."""

FAILURES_MAX = 8
"""More chats than did well, whose messages turn out not to stand apart: it is given up then."""


class GrowingChats:
    """Of one template that has `leading`, for several threads."""

    def __init__(self, encoder: Encoder, template: ChatTemplate, leading: int) -> None:
        self._encoder = encoder
        self._template = template
        self._leading = leading
        self._pieces = encoder.pieces
        self._owners: dict[bytes, int] = {}  # by context, the least recently used first
        self._failures = 0  # less those that did well
        self._lock = Lock()

    def tokens(self, body: ChatBody) -> Encoded | None:
        """The prompt's ids; None where it has to be rendered as a whole. Raises Inexact."""
        is_short = len(body.messages) < max(MESSAGES_MIN, self._leading + 2)
        if is_short or body.continue_final_message or self._is_futile:
            return None
        chat = chat_of(body, [], reads=self._template.reads)
        owner = self._owner(chat, body.messages[: self._leading])
        inner = list(map(bytes, body.messages[self._leading : -1]))
        known = self._pieces.find(owner, inner)
        texts = self._texts(chat, body.messages, known)
        self._failures += 1 if texts is None else -(self._failures > 0)
        if texts is None:
            return None
        front, between, last = texts
        ids, remembered = self._encoder.ids(front)
        parts = [ids]
        for raw, text, had in zip(inner, between, known, strict=True):
            ids, count = (had, len(had)) if had is not None else self._encoder.ids(text)
            if had is None:
                self._pieces.keep(owner, raw, ids)
            parts.append(ids)
            remembered += count
        ids, count = self._encoder.ids(last)
        return self._encoder.joined(
            [*parts, ids], remembered + count, special_tokens=chat.special_tokens
        )

    @property
    def _is_futile(self) -> bool:
        return self._failures >= FAILURES_MAX

    def _owner(self, chat: Chat, leading: Sequence[Raw]) -> int:
        """The number under which the messages of a context are known."""
        written = msgspec.msgpack.encode((chat.tools, chat.variables, list(map(bytes, leading))))
        context = blake2b(written, digest_size=16).digest()
        with self._lock:
            owner = self._owners.pop(context, None) or self._pieces.new_owner()
            self._owners[context] = owner  # the last to be forgotten
            if len(self._owners) > CONTEXTS_MAX:
                del self._owners[next(iter(self._owners))]
        return owner

    def _texts(
        self, chat: Chat, raws: Sequence[Raw], known: Sequence[bytes | None]
    ) -> tuple[str, Sequence[str], str] | None:
        """What is written up to the last of the leading messages, of each further one, and from
        the last one on; None if their ids depend on what stands before them."""
        is_known = [False] * self._leading + [ids is not None for ids in known] + [False]
        parts_stay = self._template.parts_stay
        messages = [
            KNOWN if skip else read_message(raw, parts_stay=parts_stay)
            for raw, skip in zip(raws, is_known, strict=True)
        ]
        parts = self._template.render_apart(msgspec.structs.replace(chat, messages=messages))
        start = 0 if parts is None else len(parts) - len(known) - 2
        if parts is None or not 1 <= start <= 1 + self._leading:
            return None
        between, last = parts[start:-2], parts[-2] + parts[-1]
        apart = all(map(self._encoder.begins_apart, between)) and self._encoder.begins_apart(last)
        return ("".join(parts[:start]), between, last) if apart else None
