"""API keys: whose a request is, and what that key may do.

Only SHA-256 digests are kept. A key is a long random string, so its digest gives nothing away
and needs no salt or stretching; what a client sends is digested and looked up by that.
"""

import hashlib
import hmac
from collections.abc import Iterable
from math import ceil
from typing import Final

from pointsman.core.admission.key_rules import KeyRules, KeyState, Standing
from pointsman.core.admission.quota import Quota
from pointsman.gateway.heads import RequestHead
from pointsman.gateway.options import ApiKey, key_digest

_NOBODY: Final = bytes(hashlib.sha256().digest_size)


class Key:
    """A key at work."""

    def __init__(self, digest: bytes, rules: KeyRules) -> None:
        self.digest = digest
        self.rules = rules
        self.quota = Quota(rules.limits)

    def allows(self, model: str) -> bool:
        """Whether its requests may use the model."""
        return not self.rules.models or model in self.rules.models

    @property
    def sender(self) -> str:
        """Who sends with it, for whoever tells senders apart. Never shown: without a name it is
        a part of the digest."""
        return self.rules.name or self.digest.hex()[:16]

    @property
    def has_limits(self) -> bool:
        """Whether its requests and tokens are counted."""
        limits = self.rules.limits
        return limits.requests_per_minute is not None or limits.tokens_per_minute is not None

    def lines(self, now_s: float) -> bytes:
        """Header lines that tell a client its limits, as OpenAI names them."""
        requests, tokens = self.quota.requests(now_s), self.quota.tokens(now_s)
        return _lines(b"requests", requests) + _lines(b"tokens", tokens)

    def __repr__(self) -> str:
        return f"<Key {self.rules.name}>"


class KeyRing:
    """All keys. As many as are configured: what clients send adds nothing."""

    def __init__(self) -> None:
        self._keys: dict[bytes, Key] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def hold(self, keys: Iterable[ApiKey], now_s: float) -> None:
        """Go by these keys from here on. One that keeps its name keeps what it has used."""
        by_name = {key.rules.name: key for key in self._keys.values() if key.rules.name}
        self._keys = {
            given.digest: _renewed(by_name.get(given.rules.name), given, now_s) for given in keys
        }

    def find(self, head: RequestHead) -> Key | None:
        """The key that a request carries; None if it carries none that is known."""
        sent = _sent(head)
        digest = key_digest(sent)
        key = self._keys.get(digest) if sent else None
        # The lookup's timing depends on a digest, which nobody can steer towards a stored one.
        known = hmac.compare_digest(digest, _NOBODY if key is None else key.digest)
        return key if known else None

    def states(self, now_s: float) -> tuple[KeyState, ...]:
        """The named keys with what they have used."""
        named = [key for key in self._keys.values() if key.rules.name]
        return tuple([KeyState(key.rules.name, key.quota.state(now_s)) for key in named])


def _sent(head: RequestHead) -> bytes:
    """The key in a head: where OpenAI's clients put it, or where Anthropic's do."""
    scheme, _, given = (head.authorization or b"").partition(b" ")
    return given.strip() if scheme.lower() == b"bearer" else head.api_key


def _renewed(before: Key | None, given: ApiKey, now_s: float) -> Key:
    """The key that was there, under its new rules; its running requests go on holding it."""
    if before is None:
        return Key(given.digest, given.rules)
    before.digest, before.rules = given.digest, given.rules
    before.quota.change(given.rules.limits, now_s)
    return before


def _lines(what: bytes, standing: Standing | None) -> bytes:
    if standing is None:
        return b""
    return (
        b"x-ratelimit-limit-%b: %d\r\nx-ratelimit-remaining-%b: %d\r\nx-ratelimit-reset-%b: %b\r\n"
    ) % (what, standing.limit, what, standing.remaining, what, duration(standing.full_in_s))


def duration(seconds: float) -> bytes:
    """As OpenAI writes it: 120ms, 1.5s, 6m0s. Never less than it is."""
    whole_s, ms = divmod(ceil(seconds * 1_000), 1_000)
    if not whole_s:
        return b"%dms" % ms
    minutes, rest_s = divmod(whole_s, 60)
    text = (b"%d.%03d" % (rest_s, ms)).rstrip(b"0") if ms else b"%d" % rest_s
    return b"%dm%bs" % (minutes, text) if minutes else text + b"s"
