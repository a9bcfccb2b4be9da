"""Listening, the limits of the process, the sweep of deadlines, and the way down."""

import asyncio
import logging

import msgspec

from pointsman.core.admission.key_rules import KeyState
from pointsman.core.errors import Reason
from pointsman.core.events import WarmUp
from pointsman.core.ids import NodeId
from pointsman.descriptors import raise_descriptor_limit
from pointsman.engines.adapters import EngineKeys
from pointsman.gateway.connection import ClientConnection
from pointsman.gateway.observer import GatewayObserver, ReplayResult
from pointsman.gateway.options import GatewayOptions
from pointsman.gateway.replays import Computed, Replays
from pointsman.gateway.samples import Samples
from pointsman.gateway.shared import Shared
from pointsman.ports import Placer, PromptTokenizer

DESCRIPTORS_RESERVED = 64
"""File descriptors that are not connections: listeners, logs, the admin plane, scrapes."""

TURNED_AWAY_MAX = 256
"""Connections over the limit that are still told so; beyond them they are just dropped."""

log = logging.getLogger(__name__)


class GatewayState(msgspec.Struct, frozen=True):
    """Counts at one moment. `descriptors_max` is the process's limit, None without one."""

    clients: int
    clients_max: int
    exchanges: int
    engine_connections: int
    engine_connections_idle: int
    bodies_bytes: int
    descriptors_max: int | None
    draining: bool


class Gateway:
    """The HTTP data plane. Belongs to the loop that calls `start`, as its placer does."""

    def __init__(
        self,
        placer: Placer,
        options: GatewayOptions | None = None,
        observer: GatewayObserver | None = None,
        tokenizer: PromptTokenizer | None = None,
        samples: Samples | None = None,
        *,
        engine_keys: EngineKeys | None = None,
    ) -> None:
        options = options or GatewayOptions()
        shared = Shared(options, placer, observer, tokenizer, samples, engine_keys=engine_keys)
        self._shared = shared
        self._replays = Replays(shared.samples, shared.pools, shared.now_s, self._replayed)
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._swept_s = 0.0
        self._waited_for_loop = False
        self._descriptors_max: int | None = None

    async def start(self, host: str, port: int) -> None:
        """Listen; port 0 takes a free one. Raises OSError if the address cannot be had."""
        assert self._server is None, "started twice"
        self._descriptors_max = raise_descriptor_limit()
        self._bound_clients()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: ClientConnection(self._shared),
            host,
            port,
            backlog=self._options.backlog,
            reuse_port=self._options.reuse_port or None,
        )
        self._swept_s = self._shared.now_s()
        self._sweeper = loop.call_later(self._options.sweep_s, self._sweep)

    def apply(self, options: GatewayOptions) -> None:
        """Go by other options from here on. `backlog` and `reuse_port` stay as they were at
        the start; requests under way keep their deadlines."""
        self._shared.apply(options)
        self._bound_clients()

    @property
    def port(self) -> int:
        """The port that is listened on."""
        assert self._server is not None, "not started"
        number: int = self._server.sockets[0].getsockname()[1]
        return number

    def state(self) -> GatewayState:
        """What is open and under way."""
        shared = self._shared
        return GatewayState(
            clients=len(shared.clients),
            clients_max=shared.clients_max,
            exchanges=len(shared.live),
            engine_connections=shared.pools.open_count,
            engine_connections_idle=shared.pools.idle_count,
            bodies_bytes=shared.bodies_bytes,
            descriptors_max=self._descriptors_max,
            draining=shared.draining,
        )

    def key_states(self) -> tuple[KeyState, ...]:
        """The named keys with what they have used of their limits."""
        return self._shared.keys.states(self._shared.now_s())

    def forget_node(self, node_id: NodeId) -> None:
        """An incarnation has ended: close its idle connections."""
        self._shared.pools.forget(node_id)

    def warm_up(self, effect: WarmUp, computed: Computed) -> None:
        """Replay requests that begin with the prefixes which end with its blocks, as far as any
        are kept. `computed` hears of each prompt, and None when it is over."""
        self._replays.begin(effect, computed)

    async def drain(self) -> int:
        """Take no more requests and let those under way finish, for up to `drain_s`.

        Returns how many had to be cut off. The port stays open, so that /health answers and
        newcomers are told. A second call, while the first one waits, cuts them off at once.
        """
        shared = self._shared
        if not shared.draining:
            shared.draining = True
            for client in list(shared.clients):
                client.close_if_idle()
            await self._emptied()
        left = len(shared.live)
        for handler in list(shared.live.values()):
            handler.cut_off(Reason.DRAINING)
        return left

    async def stop(self) -> None:
        """Close everything now. A second call changes nothing."""
        shared = self._shared
        shared.draining = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._server is not None:
            self._server.close()
        for client in list(shared.clients):
            client.abort()
        await self._replays.close()
        await shared.pools.close()
        await shared.lookout.close()
        while shared.clients:  # noqa: ASYNC110 - an aborted transport says so in the next round
            await asyncio.sleep(0)
        if self._server is not None:
            await self._server.wait_closed()

    @property
    def _options(self) -> GatewayOptions:
        return self._shared.options

    async def _emptied(self) -> None:
        shared = self._shared
        if not shared.live:
            return
        shared.emptied.clear()
        try:
            async with asyncio.timeout(self._options.drain_s):
                await shared.emptied.wait()
        except TimeoutError:
            log.warning("%d exchanges did not end within the drain", len(shared.live))

    def _replayed(self, result: ReplayResult) -> None:
        if self._shared.observer is not None:
            self._shared.observer.replayed(result)

    def _sweep(self) -> None:
        shared = self._shared
        loop = asyncio.get_running_loop()
        self._sweeper = loop.call_later(self._options.sweep_s, self._sweep)
        now_s = shared.now_s()
        if self._waits_for_loop(now_s):
            return
        for client in list(shared.clients):
            try:
                client.sweep(now_s)
            except Exception:  # the driver's outermost loop: one client must not stop the sweep
                log.exception("a deadline could not be handled")
                client.abort()
        shared.pools.sweep(now_s)

    def _waits_for_loop(self, now_s: float) -> bool:
        """Whether to sweep a turn later: the loop stood still or is behind, and what has arrived
        meanwhile must be read before anybody is called late. Never twice in a row."""
        is_late = now_s - self._swept_s > 2 * self._options.sweep_s
        self._swept_s = now_s
        self._waited_for_loop = is_late and not self._waited_for_loop
        return self._waited_for_loop

    def _bound_clients(self) -> None:
        """By the options, and by the descriptors: each client may need a second one for its engine,
        and who is turned away has one until it has read why."""
        shared, wanted = self._shared, self._options.connections_max
        shared.clients_max, shared.turned_away_max = wanted, TURNED_AWAY_MAX
        if self._descriptors_max is None:
            return
        shared.turned_away_max = min(TURNED_AWAY_MAX, self._descriptors_max // 8)
        spare = self._descriptors_max - DESCRIPTORS_RESERVED - shared.turned_away_max
        if (carried := max(1, spare // 2)) < wanted:
            shared.clients_max = carried
            log.warning(
                "%d file descriptors carry %d connections, not %d: raise the limit (ulimit -n)",
                self._descriptors_max,
                carried,
                wanted,
            )
