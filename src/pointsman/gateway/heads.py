"""Heads in both directions: read once, checked, rebuilt field by field and never relayed raw.

A rebuilt head cannot carry what two parsers might read differently: framing, host and
hop-by-hop fields (RFC 9110 section 7.6.1) are always ours.
"""

import re
from collections.abc import Iterable
from enum import IntEnum
from http import HTTPStatus

from pointsman.core.errors import Reason

Header = tuple[bytes, bytes]

REQUEST_ID_CHARS_MAX = 128
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._~:/+=@-]{1,128}")
_HOST = re.compile(rb"[A-Za-z0-9._~%:\[\]-]*")
_HINT_PREFIX = b"x-pointsman-"
_PERSISTENCE = frozenset({b"keep-alive", b"close"})


class BadHead(Exception):  # noqa: N818 - named by whose fault it is
    """The client's head cannot be accepted."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


class _Field(IntEnum):
    """Request fields that are not simply forwarded."""

    HOP = 0
    HOST = 1
    CONTENT_LENGTH = 2
    TRANSFER_ENCODING = 3
    CONNECTION = 4
    EXPECT = 5
    REQUEST_ID = 6
    AUTHORIZATION = 7
    CONTENT_TYPE = 8
    CONTENT_ENCODING = 9
    ORIGIN = 10
    PREFLIGHT_HEADERS = 11


_HOP_BY_HOP = (
    b"keep-alive",
    b"proxy-authenticate",
    b"proxy-authorization",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"upgrade",
    b"http2-settings",
)
_REQUEST_FIELDS: dict[bytes, _Field] = {
    **dict.fromkeys(_HOP_BY_HOP, _Field.HOP),
    b"host": _Field.HOST,
    b"content-length": _Field.CONTENT_LENGTH,
    b"transfer-encoding": _Field.TRANSFER_ENCODING,
    b"connection": _Field.CONNECTION,
    b"expect": _Field.EXPECT,
    b"x-request-id": _Field.REQUEST_ID,
    b"authorization": _Field.AUTHORIZATION,
    b"content-type": _Field.CONTENT_TYPE,
    b"content-encoding": _Field.CONTENT_ENCODING,
    b"origin": _Field.ORIGIN,
    b"access-control-request-headers": _Field.PREFLIGHT_HEADERS,
}


class RequestHead:
    """A client's head, read. `forward` are the fields for the engine, as lines.

    `path` is without the query, `target` with it; both without the authority of an absolute
    form. `hints` are the x-pointsman-* fields by the rest of their name, None if there are
    none. `request_id` is the client's if it is usable, else empty.
    """

    __slots__ = (
        "authorization",
        "content_encoding",
        "content_length",
        "content_type",
        "expects_continue",
        "forward",
        "hints",
        "is_http_10",
        "keep_alive",
        "method",
        "origin",
        "path",
        "preflight_headers",
        "request_id",
        "target",
    )

    def __init__(self, method: bytes, target: bytes, *, is_http_10: bool, keep_alive: bool) -> None:
        if target[:1] != b"/":
            target = _origin_form(target)
        self.method = method
        self.target = target
        self.path = target.partition(b"?")[0].decode("latin-1")
        self.is_http_10 = is_http_10
        self.keep_alive = keep_alive
        self.content_length: int | None = None
        self.content_type = b""
        self.content_encoding = b""
        self.expects_continue = False
        self.authorization: bytes | None = None
        self.origin: bytes | None = None
        self.preflight_headers = b""
        self.request_id = ""
        self.hints: dict[bytes, bytes] | None = None
        self.forward: list[bytes] = []

    def read(self, headers: Iterable[Header]) -> None:
        """Sort the fields. Raises BadHead."""
        hosts = 0
        named_hops: bytes | None = None
        put = self.forward.append
        for name, value in headers:
            lower = name.lower()
            field = _REQUEST_FIELDS.get(lower)
            if field is None:
                if lower.startswith(_HINT_PREFIX):
                    self._take_hint(lower, value)
                else:
                    put(b"%b: %b\r\n" % (name, value))
            elif field is _Field.HOST:
                hosts += 1
                if _HOST.fullmatch(value) is None:
                    raise BadHead(Reason.BAD_REQUEST, "The Host header is malformed.")
            elif field is _Field.CONNECTION:
                named_hops = value if named_hops is None else named_hops + b"," + value
            else:
                self._take(field, value)
        if hosts != 1 and (hosts > 1 or not self.is_http_10):
            raise BadHead(Reason.BAD_REQUEST, "Send exactly one Host header.")
        if named_hops is not None and named_hops.lower() not in _PERSISTENCE:
            self._drop_named(named_hops)

    def _take(self, field: _Field, value: bytes) -> None:
        match field:
            case _Field.CONTENT_TYPE:
                self.content_type = value
            case _Field.CONTENT_LENGTH:
                self.content_length = int(value)
            case _Field.REQUEST_ID:
                self.request_id = _usable_id(value)
            case _Field.AUTHORIZATION:
                self.authorization = value
            case _Field.ORIGIN:
                self.origin = value
            case _Field.PREFLIGHT_HEADERS:
                self.preflight_headers = value
            case _Field.CONTENT_ENCODING:
                self.content_encoding = value.strip().lower()
            case _Field.EXPECT:
                self.expects_continue = value.lower() == b"100-continue"
            case _Field.TRANSFER_ENCODING:
                # llhttp lets "gzip, chunked" pass; nobody behind us would decode it.
                if value.lower() != b"chunked" or self.is_http_10:
                    raise BadHead(Reason.BAD_REQUEST, "Only chunked transfer encoding is taken.")
            case _:
                pass  # hop-by-hop

    def _take_hint(self, lower: bytes, value: bytes) -> None:
        if self.hints is None:
            self.hints = {}
        self.hints[lower[len(_HINT_PREFIX) :]] = value

    def _drop_named(self, connection: bytes) -> None:
        """Fields that Connection names are hop-by-hop too."""
        named = tuple(name.strip().lower() + b":" for name in connection.split(b","))
        self.forward[:] = [line for line in self.forward if not line.lower().startswith(named)]


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

_REPLY_DROPPED = frozenset(
    {
        *_HOP_BY_HOP,
        b"connection",
        b"content-length",
        b"transfer-encoding",
        b"x-request-id",
    }
)
_STREAM_FIELDS = frozenset({b"cache-control", b"x-accel-buffering"})
_CORS_PREFIX = b"access-control-"

STREAM_LINES = b"cache-control: no-cache\r\nx-accel-buffering: no\r\n"
"""Keeps nginx and CDNs from collecting events into one lump."""

_STATUS_LINES: dict[int, bytes] = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}


def status_line(status: int) -> bytes:
    """With the standard phrase; the engine's own is not passed on."""
    return _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status


def reply_lines(headers: Iterable[Header], *, is_stream: bool, has_cors: bool) -> list[bytes]:
    """An engine's fields that go on to the client.

    Left out: framing and hop-by-hop fields, the request id (ours is the one), what an event
    stream gets from STREAM_LINES, and CORS where the gateway answers for it: a browser
    rejects an origin that is allowed twice.
    """
    lines = []
    for name, value in headers:
        lower = name.lower()
        if lower in _REPLY_DROPPED or (is_stream and lower in _STREAM_FIELDS):
            continue
        if has_cors and lower.startswith(_CORS_PREFIX):
            continue
        lines.append(b"%b: %b\r\n" % (name, value))
    return lines
