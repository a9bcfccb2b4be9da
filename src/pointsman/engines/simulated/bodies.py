"""What clients send, decoded and brought to one form: `Ask`.

Unknown fields are ignored, as vLLM does; wrong types are answered with 400.
"""

from array import array
from collections.abc import Sequence

import msgspec
from msgspec import Raw

from pointsman.engines.simulated.answers import ApiError
from pointsman.engines.simulated.tokenizer import Turn, encode, media_text, render_chat

OUTPUT_TOKENS_DEFAULT = 16  # of a request that names no limit: it ends by itself ("stop")
CHOICES_MAX = 256  # prompts times n
_NULL = Raw(b"null")


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A generating request, whatever its route. `output_tokens` None: it names no limit."""

    model: str
    prompts: list["array[int]"]
    output_tokens: int | None
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    n: int = 1
    stops: Sequence[str] = ()
    seed: int = 0
    priority: int = 0
    salt: str | None = None
    tool: tuple[str, str] | None = None
    return_token_ids: bool = False


class StreamOptions(msgspec.Struct, frozen=True):
    """`stream_options` of OpenAI's bodies."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class Part(msgspec.Struct, frozen=True):
    """One part of a message's content. Media count by the digest of their reference."""

    type: str = "text"
    text: str | None = None
    image_url: Raw = _NULL
    input_audio: Raw = _NULL
    source: Raw = _NULL
    input: Raw = _NULL
    content: "str | list[Part] | None" = None

    def texts(self) -> list[str]:
        """What the part adds to the prompt."""
        if self.text is not None:
            return [self.text]
        media = (self.image_url, self.input_audio, self.source)
        found = [media_text(_json(raw)) for raw in media if _json(raw) != "null"]
        if _json(self.input) != "null":
            found.append(_json(self.input))
        return found + content_texts(self.content)


Content = str | list[Part] | None


class Message(msgspec.Struct, frozen=True):
    """One message of a chat, or one input item of the Responses API."""

    role: str = "user"
    content: Content = None
    tool_calls: Raw = _NULL
    output: Content = None
    arguments: str | None = None

    def turn(self) -> Turn:
        """The message as the chat template takes it."""
        texts = content_texts(self.content) + content_texts(self.output)
        if _json(self.tool_calls) not in ("null", "[]"):
            texts.append(_json(self.tool_calls))
        if self.arguments is not None:
            texts.append(self.arguments)
        return Turn(self.role, texts)


class _OpenAiBody(msgspec.Struct, frozen=True, kw_only=True):
    model: str | None = None
    max_tokens: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    priority: int = 0
    cache_salt: str | None = None
    ignore_eos: bool = False
    return_token_ids: bool | None = None


class ChatBody(_OpenAiBody, frozen=True, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    tools: list[Raw] | None = None
    tool_choice: Raw = _NULL

    def ask(self, default_model: str) -> Ask:
        """The request in the common form."""
        if not self.messages:
            raise ApiError(400, "messages must not be empty", param="messages")
        turns = [message.turn() for message in self.messages]
        limit = self.max_completion_tokens
        prompt = render_chat(turns, tools=[_json(tool) for tool in self.tools or ()])
        tool = called_tool(self.tools or (), self.tool_choice)
        limit = self.max_tokens if limit is None else limit
        return _openai_ask(self, default_model, [prompt], limit, tool)


class CompletionBody(_OpenAiBody, frozen=True, kw_only=True):
    """POST /v1/completions: text, texts, token ids or lists of token ids."""

    prompt: str | list[str | int | list[int]]

    def ask(self, default_model: str) -> Ask:
        """The request in the common form."""
        return _openai_ask(self, default_model, prompt_tokens(self.prompt), self.max_tokens, None)


class ResponsesBody(msgspec.Struct, frozen=True, kw_only=True):
    """POST /v1/responses."""

    input: str | list[Message]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    stream: bool | None = None
    tools: list[Raw] | None = None
    tool_choice: Raw = _NULL
    priority: int = 0
    cache_salt: str | None = None

    def ask(self, default_model: str) -> Ask:
        """The request in the common form."""
        turns = [Turn("system", [self.instructions])] if self.instructions else []
        if isinstance(self.input, str):
            turns.append(Turn("user", [self.input]))
        else:
            turns.extend(message.turn() for message in self.input)
        prompt = render_chat(turns, tools=[_json(tool) for tool in self.tools or ()])
        return Ask(
            model=self.model or default_model,
            prompts=[prompt],
            output_tokens=_positive(self.max_output_tokens, "max_output_tokens"),
            stream=bool(self.stream),
            priority=self.priority,
            salt=self.cache_salt,
            tool=called_tool(self.tools or (), self.tool_choice),
        )


class MessagesBody(msgspec.Struct, frozen=True, kw_only=True):
    """POST /v1/messages."""

    messages: list[Message]
    max_tokens: int
    model: str | None = None
    system: Content = None
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    tools: list[Raw] | None = None
    tool_choice: Raw = _NULL

    def ask(self, default_model: str) -> Ask:
        """The request in the common form."""
        system = content_texts(self.system)
        turns = [Turn("system", system)] if system else []
        turns.extend(message.turn() for message in self.messages)
        prompt = render_chat(turns, tools=[_json(tool) for tool in self.tools or ()])
        return Ask(
            model=self.model or default_model,
            prompts=[prompt],
            output_tokens=_positive(self.max_tokens, "max_tokens"),
            stream=bool(self.stream),
            stops=self.stop_sequences or (),
            tool=called_tool(self.tools or (), self.tool_choice),
        )


class _Function(msgspec.Struct, frozen=True):
    name: str
    parameters: Raw = _NULL
    input_schema: Raw = _NULL


class _Tool(msgspec.Struct, frozen=True):
    """A tool in any of the three APIs: nested (chat), flat (Responses), input_schema (Messages)."""

    name: str | None = None
    function: _Function | None = None
    parameters: Raw = _NULL
    input_schema: Raw = _NULL


class _Schema(msgspec.Struct, frozen=True):
    properties: dict[str, Raw] = {}


class _ToolChoice(msgspec.Struct, frozen=True):
    type: str | None = None
    name: str | None = None
    function: _Function | None = None


def called_tool(tools: Sequence[Raw], choice: Raw) -> tuple[str, str] | None:
    """The tool that the answer calls and the argument it fills: the chosen one, else the first."""
    text = _json(choice)
    if not tools or text in ('"none"', '{"type":"none"}'):
        return None
    wanted = None
    if text.startswith("{"):
        decoded = msgspec.json.decode(text, type=_ToolChoice)
        if decoded.type == "none":
            return None
        wanted = decoded.function.name if decoded.function is not None else decoded.name
    known = [_tool(msgspec.json.decode(tool, type=_Tool)) for tool in tools]
    return next((tool for tool in known if wanted in (None, tool[0])), known[0])


def prompt_tokens(prompt: str | Sequence[str | int | list[int]]) -> list["array[int]"]:
    """The prompts of a completion or embedding request, each as token ids."""
    if isinstance(prompt, str):
        return [encode(prompt)]
    if not prompt:
        raise ApiError(400, "prompt must not be empty", param="prompt")
    if all(isinstance(item, int) for item in prompt):
        return [_ids([item for item in prompt if isinstance(item, int)])]
    if any(isinstance(item, int) for item in prompt):
        raise ApiError(400, "prompt mixes token ids and texts", param="prompt")
    return [
        encode(item) if isinstance(item, str) else _ids(item)
        for item in prompt
        if not isinstance(item, int)
    ]


def content_texts(content: Content) -> list[str]:
    """The texts of a message's content."""
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    return [text for part in content for text in part.texts()]


def _openai_ask(
    body: _OpenAiBody,
    default_model: str,
    prompts: list["array[int]"],
    limit: int | None,
    tool: tuple[str, str] | None,
) -> Ask:
    options = body.stream_options or StreamOptions()
    n = 1 if body.n is None else body.n
    if not 1 <= n * len(prompts) <= CHOICES_MAX:
        raise ApiError(400, f"prompts times n must be from 1 to {CHOICES_MAX}", param="n")
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or ()
    return Ask(
        model=body.model or default_model,
        prompts=prompts,
        output_tokens=_positive(limit, "max_tokens"),
        stream=bool(body.stream),
        include_usage=options.include_usage,
        continuous_usage=options.include_usage and options.continuous_usage_stats,
        n=n,
        stops=stops if tool is None else (),
        seed=body.seed or 0,
        priority=body.priority,
        salt=body.cache_salt,
        tool=tool,
        return_token_ids=bool(body.return_token_ids),
    )


def _positive(limit: int | None, param: str) -> int | None:
    if limit is not None and limit < 1:
        raise ApiError(400, f"{param} must be at least 1, got {limit}.", param=param)
    return limit


def _tool(tool: _Tool) -> tuple[str, str]:
    function = tool.function
    name = function.name if function is not None else tool.name
    schemas = [tool.parameters, tool.input_schema]
    if function is not None:
        schemas = [function.parameters]
    schema = next((raw for raw in schemas if _json(raw) != "null"), Raw(b"{}"))
    properties = msgspec.json.decode(schema, type=_Schema).properties
    return name or "tool", next(iter(properties), "text")


def _ids(tokens: list[int]) -> "array[int]":
    try:
        return array("I", tokens)
    except OverflowError as error:
        raise ApiError(400, "a token id is out of range", param="prompt") from error


def _json(raw: Raw) -> str:
    return bytes(raw).decode("utf-8", "replace")
