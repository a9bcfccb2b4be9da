"""What an engine does wrong on command: the state behind `POST /simulate`."""

import msgspec


class FaultsPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /simulate`. What is absent stays as it is.

    slow            factor on all step times
    hang            true: no step completes any more; requests are accepted and never answered
    status          answer inference requests with this HTTP status; null ends it
    count           how many answers a `status`, `cut_at_token` or `error_at_token` given in the
                    same call applies to; absent or null: all
    retry_after     seconds, sent as Retry-After with `status`
    health_status   what /health answers; null ends it
    cut_at_token    close the connection after this many tokens (0: before the first byte of body)
    cut_reset       true: the cut is a TCP reset and not a close
    error_at_token  after this many tokens send vLLM's error frame, then `[DONE]`
    idle_close_s    keep-alive time of new connections
    restart         cold cache, event sequence from 0, running requests cut
    crash           the process ends at once
    reset           end every fault first
    """

    slow: float | msgspec.UnsetType = msgspec.UNSET
    hang: bool | msgspec.UnsetType = msgspec.UNSET
    status: int | msgspec.UnsetType | None = msgspec.UNSET
    count: int | None = None
    retry_after: float | msgspec.UnsetType | None = msgspec.UNSET
    health_status: int | msgspec.UnsetType | None = msgspec.UNSET
    cut_at_token: int | msgspec.UnsetType | None = msgspec.UNSET
    cut_reset: bool | msgspec.UnsetType = msgspec.UNSET
    error_at_token: int | msgspec.UnsetType | None = msgspec.UNSET
    idle_close_s: float | msgspec.UnsetType = msgspec.UNSET
    restart: bool = False
    crash: bool = False
    reset: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError for values that cannot work."""
        if self.slow is not msgspec.UNSET and not self.slow > 0:
            raise ValueError("slow must be above 0")
        for name in ("status", "health_status"):
            status = getattr(self, name)
            if status not in (None, msgspec.UNSET) and not 200 <= status <= 599:
                raise ValueError(f"{name} must be from 200 to 599")


class Counted(msgspec.Struct):
    """A fault with a value, for the next `left` requests (None: for all)."""

    value: int | None = None
    left: int | None = None

    def take(self) -> int | None:
        """The fault for one more request, None where there is none (any more)."""
        if self.value is None or self.left == 0:
            return None
        if self.left is not None:
            self.left -= 1
        return self.value


class Faults(msgspec.Struct, kw_only=True):
    """The faults in force. Owned by the engine; changed by `apply` only."""

    idle_close_s: float
    slow: float = 1.0
    hang: bool = False
    status: Counted = msgspec.field(default_factory=Counted)
    retry_after: float | None = None
    health_status: int | None = None
    cut_at_token: Counted = msgspec.field(default_factory=Counted)
    cut_reset: bool = False
    error_at_token: Counted = msgspec.field(default_factory=Counted)

    def apply(self, patch: FaultsPatch, *, idle_close_s: float) -> None:
        """Take over what the patch sets; `idle_close_s` is what `reset` goes back to."""
        if patch.reset:
            fresh = Faults(idle_close_s=idle_close_s)
            for name in Faults.__struct_fields__:
                setattr(self, name, getattr(fresh, name))
        for name in ("slow", "hang", "retry_after", "health_status", "cut_reset", "idle_close_s"):
            value = getattr(patch, name)
            if value is not msgspec.UNSET:
                setattr(self, name, value)
        for name in ("status", "cut_at_token", "error_at_token"):
            value = getattr(patch, name)
            if value is not msgspec.UNSET:
                setattr(self, name, Counted(value, patch.count))
