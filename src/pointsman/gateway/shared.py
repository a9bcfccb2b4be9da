"""What all connections of one gateway have in common."""

import asyncio
import itertools
import secrets
import time
from typing import TYPE_CHECKING

from pointsman.core.ids import RequestId
from pointsman.gateway.observer import GatewayObserver
from pointsman.gateway.options import GatewayOptions
from pointsman.gateway.replies import Cors
from pointsman.gateway.upstream import Pools
from pointsman.ports import Placer

if TYPE_CHECKING:
    from pointsman.gateway.connection import ClientConnection
    from pointsman.gateway.handler import Handler


class Shared:
    """One thread's state. `live` are the exchanges by id, `clients` all open connections.

    `bodies_bytes` counts request bodies held in memory.
    """

    def __init__(
        self, options: GatewayOptions, placer: Placer, observer: GatewayObserver | None
    ) -> None:
        self.options = options
        self.placer = placer
        self.observer = observer
        self.now_s = time.monotonic
        self.cors = Cors(options.cors_origins)
        self.pools = Pools(idle_s=options.idle_s, idle_max=options.idle_max)
        self.live: dict[RequestId, Handler] = {}
        self.clients: dict[ClientConnection, None] = {}
        self.clients_max = options.connections_max
        self.bodies_bytes = 0
        self.draining = False
        self.emptied = asyncio.Event()
        self._id_prefix = secrets.token_hex(8)
        self._id_numbers = itertools.count()

    def request_id(self, wanted: str) -> RequestId:
        """The client's id unless it is empty or in use; else a fresh one.

        A second request under one id could not be told from the first by the scheduler.
        """
        if wanted and wanted not in self.live:
            return RequestId(wanted)
        return RequestId(f"{self._id_prefix}{next(self._id_numbers):08x}")

    def ended(self, request_id: RequestId) -> None:
        """An exchange is over."""
        self.live.pop(request_id, None)
        if not self.live:
            self.emptied.set()
