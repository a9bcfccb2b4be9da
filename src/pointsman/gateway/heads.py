"""Heads in both directions: read once, checked, rebuilt field by field and never relayed raw.

A rebuilt head cannot carry what two parsers might read differently: framing, host and
hop-by-hop fields (RFC 9110 section 7.6.1) are always ours.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from http import HTTPStatus
from typing import Final

from pointsman.core.errors import Reason

Header = tuple[bytes, bytes]

_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._~:/+=@-]{1,128}")
_HOST: Final = re.compile(rb"[A-Za-z0-9._~%:\[\]-]*")
_HINT_PREFIX: Final = b"x-pointsman-"
_NO_LENGTH: Final = "The content-length is no whole number. Leave it out, or correct it."
_PERSISTENCE: Final = frozenset({b",keep-alive", b",close"})


class BadHead(Exception):  # noqa: N818 - named by whose fault it is
    """The client's head cannot be accepted."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


_HOP_BY_HOP: Final = (
    b"keep-alive",
    b"proxy-authenticate",
    b"proxy-authorization",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"upgrade",
    b"http2-settings",
)
_REQUEST_FIELDS: Final = frozenset(
    {
        *_HOP_BY_HOP,
        b"host",
        b"content-length",
        b"transfer-encoding",
        b"connection",
        b"expect",
        b"x-request-id",
        b"authorization",
        b"x-api-key",
        b"content-type",
        b"content-encoding",
        b"origin",
        b"access-control-request-headers",
        b"idempotency-key",
        b"x-vllm-priority",
        b"x-data-parallel-rank",
        b"x-forwarded-for",
        b"via",
    }
)
"""Fields that are not simply forwarded."""


class RequestHead:
    """A client's head, read. `forward` are the fields for the engine, in pieces to be joined.

    `path` is without the query, `target` with it; both without the authority of an absolute
    form. `hints` are the x-pointsman-* fields by the rest of their name, None if there are
    none. `request_id` is the client's if it is usable, else empty. `engines_priority` is what
    vLLM would take before the body's. `forwarded_for` and `via` are forwarded all the same, of
    several fields one list. `rank` is for engines whose data-parallel ranks are not told apart
    here.
    """

    content_length = 0
    is_chunked = False
    content_type = b""
    content_encoding = b""
    expects_continue = False
    authorization: bytes | None = None
    api_key = b""
    origin: bytes | None = None
    preflight_headers = b""
    request_id = ""
    idempotency_key = b""
    engines_priority = b""
    forwarded_for = b""
    via = b""
    rank = b""
    hints: dict[bytes, bytes] | None = None

    def __init__(self, method: bytes, target: bytes, *, is_http_10: bool, keep_alive: bool) -> None:
        self.method = method
        self.target, self.path = _target_and_path(target)
        self.is_http_10 = is_http_10
        self.keep_alive = keep_alive and method != b"CONNECT"
        self.forward: list[bytes] = []

    def read(self, headers: Iterable[Header]) -> None:
        """Sort the fields. Raises BadHead."""
        hosts = 0
        named_hops = b""
        forward = self.forward
        for name, value in headers:
            lower = name.lower()
            if lower not in _REQUEST_FIELDS:
                if lower[:2] == b"x-" and lower.startswith(_HINT_PREFIX):
                    self._take_hint(lower, value)
                else:
                    forward += (name, b": ", value, b"\r\n")
            elif lower == b"host":
                hosts += 1
                if not _is_host(value):
                    raise BadHead(Reason.BAD_REQUEST, "The Host header is malformed.")
            elif lower == b"connection":
                named_hops += b"," + value
            else:
                self._take(lower, value)
        if hosts != 1 and (hosts > 1 or not self.is_http_10):
            raise BadHead(Reason.BAD_REQUEST, "Send exactly one Host header.")
        self.forward = _without_named(forward, named_hops)

    def _take(self, lower: bytes, value: bytes) -> None:
        match lower:
            case b"content-type":
                self.content_type = value
            case b"content-length":
                try:
                    self.content_length = int(value)
                except ValueError:  # no client's: llhttp has read it already
                    raise BadHead(Reason.BAD_REQUEST, _NO_LENGTH) from None
            case b"authorization":
                self.authorization = value
            case b"x-api-key":
                self.api_key = value
            case b"x-request-id":
                self.request_id = _usable_id(value)
            case b"content-encoding":
                self.content_encoding = value.strip().lower()
            case b"expect":
                self.expects_continue = value.lower() == b"100-continue"
            case b"transfer-encoding":
                # llhttp lets "gzip, chunked" pass; nobody behind us would decode it.
                if value.lower() != b"chunked" or self.is_http_10:
                    raise BadHead(Reason.BAD_REQUEST, "Only chunked transfer encoding is taken.")
                self.is_chunked = True
            case _:
                self._take_rare(lower, value)

    def _take_rare(self, lower: bytes, value: bytes) -> None:
        match lower:
            case b"origin":
                self.origin = value
            case b"access-control-request-headers":
                self.preflight_headers = value
            case b"idempotency-key":
                self.idempotency_key = value
            case b"x-data-parallel-rank":
                self.rank = value
            case b"x-forwarded-for":
                self.forwarded_for += b"," + value if self.forwarded_for else value
                self.forward += (lower, b": ", value, b"\r\n")
            case b"via":
                self.via += b"," + value if self.via else value
                self.forward += (lower, b": ", value, b"\r\n")
            case b"x-vllm-priority" if not self.engines_priority:  # vLLM goes by the first
                self.engines_priority = value
            case _:
                pass  # hop-by-hop

    def _take_hint(self, lower: bytes, value: bytes) -> None:
        if self.hints is None:
            self.hints = {}
        self.hints[lower[len(_HINT_PREFIX) :]] = value


def _without_named(pieces: list[bytes], named_hops: bytes) -> list[bytes]:
    """Fields that Connection names are hop-by-hop, too. `named_hops` are its values, each behind
    a comma."""
    if not named_hops or named_hops.lower() in _PERSISTENCE:
        return pieces
    named = {name.strip().lower() for name in named_hops.split(b",")}
    return [
        piece
        for at in range(0, len(pieces), 4)
        if pieces[at].lower() not in named
        for piece in pieces[at : at + 4]
    ]


@lru_cache(maxsize=256)
def _target_and_path(target: bytes) -> tuple[bytes, str]:
    if target[:1] != b"/":
        target = _origin_form(target)
    return target, target.partition(b"?")[0].decode("latin-1")


@lru_cache(maxsize=256)
def _is_host(value: bytes) -> bool:
    return _HOST.fullmatch(value) is not None


def _origin_form(target: bytes) -> bytes:
    """The path of `http://authority/path`; other forms (`*`, an authority) as they are."""
    scheme, found, rest = target.partition(b"://")
    if not found or scheme.lower() not in (b"http", b"https"):
        return target
    authority, slash, path = rest.partition(b"/")
    return slash + path if slash else b"/" + authority[len(authority.partition(b"?")[0]) :]


def _usable_id(value: bytes) -> str:
    return value.decode("ascii") if _REQUEST_ID.fullmatch(value) else ""


# --- replies ------------------------------------------------------------------------------

_REPLY_DROPPED: Final = frozenset(
    {
        *_HOP_BY_HOP,
        b"connection",
        b"content-length",
        b"transfer-encoding",
        b"x-request-id",
        b"location",
    }
)
_LIMITS_PREFIX: Final = b"x-ratelimit-"
_STREAM_FIELDS: Final = frozenset({b"cache-control", b"x-accel-buffering"})
_CORS_PREFIX: Final = b"access-control-"

STREAM_LINES: Final = b"cache-control: no-cache\r\nx-accel-buffering: no\r\n"
"""Keeps nginx and CDNs from collecting events into one lump."""

_STATUS_LINES: Final[dict[int, bytes]] = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}


def status_line(status: int) -> bytes:
    """With the standard phrase; the engine's own is not passed on."""
    return _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status


def reply_pieces(
    headers: Iterable[Header], *, is_stream: bool, has_cors: bool, has_limits: bool
) -> list[bytes]:
    """An engine's fields that go on to the client, in pieces to be joined.

    Left out: framing and hop-by-hop fields, the request id (ours is the one), an address to go to
    that is more than a path, what an event stream gets from STREAM_LINES, what only we may say of
    ourselves, the engine's limits where the client's key has its own, and CORS where the gateway
    answers for it: a browser rejects an origin that is allowed twice.
    """
    pieces: list[bytes] = []
    named_hops = b""
    for name, value in headers:
        lower = name.lower()
        if lower in _REPLY_DROPPED or (is_stream and lower in _STREAM_FIELDS):
            if lower == b"connection":
                named_hops += b"," + value
            elif lower == b"location" and value[:1] == b"/" != value[1:2]:
                pieces += (name, b": ", value, b"\r\n")
            continue
        if lower.startswith(_HINT_PREFIX) or (has_cors and lower.startswith(_CORS_PREFIX)):
            continue
        if has_limits and lower.startswith(_LIMITS_PREFIX):
            continue
        pieces += (name, b": ", value, b"\r\n")
    return _without_named(pieces, named_hops)
