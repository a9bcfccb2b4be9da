"""What one streamed completion says, event by event: tokens, usage, errors, its end.

Every event is decoded into a few typed fields (about 1 us with msgspec). Searching the bytes for
`"usage"` would be cheaper and would be fooled by a model that writes that word.
"""

import msgspec

from pointsman.decoding import Undecodable, decoded
from pointsman.loadgen.connection import Exchange
from pointsman.loadgen.sse import EventReader, EventTooLargeError
from pointsman.traffic.outcome import DETAIL_LENGTH_MAX, Outcome

BODY_BYTES_MAX = 16 * 1024 * 1024
"""Of an answer that is not a stream; the rest is read and dropped."""


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: msgspec.Raw = msgspec.Raw()


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    message: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: msgspec.Raw = msgspec.Raw()
    object: str = ""


_decode_event = msgspec.json.Decoder(_Event).decode


class CompletionExchange(Exchange):
    """The answer to one completion request, timed.

    A stream counts as whole only with a finish reason: `[DONE]` alone does not prove one, since
    engines send it after an error as well.
    """

    def __init__(self) -> None:
        super().__init__()
        self.chunks = 0
        self.first_token_s: float | None = None
        self.last_token_s = 0.0
        self.finished = False
        self.usage: _Usage | None = None
        self._reader = EventReader()
        self._streaming = False
        self._body = bytearray()

    def on_head(self) -> None:
        content_type = self.headers.get("content-type", "")
        self._streaming = self.status < 400 and content_type.startswith("text/event-stream")

    def on_body(self, data: bytes, now_s: float) -> None:
        if not self._streaming:
            self._body += data[: max(0, BODY_BYTES_MAX - len(self._body))]
            return
        try:
            for payload in self._reader.feed(data):
                if payload != b"[DONE]":
                    self._take(payload, now_s)
        except EventTooLargeError:
            self.fail(Outcome.BAD_RESPONSE, "event too large")
        except Undecodable as error:
            self.fail(Outcome.BAD_RESPONSE, "event is not a completion", str(error))

    def finish(self, now_s: float) -> None:
        """Judge an answer whose connection was in order."""
        if self.failure is None and not self.done.done():
            if self.status >= 400:
                self._judge_error()
            elif not self._streaming:
                self._judge_whole()
            elif not self.finished:
                self.fail(Outcome.TRUNCATED, "stream ended without a finish reason")
        super().finish(now_s)

    @property
    def prompt_tokens(self) -> int | None:
        """As the engine says, template included."""
        return self.usage.prompt_tokens if self.usage else None

    @property
    def completion_tokens(self) -> int | None:
        """As the engine says."""
        return self.usage.completion_tokens if self.usage else None

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens that the engine had in its prefix cache, as it says."""
        details = self.usage.prompt_tokens_details if self.usage else None
        return details.cached_tokens if details else None

    @property
    def tpot_s(self) -> float | None:
        """Mean time between output tokens after the first; None below two tokens."""
        tokens = self.completion_tokens or self.chunks
        if self.first_token_s is None or tokens < 2:
            return None
        return (self.last_token_s - self.first_token_s) / (tokens - 1)

    def _take(self, payload: bytes, now_s: float) -> None:
        event = decoded(_decode_event, payload)
        if event.usage is not None:
            self.usage = event.usage
        for choice in event.choices or ():
            self._take_choice(choice, now_s)
        if not event.choices:
            self._take_error(event, payload)

    def _take_choice(self, choice: _Choice, now_s: float) -> None:
        if choice.finish_reason is not None:
            self.finished = True
        if _has_token(choice):
            self.chunks += 1
            self.last_token_s = now_s
            if self.first_token_s is None:
                self.first_token_s = now_s

    def _take_error(self, event: _Event, payload: bytes) -> None:
        if bytes(event.error) not in (b"", b"null"):
            self._note_error(Outcome.STREAM_ERROR, "", event.error)
        elif event.object == "error":  # vLLM before 0.10: the error's fields lie on top
            self._note_error(Outcome.STREAM_ERROR, "", msgspec.Raw(payload))

    def _judge_error(self) -> None:
        try:
            event = decoded(_decode_event, bytes(self._body))
            error = event.error if bytes(event.error) else msgspec.Raw(bytes(self._body))
            self._note_error(Outcome.HTTP_ERROR, f"{self.status} ", error)
        except Undecodable:
            detail = bytes(self._body[: DETAIL_LENGTH_MAX * 4]).decode(errors="replace")
            cause = self.headers.get("x-pointsman-reason", "without a JSON error")
            self.fail(Outcome.HTTP_ERROR, f"{self.status} {cause}", detail[:DETAIL_LENGTH_MAX])

    def _judge_whole(self) -> None:
        """A server may answer in one piece although a stream was asked for."""
        try:
            event = decoded(_decode_event, bytes(self._body))
        except Undecodable as error:
            kind = self.headers.get("content-type", "no content type")
            self.fail(Outcome.BAD_RESPONSE, f"neither a stream nor JSON: {kind}"[:80], str(error))
            return
        self.usage = event.usage
        if not event.choices or event.choices[0].finish_reason is None:
            self.fail(Outcome.BAD_RESPONSE, "answer without a finished choice")

    def _note_error(self, outcome: Outcome, prefix: str, raw: msgspec.Raw) -> None:
        kind, message = _error_fields(raw)
        kind = self.headers.get("x-pointsman-reason", "") or kind
        self.fail(outcome, f"{prefix}{kind}"[:80], message[:DETAIL_LENGTH_MAX])


def _has_token(choice: _Choice) -> bool:
    delta = choice.delta
    if delta is None:
        return bool(choice.text)
    return bool(delta.content or delta.reasoning_content or delta.reasoning) or bytes(
        delta.tool_calls
    ) not in (b"", b"null", b"[]")


def _error_fields(raw: msgspec.Raw) -> tuple[str, str]:
    """(type or code, message) of an error in OpenAI's shape, or of what stands in its place."""
    error = msgspec.json.decode(raw)
    if not isinstance(error, dict):
        return "error", str(error)
    kind = error.get("type") or error.get("code") or "error"
    return str(kind), str(error.get("message", ""))
