"""What a simulated gateway gives to whoever called it."""

from typing import Protocol

import msgspec

from pointsman.core.errors import EndCause


class Answer(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What the client gets; times are the gateway's. `reason` is set where it is an error.
    `placements` is how many engines got the request."""

    end: EndCause
    reason: str = ""
    status: int = 200
    retry_after_s: float | None = None
    node: str = ""
    first_byte_s: float | None = None
    ended_s: float = 0.0
    cached_tokens: int | None = None
    placements: int = 0

    @property
    def silent(self) -> bool:
        """Whether the client left before any byte of it."""
        return self.end is EndCause.CLIENT_GONE and self.first_byte_s is None


class Caller(Protocol):
    """Whoever sent a request. Told once, by the gateway's time."""

    def answered(self, answer: Answer) -> None: ...
