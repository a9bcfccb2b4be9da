"""What a single event of a stream says, in any dialect: its values, decoded and read."""

from typing import TypeVar

import msgspec
from msgspec import Raw

from pointsman.decoding import decoded_or_none
from pointsman.wire.usage import Usage, UsageFields

T = TypeVar("T")

ERROR_TEXT_MAX = 500
"""Characters kept of an error's message: it goes to a log line."""

ABORT = "abort"


class StreamError(msgspec.Struct, frozen=True, gc=False):
    """An error an engine reported inside a stream that had begun with status 200."""

    message: str
    type: str | None = None
    code: str | None = None


class StreamSummary(msgspec.Struct, frozen=True, gc=False):
    """What a whole stream said. `events` counts data lines but `[DONE]`: about one a token.

    `finished`: the model came to an end (a finish reason, or the dialect's last event).
    `done`: the stream did (`[DONE]`, or the dialect's last event); after an error it may too.
    """

    events: int = 0
    usage: Usage | None = None
    error: StreamError | None = None
    finished: bool = False
    done: bool = False


class _Choice(msgspec.Struct, frozen=True, gc=False):
    finish_reason: str | None = None


class _Inner(msgspec.Struct, frozen=True, gc=False):
    id: object = None
    usage: Raw = Raw()
    error: Raw = Raw()


class Frame(msgspec.Struct, frozen=True, gc=False):
    """The data of one event, of any dialect."""

    type: str | None = None
    object: str | None = None
    error: Raw = Raw()
    message: Raw = Raw()
    usage: Raw = Raw()
    response: Raw = Raw()
    choices: list[_Choice] | None = None


class _Error(msgspec.Struct, frozen=True, gc=False):
    message: str | None = None
    type: str | None = None
    code: str | int | None = None

    def public(self) -> StreamError:
        code = None if self.code is None else str(self.code)
        return StreamError((self.message or "")[:ERROR_TEXT_MAX], self.type, code)


def stream_error(frame: Frame) -> StreamError | None:
    """The error a frame reports: `{"error": ...}` of the engines and Anthropic, a Responses
    API `error` or `response.failed` event, or vLLM's older `{"object": "error"}`."""
    if not _is_absent(frame.error):
        return _error_of(frame.error)
    if frame.type == "error" or frame.object == "error":
        text = decoded_or_none(_decode_text, frame.message) or ""
        return StreamError(text[:ERROR_TEXT_MAX], frame.type)
    inner = decoded_or_none(decode_inner, frame.response)
    if inner is not None and not _is_absent(inner.error):
        return _error_of(inner.error)
    return StreamError("", frame.type) if frame.type == "response.failed" else None


def aborted(frame: Frame) -> StreamError | None:
    """The engine gave up in the middle: vLLM and SGLang end what runs when they are shut down
    with a finish reason of their own, which no OpenAI client knows."""
    if any(choice.finish_reason == ABORT for choice in frame.choices or ()):
        return StreamError("The engine aborted the request.", ABORT)
    return None


def _error_of(raw: Raw) -> StreamError:
    error = decoded_or_none(_decode_error, raw)
    if error is not None:
        return error.public()
    text = decoded_or_none(_decode_text, raw) or bytes(raw).decode(errors="replace")
    return StreamError(text[:ERROR_TEXT_MAX])


def _is_absent(raw: Raw) -> bool:
    return bytes(raw) in (b"", b"null")


decode_frame = msgspec.json.Decoder(Frame).decode
decode_inner = msgspec.json.Decoder(_Inner).decode
decode_usage = msgspec.json.Decoder(UsageFields).decode
_decode_error = msgspec.json.Decoder(_Error).decode
_decode_text = msgspec.json.Decoder(str).decode
