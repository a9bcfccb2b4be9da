"""How an engine is asked."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple


class EngineReply(NamedTuple):
    """An answer of whatever status."""

    status: int
    body: bytes


class EngineTrouble(Exception):  # noqa: N818 - named by whose fault it is
    """No usable answer. The text names the cause; `timed_out` tells slow from absent, and `is_ours`
    that the engine was not even asked."""

    def __init__(self, detail: str, *, timed_out: bool = False, is_ours: bool = False) -> None:
        super().__init__(detail)
        self.timed_out = timed_out
        self.is_ours = is_ours


Get = Callable[[str], Awaitable[EngineReply]]
"""GET of a path on the engine. Raises EngineTrouble."""
