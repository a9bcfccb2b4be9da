"""Messages, items and their parts as clients send them: of each, what its canonical bytes tell."""

from typing import Final, TypeAlias

import msgspec
from msgspec import Raw

Content: TypeAlias = str | list[Raw] | None

ABSENT: Final = Raw()
"""What a field of raw JSON is that was not sent."""


class Message(msgspec.Struct, frozen=True, gc=False):
    """A chat message, of OpenAI's or Anthropic's kind."""

    role: str
    content: Content = None
    name: str | None = None
    tool_calls: Raw = ABSENT
    tool_call_id: str | None = None
    function_call: Raw = ABSENT


class Item(msgspec.Struct, frozen=True, gc=False):
    """An item of a Responses API input: a message, a tool call or its output, or others."""

    type: str | None = None
    role: str | None = None
    content: Content = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None
    call_id: str | None = None
    output: Content = None


class Part(msgspec.Struct, frozen=True, gc=False):
    type: str | None = None
    text: str | None = None
    name: str | None = None
    id: str | None = None
    input: Raw = ABSENT
    tool_use_id: str | None = None
    content: Content = None
    cache_control: Raw = ABSENT


decode_text = msgspec.json.Decoder(str).decode
decode_part = msgspec.json.Decoder(Part).decode
decode_item = msgspec.json.Decoder(Item).decode
