"""What all connections of one gateway have in common."""

import asyncio
import itertools
import secrets
import time
from functools import partial
from random import Random
from typing import Protocol

from pointsman.core.errors import Reason
from pointsman.core.ids import RequestId
from pointsman.engines.adapters import EngineKeys
from pointsman.gateway.idempotency import Claims
from pointsman.gateway.kept import KeptPlacer
from pointsman.gateway.keys import KeyRing
from pointsman.gateway.lookout import Lookout
from pointsman.gateway.observer import GatewayObserver
from pointsman.gateway.options import GatewayOptions
from pointsman.gateway.pools import Pools
from pointsman.gateway.replies import Cors, error_reply
from pointsman.gateway.samples import Samples
from pointsman.ports import Placer, PromptTokenizer


class Client(Protocol):
    """A client's connection, as seen by what works for it.

    `is_paused` while it reads slower than it is written to. `address` is the peer's, without
    its port; empty where it has none.
    """

    transport: asyncio.Transport
    is_paused: bool

    @property
    def address(self) -> str: ...

    def answered(self, *, close: bool) -> None:
        """The answer is written, and the next request may be taken up."""
        ...

    def hold_bytes(self, body_bytes: int) -> None:
        """Count body bytes kept for a request, or with a negative number given back."""
        ...

    def abort(self) -> None:
        """Cut the connection."""
        ...

    def close_if_idle(self) -> None:
        """For the drain: close if nothing is under way."""
        ...

    def sweep(self, now_s: float) -> None:
        """End what is past its deadline."""
        ...


class Running(Protocol):
    """An exchange under way."""

    def cut_off(self, reason: Reason) -> None:
        """End now."""
        ...


class Shared:
    """One thread's state. `live` are the exchanges by id, `clients` all open connections.

    `bodies_bytes` counts request bodies held in memory. `alias` is what this gateway alone is
    called in a Via header (RFC 9110 section 7.6.3): what comes with it has been here before.
    """

    def __init__(
        self,
        options: GatewayOptions,
        placer: Placer,
        observer: GatewayObserver | None,
        tokenizer: PromptTokenizer | None = None,
        samples: Samples | None = None,
        *,
        engine_keys: EngineKeys | None = None,
    ) -> None:
        self.placer = placer
        self.kept_placer = KeptPlacer(placer, time.monotonic)
        self.tokenizer = tokenizer
        self.observer = observer
        self.samples = Samples(lambda count: ()) if samples is None else samples
        self.now_s = time.monotonic
        self.keys = KeyRing()
        self.claims = Claims()
        self._id_prefix = secrets.token_hex(8)
        alias = f"pointsman-{self._id_prefix}"
        self.pools = Pools(
            idle_s=options.idle_s,
            idle_max=options.idle_max,
            engine_keys=engine_keys or EngineKeys(),
            alias=alias,
        )
        self.alias = alias.encode()
        self.lookout = Lookout(options.look_s)
        self.live: dict[RequestId, Running] = {}
        self.clients: dict[Client, None] = {}
        self.clients_max = options.connections_max
        self.turned_away_max = 0  # of those beyond
        self.bodies_bytes = 0
        self.draining = False
        self.emptied = asyncio.Event()
        self.rng = Random()  # for jitter
        self.refusal = partial(error_reply, rng=self.rng)
        self._id_numbers = itertools.count()
        self.apply(options)

    def apply(self, options: GatewayOptions) -> None:
        """Go by these options from here on. What has begun keeps its deadlines."""
        self.options = options
        self.samples.apply(options.warm_up_prefixes, options.warm_up_bytes_max)
        self.cors = Cors(options.cors_origins)
        self.forwards_authorization = options.forwards_authorization
        self.keys.hold(options.keys, self.now_s())
        self.pools.idle_s, self.pools.idle_max = options.idle_s, options.idle_max
        self.lookout.look_s = options.look_s

    def request_id(self, wanted: str) -> RequestId:
        """The client's id unless it is empty or in use; else a fresh one.

        A second request under one id could not be told from the first by the scheduler.
        """
        if wanted and wanted not in self.live:
            return RequestId(wanted)
        return RequestId(self._id_prefix + format(next(self._id_numbers), "08x"))

    def ended(self, request_id: RequestId) -> None:
        """An exchange is over."""
        self.live.pop(request_id, None)
        if not self.live:
            self.emptied.set()
