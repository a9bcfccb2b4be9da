"""One process with everything: scheduler, collectors, gateway and admin plane, wired here."""

import asyncio
import errno
import gc
import logging
import os
import signal
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from functools import partial

from aiohttp import web
from prometheus_client import ProcessCollector
from prometheus_client.registry import CollectorRegistry

from pointsman import __version__
from pointsman.cli.config import Config
from pointsman.cli.config_change import in_force, with_names
from pointsman.cli.config_file import doors, openness_problem
from pointsman.cli.control_address import UnusableControl
from pointsman.cli.engine_changes import apply_engines, engine_conflicts
from pointsman.cli.node_watchers import ForgetfulPools, WarmUpByReplay, hot_samples
from pointsman.cli.reload import Reloader, Source
from pointsman.cli.signals import on_signals
from pointsman.cli.tokenizers import Tokenizers
from pointsman.cli.wiring import (
    agent_listener_options,
    cadence,
    engine_keys,
    gateway_options,
    node_spec,
    scheduler_options,
)
from pointsman.control.agents import AgentListener
from pointsman.control.api import AdminApi
from pointsman.control.fleet import Fleet, NodeRefused
from pointsman.control.service import SchedulerService
from pointsman.core.errors import Reason
from pointsman.core.events import RulesChanged
from pointsman.core.exchange_record import ExchangeRecord
from pointsman.core.scheduler import Scheduler
from pointsman.engines.adapters import EngineKeys
from pointsman.engines.adapters.address import Door
from pointsman.engines.tokenizer import Unusable
from pointsman.gateway import Gateway, GatewayObserver
from pointsman.gateway.dry_run import would_ask
from pointsman.gateway.observer import ReplayResult
from pointsman.ports import PromptTokenizer
from pointsman.telemetry.access_log import AccessLog, open_stream
from pointsman.telemetry.cluster_metrics import ClusterMetrics, StateMetrics
from pointsman.telemetry.collector_metrics import CollectorMetrics
from pointsman.telemetry.decisions import DecisionRing
from pointsman.telemetry.metrics import RequestMetrics
from pointsman.telemetry.reload_metrics import ReloadMetrics

log = logging.getLogger(__name__)

_SILENT = logging.getLogger(f"{__name__}.admin")
_SILENT.setLevel(logging.CRITICAL)
"""Of aiohttp's server: whoever sends it what is no HTTP would have a stack trace logged each time.
What the admin plane itself gets wrong is logged by the plane."""


def settle() -> None:
    """For a program that serves: what it is made of stays, so collections need not walk it."""
    gc.collect()
    gc.freeze()


class CannotStart(Exception):  # noqa: N818 - named by what happened
    """A port in use, a file that cannot be written. The text is for the user."""


class Process:
    """Built from a configuration; `run` serves until SIGTERM or SIGINT, or SIGHUP where there is
    no file. `config` is the one in force: `source` is read again while running, and `apply`
    changes what can be changed."""

    def __init__(self, config: Config, source: Source | None = None) -> None:
        self.config = config = with_names(config)
        self.reloader = Reloader(source or Source(None, lambda: config), self)
        self.decisions = DecisionRing(config.log.decisions)
        self.registry = CollectorRegistry()
        scheduler = Scheduler(scheduler_options(config))
        self._metrics = RequestMetrics(
            self.registry, lambda: {card.name for card in scheduler.models()}
        )
        self.service = SchedulerService(scheduler, decisions=self.decisions, observer=self._metrics)
        self._node_metrics = CollectorMetrics(self.registry)
        self._engine_keys = EngineKeys(engine_keys(config.engines))
        self.fleet = Fleet(
            self.service,
            self._node_metrics,
            cadence=cadence(config),
            keys=self._engine_keys,
        )
        ClusterMetrics(self.registry, scheduler, self.service.now_s)
        ProcessCollector(namespace="pointsman", registry=self.registry)
        ReloadMetrics(self.registry, self.reloader.state)
        self._gateway: Gateway | None = None
        self._stopping = asyncio.Event()
        self._hurrying = asyncio.Event()
        self.port = self.admin_port = self.agents_port = 0

    async def run(self, started: Callable[["Process"], Coroutine[None, None, None]]) -> None:
        """Serve; `started` runs once clients can connect. Raises CannotStart."""
        for index, engine in enumerate(self.config.engines):
            spec = node_spec(engine, index)
            try:
                self.fleet.add(spec, kv_events=engine.kv_events, ranks=engine.ranks)
            except NodeRefused as refused:
                raise CannotStart(f"engine {spec.name}: {refused}") from None
        async with AsyncExitStack() as stack:
            observer = self._observer(stack)
            self.service.start()
            stack.callback(self.service.stop)
            tokenizers = self._load_tokenizers()
            stack.push_async_callback(tokenizers.close)
            options = gateway_options(self.config)
            samples = hot_samples(self.service)
            gateway = Gateway(
                self.service,
                options,
                observer,
                tokenizers.service,
                samples,
                engine_keys=self._engine_keys,
            )
            self._gateway = gateway
            self.service.watch(ForgetfulPools(gateway))
            self.service.watch(WarmUpByReplay(gateway, self.service))
            StateMetrics(self.registry, "pointsman_gateway", gateway.state)
            await self._listen(gateway, stack)
            await self._listen_for_admins(gateway, stack, tokenizers.service)
            self.fleet.doors = self._doors()
            await self._listen_for_agents(stack)
            stack.enter_context(on_signals(self._signal_handlers()))
            async with asyncio.TaskGroup() as tasks:
                collecting = tasks.create_task(self.fleet.run())
                tokenizing = tasks.create_task(tokenizers.run())
                reloading = tasks.create_task(self.reloader.run())
                announcing = tasks.create_task(started(self))
                await self._stopping.wait()
                announcing.cancel()
                reloading.cancel()
                await self._drain(gateway)
                collecting.cancel()
                tokenizing.cancel()

    def _signal_handlers(self) -> Mapping[signal.Signals, Callable[[], None]]:
        """Where there is no file to read again, SIGHUP is what it was: the terminal is gone."""
        reload = partial(self.reloader.ask, "SIGHUP")
        hung_up = self.stop if self.reloader.state().file is None else reload
        return {signal.SIGTERM: self.stop, signal.SIGINT: self.stop, signal.SIGHUP: hung_up}

    # --- a configuration that is read again: `reload.Target` -----------------------------

    def conflicts(self, config: Config) -> list[str]:
        """What speaks against a configuration, beside what its file shows."""
        clashes = engine_conflicts(self.fleet, self.config.engines, config.engines)
        # The host stays what it is until a restart, so both are looked at.
        doors = (openness_problem(config), openness_problem(in_force(self.config, config)))
        return [*clashes, *dict.fromkeys(filter(None, doors))]

    async def apply(self, config: Config) -> None:
        """Go by it from here on. Requests under way keep what they began with."""
        assert self._gateway is not None, "not running"
        before = self.config
        if config.policy != before.policy:
            self.service.choose_policy(config.policy)
        self.service.submit(RulesChanged(scheduler_options(config).rules))
        self._gateway.apply(gateway_options(config))
        self._engine_keys.hold(engine_keys((*before.engines, *config.engines)))
        self.fleet.apply(cadence(config))
        if config.log.level != before.log.level:
            logging.getLogger().setLevel(config.log.level.upper())
        drain_s = config.timeouts.drain_s
        await apply_engines(self.fleet, before.engines, config.engines, drain_s=drain_s)
        self.config = config  # not before: what could not be applied is not in force

    # --- the way down --------------------------------------------------------------------

    def stop(self) -> None:
        """Drain and end; a second call cuts off what still runs."""
        if self._stopping.is_set():
            self._hurrying.set()
        self._stopping.set()

    async def _drain(self, gateway: Gateway) -> None:
        if running := gateway.state().exchanges:
            wait_s = self.config.timeouts.drain_s
            text = "stopping: %d running get %g s; a second signal (Ctrl-C) cuts them off"
            log.warning(text, running, wait_s)
        async with asyncio.TaskGroup() as tasks:
            draining = tasks.create_task(gateway.drain())
            hurrying = tasks.create_task(self._hurrying.wait())
            await asyncio.wait((draining, hurrying), return_when=asyncio.FIRST_COMPLETED)
            if not draining.done():
                await gateway.drain()
            hurrying.cancel()

    def _load_tokenizers(self) -> Tokenizers:
        try:
            return Tokenizers(self.config, self.service.scheduler, self.registry, self._engine_keys)
        except Unusable as unusable:
            raise CannotStart(str(unusable)) from None

    def _observer(self, stack: AsyncExitStack) -> GatewayObserver:
        """Who counts requests, and logs them where that is wanted."""
        access_log = self._open_access_log(stack)
        return self._metrics if access_log is None else _CountedAndLogged(self._metrics, access_log)

    def _open_access_log(self, stack: AsyncExitStack) -> AccessLog | None:
        target = self.config.log.access
        if target == "none":
            return None
        try:
            stream = stack.enter_context(open_stream(target))
        except OSError as error:
            remedy = "give a file in a folder that exists, stdout or none"
            raise CannotStart(f"access log {target}: {error.strerror}; {remedy}") from None
        access_log = AccessLog(stream)
        stack.callback(access_log.close)
        StateMetrics(self.registry, "pointsman_access_log", access_log.state)
        return access_log

    async def _listen(self, gateway: Gateway, stack: AsyncExitStack) -> None:
        listen = self.config.listen
        with _explained("--port", listen.host, listen.port):
            await gateway.start(listen.host, listen.port)
        stack.push_async_callback(gateway.stop)
        self.port = gateway.port

    def _doors(self) -> tuple[Door, ...]:
        """Where it listens, by the ports that a 0 of the configuration has become."""
        ports = (self.port, self.admin_port)
        return tuple(
            door._replace(port=port) for door, port in zip(doors(self.config), ports, strict=True)
        )

    async def _listen_for_agents(self, stack: AsyncExitStack) -> None:
        try:
            options = agent_listener_options(self.config)
        except UnusableControl as unusable:
            raise CannotStart(str(unusable)) from None
        if options is None:
            return
        agents = AgentListener(self.service, self.fleet, options)
        try:
            await agents.start()
        except (OSError, UnicodeError) as error:
            where, cause = self.config.agents.listen, getattr(error, "strerror", None) or error
            raise CannotStart(f"agents.listen {where}: {cause}") from None
        stack.push_async_callback(agents.stop)
        self.agents_port = agents.port

    async def _listen_for_admins(
        self, gateway: Gateway, stack: AsyncExitStack, tokenizer: PromptTokenizer | None
    ) -> None:
        api = AdminApi(
            self.service,
            self.fleet,
            decisions=self.decisions,
            registry=self.registry,
            would_ask=partial(would_ask, tokenizer=tokenizer, models=self.service.scheduler.models),
            before_scrape=self._end_series,
            gateway_state=gateway.state,
            key_states=gateway.key_states,
            configuration=self.reloader,
            host=self.config.admin.host,
            version=__version__,
        )
        runner = web.AppRunner(
            api.application(), access_log=None, logger=_SILENT, shutdown_timeout=1.0
        )
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        admin = self.config.admin
        with _explained("--admin-port", admin.host, admin.port):
            await web.TCPSite(runner, admin.host, admin.port).start()
        self.admin_port = int(runner.addresses[0][1])

    def _end_series(self) -> None:
        """Before they are read: of nodes that are gone."""
        names = self.fleet.names
        self._metrics.refresh_labels(names)
        self._node_metrics.keep(frozenset(names))


class _CountedAndLogged:
    """Hands the gateway's records to those who count and log."""

    def __init__(self, metrics: RequestMetrics, access_log: AccessLog) -> None:
        self._metrics = metrics
        self._access_log = access_log

    def exchange_ended(self, record: ExchangeRecord) -> None:
        self._metrics.exchange_ended(record)
        self._access_log.exchange_ended(record)

    def client_refused(self, reason: Reason) -> None:
        self._metrics.client_refused(reason)

    def replayed(self, result: ReplayResult) -> None:
        self._metrics.replayed(result)


@contextmanager
def _explained(option: str, host: str, port: int) -> Iterator[None]:
    """Turn a failure to listen into what to do about it."""
    try:
        yield
    except (OSError, UnicodeError) as error:  # the latter for an empty label: a..b
        raise CannotStart(listen_problem(option, host, port, error)) from None


def listen_problem(option: str, host: str, port: int, error: OSError | UnicodeError) -> str:
    """What failed and what to change: the port that `option` gives, or the host."""
    known = (error.errno or 0) if isinstance(error, OSError) else 0
    cause = os.strerror(known) if known > 0 else "no such host"  # resolvers count below zero
    if known not in (errno.EADDRINUSE, errno.EACCES):
        option = "--host" if option == "--port" else "admin.host"
    return f"cannot listen on {host}:{port}: {cause}; choose another {option}"
