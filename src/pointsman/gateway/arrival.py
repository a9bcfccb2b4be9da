"""A request between its last byte and the placer: decoded, read, let in by its key, tokenised."""

import asyncio
import logging
from array import array
from codecs import BOM_UTF8
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from pointsman.core.blocks import Prompt
from pointsman.core.errors import Reason
from pointsman.core.homes import Keeper
from pointsman.core.ids import ModelName, RequestId
from pointsman.core.request import Outcome, Request
from pointsman.core.request_events import Refused, Verdict
from pointsman.core.scheme import Namespace
from pointsman.gateway.attempts import engine_head
from pointsman.gateway.forwarded import client_address
from pointsman.gateway.heads import RequestHead
from pointsman.gateway.idempotency import Claim
from pointsman.gateway.keys import Key
from pointsman.gateway.routing import (
    RequestRefused,
    core_request,
    decoded_at_once,
    inflated,
    known_by_prompt,
    priority_lines,
    routing_fields,
    with_tokens,
)
from pointsman.gateway.shared import Client, Shared
from pointsman.gateway.upstream import NodePool
from pointsman.gateway.visit import Visit
from pointsman.ports import Placer, VerdictSink
from pointsman.wire.endpoints import Endpoint, kept_route
from pointsman.wire.routing_fields import RoutingFields

log = logging.getLogger(__name__)

_KEPT: Final = Endpoint.KEPT


class Reader(Protocol):
    """Whose request it is."""

    def read(self) -> None:
        """The body is decoded, or cannot be."""
        ...

    def crashed(self) -> None:
        """A bug kept it from going on."""
        ...


class Arrival:
    """Holds the body until it is forgotten, and what the request holds of its key until it
    leaves. `model` is as the client names it; empty until the body is read, or without a name.
    """

    body = b""
    bytes_in = 0
    wants_stream = False
    _priority_lines = b""
    _withdraw: Callable[[], object] | None = None
    _refused: RequestRefused | None = None  # its body cannot be decoded
    _claim: Claim | None = None
    _replaces = False  # an older request under its key, if it is let in

    def __init__(
        self,
        shared: Shared,
        client: Client,
        head: RequestHead,
        endpoint: Endpoint,
        key: Key | None,
    ) -> None:
        self.endpoint = endpoint
        self.model = ModelName("")
        self.placer: Placer = shared.kept_placer if endpoint is _KEPT else shared.placer
        self._shared = shared
        self._client = client
        self._head = head
        self.key = "" if key is None else key.rules.name
        self._key = key
        self._visit = None if key is None else Visit(key, shared)

    def decode(self, body: bytes, reader: Reader) -> bool:
        """Hold the body, which the connection has counted, without its content encoding. Whether
        that is done; else `reader` is told later, unless the request has left by then."""
        self.body, self.bytes_in = body, len(body)
        if not self._head.content_encoding or self._decode_at_once():
            return True
        self._inflate(reader)
        return False

    def _decode_at_once(self) -> bool:
        """Whether that is done, or cannot be."""
        options = self._shared.options
        try:
            body = decoded_at_once(self._head.content_encoding, self.body, options.body_bytes_max)
            if body is None:
                return False
            self._replace(body)
        except RequestRefused as refused:
            self._refused = refused
        return True

    def _inflate(self, reader: Reader) -> None:
        loop, bytes_max = asyncio.get_running_loop(), self._shared.options.body_bytes_max
        inflating = loop.run_in_executor(None, inflated, self.body, bytes_max)
        inflating.add_done_callback(partial(self._inflated, reader))
        self._withdraw = inflating.cancel

    def _inflated(self, reader: Reader, inflating: "asyncio.Future[bytes]") -> None:
        if self._withdraw is None:
            return  # it has left meanwhile
        self._withdraw = None
        try:
            self._replace(inflating.result())
        except RequestRefused as refused:
            self._refused = refused
        try:
            reader.read()
        except Exception:  # a callback of the loop's is a driver's outermost frame
            log.exception("a request could not go on after its body was decoded")
            reader.crashed()

    def _replace(self, body: bytes) -> None:
        """Hold the decoded body instead. Raises RequestRefused where that is too much."""
        shared, more_bytes = self._shared, len(body) - len(self.body)
        if shared.bodies_bytes + more_bytes > shared.options.bodies_bytes_max:
            raise RequestRefused(Reason.QUEUE_FULL, "The gateway holds too many request bodies.")
        self._client.hold_bytes(more_bytes)
        self.body = body

    def read(self, request_id: RequestId) -> Request:
        """What the scheduler is asked. Raises RequestRefused, BadRequest."""
        if self._shared.draining:
            raise RequestRefused(Reason.DRAINING)
        if self._refused is not None:
            raise self._refused
        if self.body.startswith(BOM_UTF8):  # which Python's json passes over, and so most engines
            self._replace(self.body.removeprefix(BOM_UTF8))
        if self._head.idempotency_key:
            self._stake_claim(request_id)
        if self.placer is self._shared.kept_placer:
            return self._read_kept(request_id)
        fields = routing_fields(self.endpoint, self._head, self.body)
        self._check_kept(fields.previous_response_id)
        self.wants_stream = fields.stream
        self.model = ModelName(fields.model or "")
        request = core_request(
            request_id, fields, self._head, client=self._sender(), is_crowd=self._is_crowd
        )
        if not request.client:
            request = known_by_prompt(request)
        if not request.model:
            request = request.meaning_one_of([c.name for c in self._shared.placer.models()])
        request = self._enter(request, fields)
        self._priority_lines = priority_lines(request.priority, fields, self._head)
        return request

    def _enter(self, request: Request, fields: RoutingFields) -> Request:
        """Count it against its key's limits, if there are keys. Raises RequestRefused."""
        if self._visit is None:
            return request
        return self._visit.enter(request, fields, self._head, replaces=self._replaces)

    def tokenize(
        self, request: Request, ready: Callable[[Request], None], crashed: Callable[[], None]
    ) -> None:
        """Call `ready` with the request, its prompt as token ids if they can be had; at once,
        or later unless it has left by then. `crashed` is told of a bug in a later `ready`."""
        tokenizer, prompt = self._shared.tokenizer, request.prompt
        if tokenizer is None or prompt.token_count is not None or not prompt.text:
            ready(request)
            return
        is_later = False

        def deliver(tokens: "array[int] | None") -> None:
            self._withdraw = None
            try:
                ready(request if tokens is None else with_tokens(request, tokens))
            except Exception:  # a callback of the loop's is a driver's outermost frame
                if not is_later:
                    raise
                log.exception("%s could not go on after its prompt was tokenised", request.id)
                crashed()

        withdraw = tokenizer.tokenize(request.model, self.endpoint, self.body, deliver)
        self._withdraw, is_later = withdraw, True

    def _read_kept(self, request_id: RequestId) -> Request:
        """What is asked of the node that keeps a response. Those of other keys do not exist for
        this one."""
        route = kept_route(self._head.path)
        keeper = None if route is None else self.placer.keeper(route.response_id)
        if route is None or keeper is None or self._is_anothers(keeper):
            raise RequestRefused(Reason.RESPONSE_NOT_FOUND)
        self.model = keeper.model
        request = Request(
            id=request_id,
            model=keeper.model,
            prompt=Prompt(Namespace(keeper.model)),
            max_output_tokens=0,
            stream=False,
            client=self._sender(),
            is_crowd=self._is_crowd,
            continues=route.response_id,
        )
        return self._enter(request, RoutingFields())

    def _check_kept(self, response_id: str | None) -> None:
        """Raises RequestRefused for a turn that goes on from a response made with another key."""
        keeper = None if response_id is None else self.placer.keeper(response_id)
        if keeper is not None and self._is_anothers(keeper):
            raise RequestRefused(Reason.RESPONSE_NOT_FOUND)

    def _is_anothers(self, keeper: Keeper) -> bool:
        """Whether the response was made with another key. Without keys it is everybody's."""
        return self._key is not None and keeper.client != self._sender()

    def _sender(self) -> str:
        """A key's requests are its own wherever they come from."""
        key, head = self._key, self._head
        if key is not None:
            return f"key:{key.sender}"
        proxies = self._shared.options.trusted_proxies
        address = client_address(self._client.address, head.forwarded_for, proxies)
        return f"address:{address}" if address else ""

    @property
    def _is_crowd(self) -> bool:
        """Whether the sender may be many people: an address, or a gateway with a key."""
        return self._key is None or self._key.rules.names_tenants

    def _stake_claim(self, request_id: RequestId) -> None:
        head = self._head
        self._claim, older = self._shared.claims.stake(
            request_id,
            client=self._sender(),
            key=head.idempotency_key,
            path=head.path,
            body=self.body,
        )
        self._replaces = older is not None

    @property
    def reads_usage(self) -> bool:
        """Whether the usage in its answer is its own: a kept response tells that of another."""
        return self.endpoint is not _KEPT

    def ask(self, request: Request, on_verdict: VerdictSink) -> None:
        """Ask for a node; and let the request be kept to warm up nodes with, where that is
        configured."""
        shared = self._shared
        target, now_s = self._head.target, shared.now_s()
        shared.samples.offer(request, self.endpoint, target, self.body, now_s)
        if self._replaces:
            on_verdict = self._once_let_in(on_verdict)
        self.placer.arrive(request, on_verdict)

    def _once_let_in(self, on_verdict: VerdictSink) -> VerdictSink:
        """Replace the older request under its key before the first verdict that is no refusal."""

        def hear(verdict: Verdict) -> None:
            if self._replaces and self._claim is not None and not isinstance(verdict, Refused):
                self._replaces = False
                older = self._shared.claims.over(self._claim)
                if older is not None:
                    self._shared.live[older].cut_off(Reason.SUPERSEDED)
            on_verdict(verdict)

        return hear

    def engine_head(self, pool: NodePool, request_id: RequestId) -> bytes:
        """The request's head for a node."""
        return engine_head(
            self._head,
            pool,
            request_id,
            len(self.body),
            priority_lines=self._priority_lines,
            authorizes=self._shared.forwards_authorization,
        )

    def forget_body(self) -> None:
        if self.body:
            self._client.hold_bytes(-len(self.body))
            self.body = b""

    def leave(self, outcome: Outcome) -> None:
        """The request is over, whichever way. A second call changes nothing."""
        self.forget_body()
        claim, self._claim = self._claim, None
        if claim is not None:
            self._shared.claims.give_up(claim)
        withdraw, self._withdraw = self._withdraw, None
        if withdraw is not None:
            withdraw()
        if self._visit is not None:
            self._visit.leave(outcome)
