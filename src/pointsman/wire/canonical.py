"""A conversation as bytes, such that turn n's bytes are a prefix of turn n+1's.

Engines render tools first, then the messages in order; so do these bytes. Text is taken as
decoded UTF-8, so that two spellings of one string (escaped or not, plain or as an array with
one text part) are one. Marks are bytes that UTF-8 never contains: no text can imitate them.

    front    F8 raw JSON            tools, functions, documents
    message  FF role FE content     then, where present:
             FD name  FC tool call  FB id of the call that is answered
    content  text as it is; parts are joined by a newline, as vLLM joins them
             FA digest              a part that is no text: image, audio, file
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
from msgspec import Raw
from xxhash import xxh3_128_hexdigest

from pointsman.wire.messages import (
    ABSENT,
    Content,
    Message,
    decode_item,
    decode_part,
    decode_text,
)

PIECES_MAX = 32_768
"""Pieces that are read one by one, at up to 3 us each; a message has four. What stands behind
them is taken as JSON, at once: a prefix is still a prefix, and millions of tiny parts do not
hold up the loop for seconds."""

_MESSAGE: Final = b"\xff"
_CONTENT: Final = b"\xfe"
_NAME: Final = b"\xfd"
_CALL: Final = b"\xfc"
_ANSWERED: Final = b"\xfb"
_OPAQUE: Final = b"\xfa"
_FRONT: Final = b"\xf8"
_QUOTE: Final = ord('"')

_NOTHING: Final = frozenset({b"", b"null", b"[]"})
_TEXT_PARTS: Final = frozenset({"text", "input_text", "output_text", None})


def conversation(front: Iterable[Raw], system: Content, messages: Sequence[Message]) -> bytes:
    """Canonical bytes of a chat: front matter, system text where it is apart, messages.

    Raises msgspec.DecodeError for a part whose text is not UTF-8.
    """
    out: list[bytes] = []
    _put_front(out, front)
    _put_system(out, system)
    for index, message in enumerate(messages):
        if len(out) >= PIECES_MAX:
            _put_rest(out, messages[index:])
            break
        _put_message(out, message)
    return b"".join(out)


def items_conversation(front: Iterable[Raw], system: Content, items: Content) -> bytes:
    """Canonical bytes of a Responses API request. Raises as `conversation` does."""
    out: list[bytes] = []
    _put_front(out, front)
    _put_system(out, system)
    if isinstance(items, str):
        out += (_MESSAGE, b"user", _CONTENT, items.encode())
    elif items is not None:
        for index, raw in enumerate(items):
            if len(out) >= PIECES_MAX:
                _put_rest(out, items[index:])
                break
            _put_item(out, raw)
    return b"".join(out)


def joined_content(contents: Iterable[Content]) -> bytes:
    """Texts that are scored together (a query and its documents), each behind a mark."""
    out: list[bytes] = []
    for content in contents:
        out.append(_CONTENT)
        _put_content(out, content)
    return b"".join(out)


def _put_front(out: list[bytes], front: Iterable[Raw]) -> None:
    for raw in front:
        _put_raw(out, _FRONT, raw)


def _put_system(out: list[bytes], system: Content) -> None:
    if system is not None:
        out += (_MESSAGE, b"system", _CONTENT)
        _put_content(out, system)


def _put_message(out: list[bytes], message: Message) -> None:
    content = message.content
    if isinstance(content, str):
        out += (_MESSAGE, message.role.encode(), _CONTENT, content.encode())
    else:
        out += (_MESSAGE, message.role.encode(), _CONTENT)
        _put_content(out, content)
    if message.name is not None:
        out += (_NAME, message.name.encode())
    _put_raw(out, _CALL, message.tool_calls)
    _put_raw(out, _CALL, message.function_call)
    if message.tool_call_id is not None:
        out += (_ANSWERED, message.tool_call_id.encode())


def _put_raw(out: list[bytes], mark: bytes, raw: Raw) -> None:
    if raw is not ABSENT and (data := bytes(raw)) not in _NOTHING:
        out += (mark, data)


def _put_item(out: list[bytes], raw: Raw) -> None:
    try:
        item = decode_item(raw)
    except msgspec.ValidationError:
        out += (_MESSAGE, _OPAQUE, _digest(raw))
        return
    if item.role is not None:
        _put_message(out, Message(item.role, item.content))
    elif item.output is not None:
        out += (_MESSAGE, b"tool", _ANSWERED, (item.call_id or "").encode(), _CONTENT)
        _put_content(out, item.output)
    elif (call := item.arguments if item.arguments is not None else item.input) is not None:
        out += (_MESSAGE, _CALL, (item.name or "").encode(), _CONTENT, call.encode())
    else:
        out += (_MESSAGE, _OPAQUE, _digest(raw))


def _put_content(out: list[bytes], content: Content) -> None:
    if isinstance(content, str):
        out.append(content.encode())
    elif content is not None:
        for index, raw in enumerate(content):
            if len(out) >= PIECES_MAX:
                _put_rest(out, content[index:])
                break
            if index:
                out.append(b"\n")
            _put_part(out, raw)


def _put_part(out: list[bytes], raw: Raw) -> None:
    if memoryview(raw)[0] == _QUOTE:
        out.append(decode_text(raw).encode())
        return
    try:
        part = decode_part(raw)
    except msgspec.ValidationError:
        out += (_OPAQUE, _digest(raw))
        return
    if part.text is not None and part.type in _TEXT_PARTS:
        out.append(part.text.encode())
    elif part.type == "tool_use":
        out += (_CALL, (part.name or "").encode(), _CONTENT, bytes(part.input))
    elif part.type == "tool_result":
        out += (_ANSWERED, (part.tool_use_id or "").encode(), _CONTENT)
        _put_content(out, part.content)
    elif part.cache_control is ABSENT:
        out += (_OPAQUE, _digest(raw))
    else:
        out += (_OPAQUE, _digest(_CACHE_CONTROL.sub(b"", bytes(raw))))


def _put_rest(out: list[bytes], rest: Sequence[Message] | Sequence[Raw]) -> None:
    out.append(msgspec.json.encode(rest))


def _digest(data: Raw | bytes) -> bytes:
    return xxh3_128_hexdigest(data).encode()


# Clients move Anthropic's cache_control from turn to turn; it is no part of the prompt.
_MARKER: Final = rb'"cache_control"\s*:\s*(?:\{[^{}]*\}|null)'
_CACHE_CONTROL: Final = re.compile(rb",\s*" + _MARKER + rb"|" + _MARKER + rb"\s*,\s*")
