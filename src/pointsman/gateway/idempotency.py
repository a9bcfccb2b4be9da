"""Idempotency keys: of one client's requests under one key, one runs at a time.

A client that sends a request again does not know what became of the first: it may be lost, or
run on behind a proxy that still holds the line. So the newer one, once it is let in, replaces the
older: whose engine stops at once, and which is answered 409 if anybody is still there to read it.
The newer one finds the prompt cached where the older one began; one that is refused replaces
nothing. Handing it the older one's answer instead would need every answer copied for two readers,
one of which is gone in nearly every case.

Only what runs has a key. Nothing is kept of what is over: an answer that was lost on the way is
made anew, as without a key.
"""

import msgspec
from xxhash import xxh3_128_digest

from pointsman.core.errors import Reason
from pointsman.core.ids import RequestId
from pointsman.gateway.routing import RequestRefused
from pointsman.wire.openai import BadRequest

HEADER = "Idempotency-Key"
KEY_CHARS_MAX = 255
"""As Stripe has it."""


class Claim(msgspec.Struct, frozen=True, gc=False):
    """A client's key and what it stands for while `request_id` runs."""

    client: str
    key: bytes
    path: str
    digest: bytes
    request_id: RequestId


class Claims:
    """The keys of running requests, at most one for each exchange."""

    def __init__(self) -> None:
        self._claims: dict[tuple[str, bytes], Claim] = {}

    def __len__(self) -> int:
        return len(self._claims)

    def stake(
        self, request_id: RequestId, *, client: str, key: bytes, path: str, body: bytes
    ) -> tuple[Claim, RequestId | None]:
        """This request's claim, and whose the key is: who has it keeps it until this one is let in
        and takes it `over`. A key that nobody has is this request's at once.
        Raises BadRequest for what is no key, RequestRefused for another request than runs."""
        if len(key) > KEY_CHARS_MAX:
            message = f"The header {HEADER} is longer than {KEY_CHARS_MAX} characters."
            raise BadRequest(message, HEADER)
        older = self._claims.get((client, key))
        claim = Claim(client, key, path, xxh3_128_digest(body), request_id)
        if older is None:
            self._claims[client, key] = claim
            return claim, None
        if not _is_same(older, claim):
            raise RequestRefused(Reason.IDEMPOTENCY_CONFLICT)
        return claim, older.request_id

    def over(self, claim: Claim) -> RequestId | None:
        """It is let in, so the key is its own; whose it was until now, which is to end. Another
        request that has got the key meanwhile keeps it, and this one runs without."""
        older = self._claims.get((claim.client, claim.key))
        if older is claim or (older is not None and not _is_same(older, claim)):
            return None
        self._claims[claim.client, claim.key] = claim
        return None if older is None else older.request_id

    def give_up(self, claim: Claim) -> None:
        """Its request is over. The key stays with whoever has taken it over."""
        if self._claims.get((claim.client, claim.key)) is claim:
            del self._claims[claim.client, claim.key]


def _is_same(one: Claim, other: Claim) -> bool:
    return (one.path, one.digest) == (other.path, other.digest)
