"""Bytes of a client become requests: parsed by llhttp in its strict mode, within bounds.

What llhttp lets pass and a gateway must not (other versions, exotic transfer encodings, two
hosts) is refused in `heads`. Once something is refused nothing more is read.
"""

from collections import deque
from typing import Final

import httptools

from pointsman.core.errors import Reason
from pointsman.gateway.heads import BadHead, Header, RequestHead
from pointsman.gateway.shared import Shared

STRANGERS_BYTES_MAX: Final = 64 * 1024
"""Of a body that is read although its request carries no known key."""

_VERSIONS: Final = frozenset({"1.0", "1.1"})


class RequestReader:
    """`ready` are whole requests in order; `refusal` is why there will be no more.

    `head` is that of the request being read, None before its end.
    """

    def __init__(self, shared: Shared) -> None:
        self.ready: deque[tuple[RequestHead, bytes]] = deque()
        self.refusal: tuple[Reason, str] | None = None
        self.head: RequestHead | None = None
        self.wants_continue = False
        self._shared = shared
        self._held_bytes = 0
        self._framing_bytes = 0  # since the last byte of a body
        self._parser = httptools.HttpRequestParser(self)
        self._begin_message()

    def feed(self, data: bytes) -> None:
        """Take bytes in."""
        head, body_bytes = self.head, self._body_bytes
        self._raw_bytes += len(data)
        try:
            self._parse(data)
        except httptools.HttpParserCallbackError:
            raise  # ours, not the client's
        except httptools.HttpParserError:
            self._refuse(Reason.BAD_REQUEST, "This is not well-formed HTTP.")
        if self.head is None:
            if self._raw_bytes > self._shared.options.head_bytes_max:
                self._refuse(Reason.HEAD_TOO_LARGE)
        elif self.head is head:
            self._count_framing(0 if self._body_bytes > body_bytes else len(data))

    def hold(self, body_bytes: int) -> None:
        """Count body bytes that are kept, or with a negative number no longer are."""
        self._held_bytes += body_bytes
        self._shared.bodies_bytes += body_bytes

    def forget(self) -> None:
        """The connection is lost: nothing is kept any more."""
        self.ready.clear()
        self._body.clear()
        self.hold(-self._held_bytes)

    @property
    def is_amid(self) -> bool:
        """Whether a part of a request is there."""
        return self.head is not None or bool(self._target)

    # --- the parser's side --------------------------------------------------------------

    def on_url(self, url: bytes) -> None:
        if self.head is None:  # else of a resumed request
            self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.head is None:  # else a trailer, or of a resumed request
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self.head is not None:
            return
        parser = self._parser
        version = parser.get_http_version()
        head = self.head = RequestHead(
            parser.get_method(),
            self._target,
            is_http_10=version == "1.0",
            keep_alive=parser.should_keep_alive(),
        )
        if version not in _VERSIONS:
            self._refuse(Reason.BAD_REQUEST, "Only HTTP/1.0 and HTTP/1.1 are spoken here.")
        elif self._is_head_too_large():
            self._refuse(Reason.HEAD_TOO_LARGE)
        else:
            self._read(head)

    def on_body(self, data: bytes) -> None:
        if self.refusal is not None:
            return
        self._body_bytes += len(data)
        if self._body_bytes > self._shared.options.body_bytes_max:
            self._refuse_size()
        elif self._shared.bodies_bytes + len(data) > self._shared.options.bodies_bytes_max:
            self._refuse(Reason.QUEUE_FULL, "The gateway holds too many request bodies.")
        else:
            self.hold(len(data))
            self._body.append(data)

    def on_message_complete(self) -> None:
        if self.refusal is not None or self._parser.should_upgrade():
            return
        assert self.head is not None
        if len(self.ready) > self._shared.options.pipelined_max:
            self._refuse(Reason.BAD_REQUEST, "Too many requests are sent ahead.")
            return
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self.ready.append((self.head, body))
        self._begin_message()

    def _ignore_upgrade(self) -> None:
        """Read on as HTTP/1.1: other protocols are not spoken (RFC 9110 section 7.8).

        llhttp ends the request at its head and takes the body for the other protocol, though
        Java's client wishes for h2c with every POST. A parser that never heard the wish reads
        on, behind a head that has the same framing; `head` stays what it is.
        """
        head = self.head
        if head is None or self.refusal is not None:
            return
        framing = "transfer-encoding: chunked"
        if not head.is_chunked:
            framing = f"content-length: {head.content_length}"
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(f"POST / HTTP/1.1\r\n{framing}\r\n\r\n".encode())

    # --- helpers ------------------------------------------------------------------------

    def _parse(self, data: bytes) -> None:
        while data and self.refusal is None:
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                self._ignore_upgrade()
                data = data[upgrade.args[0] :]

    def _count_framing(self, read_bytes: int) -> None:
        """Bound what comes without a byte of the body: the parser keeps a trailer whole, and
        a chunk's extension may go on for ever."""
        self._framing_bytes = self._framing_bytes + read_bytes if read_bytes else 0
        if self._framing_bytes > self._shared.options.head_bytes_max:
            self._refuse(Reason.HEAD_TOO_LARGE, "The trailer or a chunk's extension is too large.")

    def _begin_message(self) -> None:
        self.head = None
        self._target = b""
        self._headers: list[Header] = []
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._raw_bytes = 0
        self._framing_bytes = 0

    def _is_head_too_large(self) -> bool:
        headers, options = self._headers, self._shared.options
        if len(headers) > options.headers_max:
            return True
        if self._raw_bytes <= options.head_bytes_max:
            return False
        size = len(self._target) + sum(len(name) + len(value) + 4 for name, value in headers)
        return size > options.head_bytes_max

    def _read(self, head: RequestHead) -> None:
        try:
            head.read(self._headers)
        except BadHead as bad:
            self._refuse(bad.reason, bad.detail)
            return
        if head.via and self._shared.alias in head.via:
            self._refuse(Reason.LOOP)
        elif head.content_length > self._shared.options.body_bytes_max:
            self._refuse_size()
        elif self._is_strangers(head):
            self._refuse(Reason.UNAUTHORIZED)
        elif head.expects_continue and not head.is_http_10:
            self.wants_continue = True

    def _is_strangers(self, head: RequestHead) -> bool:
        """Whether a body that is worth not reading comes without a key. A small one is read:
        then the connection can be kept."""
        keys, size = self._shared.keys, head.content_length
        large = head.is_chunked or head.expects_continue or size > STRANGERS_BYTES_MAX
        return large and bool(keys) and keys.find(head) is None

    def _refuse_size(self) -> None:
        limit = self._shared.options.body_bytes_max
        self._refuse(Reason.BODY_TOO_LARGE, f"The request body is larger than {limit} bytes.")

    def _refuse(self, reason: Reason, detail: str = "") -> None:
        if self.refusal is None:
            self.refusal = (reason, detail)
