"""What can be set about the data plane. Every field has its unit, default and trade-off."""

import hashlib

import msgspec

from pointsman.core.admission.key_rules import KeyRules
from pointsman.core.rules import RetryRules, Timeouts

MIB = 1024 * 1024


class ApiKey(msgspec.Struct, frozen=True):
    """A key by its SHA-256 digest, and what it may do."""

    digest: bytes
    rules: KeyRules = KeyRules()

    def __repr__(self) -> str:
        return f"<ApiKey {self.rules.name}>"


def key_digest(key: bytes) -> bytes:
    """The digest that is kept instead of a key."""
    return hashlib.sha256(key).digest()


class GatewayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Replaced as a whole, never changed. Raises ValueError for values that contradict.

    Client side
    connections_max     client connections at once, more get 429; lowered to what the file
                        descriptor limit carries (two for each connection)
    backlog             connections the kernel holds while the loop is busy
    reuse_port          let several processes listen on one port
    head_bytes_max      request line and header fields; long cookies and tokens fit, an attack
                        does not; more gets 431
    headers_max         header fields of one request; more gets 431
    body_bytes_max      one body after decoding; images travel in it as base64; more gets 413
    bodies_bytes_max    all bodies that are held at once; more gets 429. Bounds the memory that
                        connections_max slow uploads could take
    pipelined_max       requests one client may send ahead; they are answered in order, so a
                        large number buys nothing; more close the connection
    head_s              from a request's first byte to the end of its head (408)
    body_gap_s          between two reads of a body (408)
    body_s              a whole body: bounds the uploads that drip (408)
    keep_alive_s        an idle client connection; longer than the pools of the SDKs, so that
                        the client is the one who closes
    linger_s            reading on after an early answer, so that the client gets to see it
                        instead of a reset
    write_buffer_bytes  answer bytes held for a slow client before the engine's side is paused

    Engine side
    idle_s              an idle engine connection; below vLLM's and uvicorn's 5 s, so that we
                        are the one who closes
    idle_max            idle connections kept for one node
    error_bytes_max     an engine's error answer kept while another node is asked; a longer one
                        is passed on at once
    timeouts            seconds for each stage of an exchange
    retries             how often a request may be tried again; the scheduler's own

    Answers
    cors_origins        browser origins that may call; "*" is any, empty switches it off. No
                        cookies are involved: a page still needs a key where keys exist
    keys                what opens /v1, as a bearer token or in x-api-key; empty lets everyone in
    trusted_proxies     addresses and networks whose X-Forwarded-For is believed; empty is nobody
    forward_authorization  hand the client's authorization (and x-api-key) header to the engine;
                        None does so while there are no keys of our own
    reply_headers       tell clients node and policy; helps debugging, shows engine names
    sse_comment_s       seconds of silence after which a stream gets a `: keep-alive` comment,
                        for balancers that cut idle connections; None is off. The first one
                        commits the answer to 200, so a later refusal comes in-band
    drain_s             how long running exchanges may go on after `drain`
    look_s              an engine that is silent for so long is looked at: does it still listen?
    warm_up_prefixes    hot prefixes for which a request is kept, to warm up nodes with; 0 is off
    warm_up_bytes_max   bytes of their bodies in memory
    sweep_s             how often deadlines are looked at: their accuracy against idle CPU
    """

    connections_max: int = 8_192
    backlog: int = 2_048
    reuse_port: bool = False
    head_bytes_max: int = 64 * 1024
    headers_max: int = 128
    body_bytes_max: int = 32 * MIB
    bodies_bytes_max: int = 1024 * MIB
    pipelined_max: int = 16
    head_s: float = 30.0
    body_gap_s: float = 30.0
    body_s: float = 600.0
    keep_alive_s: float = 75.0
    linger_s: float = 2.0
    write_buffer_bytes: int = 64 * 1024

    idle_s: float = 2.0
    idle_max: int = 256
    error_bytes_max: int = 64 * 1024
    timeouts: Timeouts = Timeouts()
    retries: RetryRules = RetryRules()

    cors_origins: tuple[str, ...] = ("*",)
    keys: tuple[ApiKey, ...] = ()
    trusted_proxies: tuple[str, ...] = ()
    forward_authorization: bool | None = None
    reply_headers: bool = False
    sse_comment_s: float | None = None
    drain_s: float = 600.0
    look_s: float = 10.0
    warm_up_prefixes: int = 0
    warm_up_bytes_max: int = 16 * MIB
    sweep_s: float = 0.25

    def __post_init__(self) -> None:
        if self.body_bytes_max > self.bodies_bytes_max:
            raise ValueError("body_bytes_max exceeds bodies_bytes_max: no such body could come in")
        if self.body_gap_s > self.body_s:
            raise ValueError("body_gap_s exceeds body_s, which would be the only bound")
        if self.sse_comment_s is not None and self.sse_comment_s < self.sweep_s:
            raise ValueError("sse_comment_s is below sweep_s, the accuracy of all waiting")
        if min(self.connections_max, self.head_bytes_max, self.body_bytes_max) <= 0:
            raise ValueError("a limit of 0 lets nobody in")

    @property
    def forwards_authorization(self) -> bool:
        """Whether the engine gets the client's authorization header."""
        if self.forward_authorization is None:
            return not self.keys
        return self.forward_authorization
