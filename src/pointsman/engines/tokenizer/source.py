"""Where a model's token ids come from: a folder of its own, or the engine itself."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol

from pointsman.core.ids import ModelName
from pointsman.engines.tokenizer.encoded import Encoded
from pointsman.engines.tokenizer.fallback import Fallback, Inexact
from pointsman.engines.tokenizer.model import KNOWN, ModelTokenizer
from pointsman.engines.tokenizer.workers import Workers
from pointsman.wire.endpoints import Endpoint

log = logging.getLogger(__name__)

INLINE_BYTES_MAX = 2_048
"""A body that is rendered and encoded at once: at 1 MB/s of new text at most 2 ms, mostly a
tenth of that, where handing it to a thread and back takes 0.1 ms of both."""

BODY_BYTES_MAX = 8 * 1024 * 1024
"""Of a body that is looked at: two million tokens, beyond any model's context."""

Outcome = Encoded | Fallback
Cancel = Callable[[], object]


class Source(Protocol):
    """Tells `done` the outcome exactly once, on the loop, and None is returned if that was
    before the call returned; else what calls it off, after which `done` is not told. Never
    raises, never holds up the loop for more than about a millisecond."""

    def tokenize(
        self, model: ModelName, endpoint: Endpoint, body: bytes, done: Callable[[Outcome], None]
    ) -> Cancel | None: ...


class FolderSource:
    """A model's own tokenizer, in this process."""

    def __init__(self, tokenizer: ModelTokenizer, workers: Workers) -> None:
        self._tokenizer = tokenizer
        self._workers = workers

    def tokenize(
        self, model: ModelName, endpoint: Endpoint, body: bytes, done: Callable[[Outcome], None]
    ) -> Cancel | None:
        refused = self._refused(endpoint, body)
        if refused is not None:
            done(refused)
            return None
        if len(body) <= INLINE_BYTES_MAX:
            done(attempt(self._tokenizer, endpoint, body))
            return None
        return self._workers.submit(partial(attempt, self._tokenizer, endpoint, body), done)

    def _refused(self, endpoint: Endpoint, body: bytes) -> Fallback | None:
        is_busy = len(body) > INLINE_BYTES_MAX and self._workers.is_full
        return unfit(endpoint, body) or (Fallback.BUSY if is_busy else None)


def unfit(endpoint: Endpoint, body: bytes) -> Fallback | None:
    """Why no source takes such a prompt; None if one may."""
    if endpoint not in KNOWN:
        return Fallback.ENDPOINT
    return Fallback.LARGE if len(body) > BODY_BYTES_MAX else None


def attempt(tokenizer: ModelTokenizer, endpoint: Endpoint, body: bytes) -> Outcome:
    """The ids of a prompt, or why there are none. Never raises."""
    try:
        return tokenizer.tokens(endpoint, body)
    except Inexact as inexact:
        return inexact.cause
    except RecursionError:  # nested too deeply, be it within a string
        return Fallback.REFUSED
    except Exception:  # a thread's outermost frame: templates and native code may raise anything
        log.exception("a prompt could not be tokenised")
        return Fallback.FAILED
