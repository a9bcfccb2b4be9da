"""The limits of an API key, and how much of them is used: values only."""

import msgspec

from pointsman.core.errors import Reason
from pointsman.core.limits import PRIORITY_MAX


class KeyLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of one key; None is no bound. Tokens are those of prompt and output together."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency_max: int | None = None


class KeyRules(msgspec.Struct, frozen=True, kw_only=True):
    """What one key may do. `name` is the tenant of its requests; if it is empty the requests say
    that themselves.

    `models` lists what it may use; empty is all. A priority above `priority_max` is lowered to it.
    `names_tenants` lets its requests name their own tenant: for a gateway behind a gateway.
    """

    name: str = ""
    models: tuple[str, ...] = ()
    priority_max: int = PRIORITY_MAX
    names_tenants: bool = False
    limits: KeyLimits = KeyLimits()


class Exceeded(msgspec.Struct, frozen=True):
    """Why a request may not come in now, and in how many seconds it may: None where waiting never
    helps."""

    reason: Reason
    wait_s: float | None
    detail: str


class Standing(msgspec.Struct, frozen=True, gc=False):
    """A bucket as the owner of its key is told of it: the limit a minute, what is left, and the
    seconds until all of it is there again."""

    limit: int
    remaining: int
    full_in_s: float


class QuotaState(msgspec.Struct, frozen=True):
    """A key's limits at one moment; None where there is no such limit."""

    inflight: int
    concurrency_max: int | None
    requests: Standing | None
    tokens: Standing | None


class KeyState(msgspec.Struct, frozen=True):
    """A named key as operators see it: never the key, nor its digest."""

    name: str
    quota: QuotaState
