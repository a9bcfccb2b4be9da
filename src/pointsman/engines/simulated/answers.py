"""What is common to the answers of every generating route."""

from typing import Protocol

import msgspec

from pointsman.engines.compute_model import EngineSequence, Job
from pointsman.engines.simulated.tokenizer import Output

SYSTEM_FINGERPRINT = "pointsman-simulated"
DONE = b"data: [DONE]\n\n"
# What vLLM sends into its streams when its engine core dies.
DEATH = (
    b'data: {"error": {"message": "EngineCore encountered an issue. See stack trace (above) for '
    b'the root cause.", "type": "InternalServerError", "param": null, "code": 500}}\n\n' + DONE
)


class ApiError(Exception):
    """An answer in vLLM's error shape; `kind` is its `type`."""

    def __init__(
        self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param

    def body(self) -> bytes:
        """The JSON answer."""
        error = {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.status,
        }
        return msgspec.json.encode({"error": error})


class Choice:
    """One generated sequence of a request, and how much of it the client has been sent."""

    __slots__ = ("finish_reason", "index", "job", "output", "prompt", "sequence", "written")

    def __init__(
        self, *, index: int, prompt: list[int] | None, output: Output, finish_reason: str, job: Job
    ) -> None:
        self.index = index
        self.prompt = prompt  # token ids, only where the client wants them back
        self.output = output
        self.finish_reason = finish_reason
        self.job = job
        self.sequence: EngineSequence | None = None
        self.written = 0

    @property
    def cached_tokens(self) -> int:
        return (self.sequence.cached or 0) if self.sequence is not None else 0


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """An answer, all of it decided before its first token, whatever the route."""

    id: str
    created: int
    model: str
    choices: list[Choice]
    prompts: int = 1  # prompts behind the choices: each counts once in `usage`
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    return_token_ids: bool = False
    tool: tuple[str, str] | None = None  # name of the called tool, and of its argument

    @property
    def prompt_tokens(self) -> int:
        each = len(self.choices) // self.prompts
        return sum(choice.job.prompt_tokens for choice in self.choices[::each])

    @property
    def cached_tokens(self) -> int:
        each = len(self.choices) // self.prompts
        return sum(choice.cached_tokens for choice in self.choices[::each])

    @property
    def completion_tokens(self) -> int:
        return sum(choice.output.tokens for choice in self.choices)

    def usage(self) -> dict[str, object]:
        """The final `usage` object of OpenAI's completions and chat."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


class Dialect(Protocol):
    """One route's answer format. Frames are complete server-sent events."""

    @property
    def script(self) -> Script:
        """What is told."""

    def opening(self, choice: Choice) -> bytes:
        """Frames before the first token of a choice."""

    def piece(self, choice: Choice, index: int) -> bytes:
        """The frames of token `index`, the last one's with what ends the choice."""

    def closing(self) -> bytes:
        """Frames after the last token of all choices."""

    def whole(self) -> bytes:
        """The JSON answer of a request that does not stream."""


def chunk_head(script: Script, kind: bytes) -> bytes:
    """The beginning of each chunk of OpenAI's completions and chat, up to its choices."""
    return b'data: {"id":%b,"object":"%b","created":%d,"model":%b,"choices":[' % (
        text_json(script.id),
        kind,
        script.created,
        text_json(script.model),
    )


def chunks_end(script: Script, head: bytes) -> bytes:
    """The usage chunk where it was asked for, and the end mark."""
    if not script.include_usage:
        return DONE
    usage, fingerprint = msgspec.json.encode(script.usage()), text_json(SYSTEM_FINGERPRINT)
    return b'%b],"usage":%b,"system_fingerprint":%b}\n\n%b' % (head, usage, fingerprint, DONE)


def whole_object(
    script: Script, kind: str, choices: list[dict[str, object]], **more: object
) -> bytes:
    """An answer in one piece, with `more` of its fields."""
    return msgspec.json.encode(
        {
            "id": script.id,
            "object": kind,
            "created": script.created,
            "model": script.model,
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": SYSTEM_FINGERPRINT,
            "usage": script.usage(),
            **more,
            "kv_transfer_params": None,
        }
    )


def running_usage(choice: Choice, tokens: int) -> bytes:
    """`continuous_usage_stats`: the member that each chunk gets."""
    prompt = choice.job.prompt_tokens
    return b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}' % (
        prompt,
        prompt + tokens,
        tokens,
    )


def token_ids_json(script: Script, choice: Choice, index: int) -> bytes:
    """`return_token_ids`: the ids of one streamed token, or null."""
    if not script.return_token_ids:
        return b"null"
    return b"[%d]" % choice.job.tokens[choice.job.prompt_tokens + index]


def argument_piece(tool: tuple[str, str], choice: Choice, index: int) -> str:
    """What token `index` adds to the arguments of the called tool, a JSON document."""
    before = "{" + msgspec.json.encode(tool[1]).decode() + ':"' if index == 0 else ""
    after = '"}' if index + 1 == choice.output.tokens else ""
    return before + choice.output.piece(index).decode() + after


def text_json(text: str) -> bytes:
    """A JSON string."""
    return msgspec.json.encode(text)


def frame(event: str, data: dict[str, object]) -> bytes:
    """A named server-sent event, as the Responses and Messages routes send them."""
    return b"event: %b\ndata: %b\n\n" % (event.encode(), msgspec.json.encode(data))
