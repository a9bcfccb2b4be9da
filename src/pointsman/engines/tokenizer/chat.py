"""A request's body as the values that an engine gives its chat template.

Follows vLLM (`vllm/renderers/chat_utils`, `ChatCompletionRequest.build_chat_params`), whose
rules SGLang shares where templates can tell the difference:

    content    text parts are joined by a newline, or stay a list where the template reads one
    tools      fields in the order of vLLM's models, absent description and parameters as null
    tool calls arguments are objects, not JSON in a string; an empty list is no list
    reasoning  under both of its names
    variables  chat_template_kwargs that the template reads; the body's own fields win

Whatever is not text has tokens that depend on more than the template: `Inexact`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec import Raw

from pointsman.engines.tokenizer.fallback import Fallback, Inexact

Values: TypeAlias = dict[str, Any]
"""JSON values, as a template reads them."""


class Chat(msgspec.Struct, frozen=True):
    """What is rendered. `variables` is everything beside messages and tools."""

    messages: list[Values]
    tools: list[Values] | None
    variables: Values
    continues: bool
    special_tokens: bool


class Text(msgspec.Struct, frozen=True):
    """A prompt that no template touches."""

    text: str
    special_tokens: bool


class _Message(msgspec.Struct, frozen=True, gc=False):
    role: str
    content: str | list[Raw] | None = None
    name: Any = None
    tool_calls: list[Any] | None = None
    tool_call_id: Any = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tools: Any = None
    task: Any = None


class ChatBody(msgspec.Struct, frozen=True):
    """A body of /v1/chat/completions; its messages are read one by one."""

    messages: list[Raw]
    tools: list[Values] | None = None
    documents: list[Values] | None = None
    reasoning_effort: str | None = None
    chat_template: str | None = None
    chat_template_kwargs: Values | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    truncate_prompt_tokens: int | None = None


class _CompletionBody(msgspec.Struct, frozen=True):
    prompt: str | list[Any] | None = None
    add_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    prompt_embeds: Raw | None = None


class _Part(msgspec.Struct, frozen=True, gc=False):
    type: str | None = None
    text: str | None = None
    refusal: str | None = None
    thinking: str | None = None
    uuid: Any = None


_TEXT_PARTS: Mapping[str, str] = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
_RESERVED = frozenset({"chat_template", "tokenize", "messages", "conversation", "tools"})
_NEVER_SET = (None, "auto")  # vLLM's `merge_kwargs` passes over them


def read_chat(body: bytes, *, parts_stay: bool, reads: frozenset[str]) -> Chat:
    """The chat in a body of /v1/chat/completions. Raises Inexact.

    `parts_stay`: the template takes contents as lists of parts. `reads`: its variables.
    """
    request = read_body(body)
    messages = [read_message(raw, parts_stay=parts_stay) for raw in request.messages]
    return chat_of(request, messages, reads=reads)


def read_body(body: bytes) -> ChatBody:
    """Raises Inexact for what asks for more than a template can tell."""
    request: ChatBody = _decoded(_decode_chat, body)
    if request.chat_template is not None or request.truncate_prompt_tokens is not None:
        raise Inexact(Fallback.OPTIONS)
    if request.continue_final_message and request.add_generation_prompt:
        raise Inexact(Fallback.REFUSED, "continue_final_message with add_generation_prompt")
    return request


def chat_of(request: ChatBody, messages: list[Values], *, reads: frozenset[str]) -> Chat:
    """A body's chat, with its messages as they were read. Raises Inexact."""
    return Chat(
        messages,
        None if request.tools is None else [_tool(tool) for tool in request.tools],
        _variables(request, reads),
        request.continue_final_message,
        request.add_special_tokens,
    )


def read_message(raw: Raw | bytes, *, parts_stay: bool) -> Values:
    """A message as a template is given it. Raises Inexact."""
    return _message(_decoded(_decode_message, raw), parts_stay=parts_stay)


def read_text(body: bytes) -> Text:
    """The first prompt in a body of /v1/completions. Raises Inexact."""
    request = _decoded(_decode_completion, body)
    if request.truncate_prompt_tokens is not None or request.prompt_embeds is not None:
        raise Inexact(Fallback.OPTIONS)
    prompt = request.prompt
    if isinstance(prompt, list):
        prompt = prompt[0] if prompt else None
    if not isinstance(prompt, str):
        raise Inexact(Fallback.OPTIONS)
    return Text(prompt, request.add_special_tokens)


def _variables(request: ChatBody, reads: frozenset[str]) -> Values:
    given = request.chat_template_kwargs or {}
    if not _RESERVED.isdisjoint(given):
        raise Inexact(Fallback.OPTIONS)
    own: Values = {
        "add_generation_prompt": request.add_generation_prompt,
        "reasoning_effort": request.reasoning_effort,
    }
    if request.reasoning_effort is not None and "enable_thinking" not in given:
        own["enable_thinking"] = request.reasoning_effort != "none"
    own = {name: value for name, value in own.items() if value not in _NEVER_SET}
    merged = {name: value for name, value in (given | own).items() if name in reads}
    # Templates find these two whatever they read: apply_chat_template passes them by name.
    merged["add_generation_prompt"] = request.add_generation_prompt
    merged["documents"] = request.documents
    return merged


def _message(message: _Message, *, parts_stay: bool) -> Values:
    role = message.role
    values: Values = {"role": role, "content": _content(message, parts_stay=parts_stay)}
    if role == "assistant":
        if message.tool_calls:
            values["tool_calls"] = [_tool_call(call) for call in message.tool_calls]
        reasoning = message.reasoning_content if message.reasoning is None else message.reasoning
        if reasoning is not None:
            values["reasoning"] = values["reasoning_content"] = reasoning
    elif role == "tool" and message.tool_call_id is not None:
        values["tool_call_id"] = message.tool_call_id
    elif role == "developer":
        values["tools"] = message.tools
    for name, value in (("name", message.name), ("task", message.task)):
        if isinstance(value, str):
            values[name] = value
    return values


def _content(message: _Message, *, parts_stay: bool) -> str | list[Values]:
    content = message.content
    if isinstance(content, str) and not parts_stay:
        return content
    texts = [content] if isinstance(content, str) else _texts(content or ())
    if parts_stay and message.role != "tool":
        return [{"type": "text", "text": text} for text in texts]
    return "\n".join(texts if parts_stay else filter(None, texts))


def _texts(parts: Sequence[Raw]) -> list[str]:
    """The text of each part. Raises Inexact if one is none."""
    texts = []
    for raw in parts:
        if memoryview(raw)[0] == _QUOTE:
            texts.append(_decoded(_decode_string, raw))
            continue
        part = _decoded(_decode_part, raw)
        field = _TEXT_PARTS.get(part.type or "")
        if field is None or part.uuid is not None:
            raise Inexact(Fallback.MEDIA)
        text: str | None = getattr(part, field)
        if text is not None:
            texts.append(text)
        elif field == "thinking":
            raise Inexact(Fallback.REFUSED, "a thinking part without its text")
    return texts


def _tool(tool: Values) -> Values:
    function = tool.get("function")
    if not isinstance(function, dict) or "name" not in function:
        raise Inexact(Fallback.REFUSED, "a tool without a function")
    known = {"name": function["name"], "description": None, "parameters": None}
    return {"type": "function", "function": known | function} | {
        name: value for name, value in tool.items() if name != "function"
    }


def _tool_call(call: object) -> Values:
    """A call with its fields in the order of OpenAI's types, as a template may print it."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        raise Inexact(Fallback.REFUSED, "a tool call without a function")
    values: Values = {"id": call["id"]} if "id" in call else {}
    values["function"] = {"arguments": _arguments(function.get("arguments"))}
    if "name" in function:
        values["function"]["name"] = function["name"]
    if "type" in call:
        values["type"] = call["type"]
    return values


def _arguments(arguments: object) -> Values:
    """An object, whatever the client sent; what is none counts as empty, as in vLLM."""
    if isinstance(arguments, str) and arguments:
        try:
            arguments = msgspec.json.decode(arguments)
        except msgspec.DecodeError:
            arguments = None
    return arguments if isinstance(arguments, dict) else {}


def _decoded(decode: Any, data: Raw | bytes) -> Any:
    try:
        return decode(data)
    except msgspec.DecodeError as error:
        raise Inexact(Fallback.REFUSED, str(error)) from None


_QUOTE = ord('"')
_decode_chat = msgspec.json.Decoder(ChatBody).decode
_decode_message = msgspec.json.Decoder(_Message).decode
_decode_completion = msgspec.json.Decoder(_CompletionBody).decode
_decode_part = msgspec.json.Decoder(_Part).decode
_decode_string = msgspec.json.Decoder(str).decode
