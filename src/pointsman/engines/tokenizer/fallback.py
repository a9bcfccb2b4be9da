"""Why a prompt is known by its text after all."""

from enum import StrEnum


class Fallback(StrEnum):
    """The cause, as it stands in `pointsman_tokenizer_fallbacks_total`."""

    ENDPOINT = "endpoint"  # a route whose prompt is put together in ways unknown here
    MEDIA = "media"  # images, audio, files: their tokens depend on their content
    OPTIONS = "options"  # the client brings its own template, embeddings, or has it cut off
    REFUSED = "refused"  # the template, or the engine's rules, do not take this conversation
    LARGE = "large"  # more bytes than are worth it
    BUSY = "busy"  # all workers have enough to do
    LATE = "late"  # not done in time
    ENGINE = "engine"  # the engine that was asked gave no tokens
    FAILED = "failed"  # a fault of ours, or of the tokenizer's files


class Inexact(Exception):  # noqa: N818 - it is an outcome: the text index takes over
    """The engine's token ids cannot be told for this request."""

    def __init__(self, cause: Fallback, detail: str = "") -> None:
        super().__init__(detail or cause)
        self.cause = cause
