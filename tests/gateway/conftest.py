"""A gateway between scripted placer and raw engines, on uvloop as in production."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import pytest
import uvloop

from pointsman.core.errors import Reason
from pointsman.core.exchange_record import ExchangeRecord
from pointsman.engines.adapters import EngineKeys
from pointsman.gateway import Gateway, GatewayOptions
from pointsman.gateway.observer import ReplayResult
from pointsman.gateway.samples import Samples
from pointsman.ports import PromptTokenizer
from tests.support.placer import ScriptedPlacer
from tests.support.upstreams import Behaviour, Client, Engine, Received, engine

TEST_S_MAX = 30.0


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """As in production."""
    return {"uvloop": uvloop.new_event_loop}


class Records:
    """An observer that keeps everything."""

    def __init__(self) -> None:
        self.ended: list[ExchangeRecord] = []
        self.refused: list[Reason] = []
        self.replays: list[ReplayResult] = []

    def exchange_ended(self, record: ExchangeRecord) -> None:
        self.ended.append(record)

    def client_refused(self, reason: Reason) -> None:
        self.refused.append(reason)

    def replayed(self, result: ReplayResult) -> None:
        self.replays.append(result)


class Rig:
    """What a test has in its hands."""

    def __init__(self, gateway: Gateway, placer: ScriptedPlacer, records: Records) -> None:
        self.gateway = gateway
        self.placer = placer
        self.records = records
        self.engines: list[Engine] = []
        self._clients: list[Client] = []

    @property
    def engine(self) -> Engine:
        return self.engines[0]

    async def connect(self) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.gateway.port))
        self._clients.append(client)
        return client

    async def ask(self, data: bytes) -> Received:
        """One request on a connection of its own."""
        client = await self.connect()
        await client.send(data)
        answer = await client.answer()
        client.leave()
        return answer

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something to become true; the test's own timeout is the bound."""
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.002)

    async def abandon(self) -> None:
        """Leave no socket behind a test that failed."""
        for client in self._clients:
            client.leave()
        await self.gateway.stop()

    async def close(self) -> None:
        """Leave, and see that nothing is left: every test ends with this check."""
        for client in self._clients:
            client.leave()
        await self.until(lambda: not self.gateway.state().clients)
        state = self.gateway.state()
        assert (state.exchanges, state.bodies_bytes) == (0, 0)
        assert not len(self.gateway._shared.claims), "no state shows them"
        await self.until(
            lambda: (
                self.gateway.state().engine_connections
                == self.gateway.state().engine_connections_idle
            )
        )
        self.placer.check()
        await self.gateway.stop()
        await self.until(lambda: not self.gateway.state().engine_connections)


@asynccontextmanager
async def rig(
    *behaviours: Behaviour,
    options: GatewayOptions | None = None,
    urls: tuple[str, ...] = (),
    tokenizer: PromptTokenizer | None = None,
    samples: Samples | None = None,
    engine_keys: EngineKeys | None = None,
) -> AsyncIterator[Rig]:
    """A gateway in front of one engine for each behaviour, and of `urls`."""
    # uvloop starves the signal that the runner's own timeout relies on.
    async with asyncio.timeout(TEST_S_MAX), _engines(behaviours) as engines:
        placer = ScriptedPlacer([*(running.url for running in engines), *urls])
        records = Records()
        options = options or GatewayOptions(sweep_s=0.02, warm_up_prefixes=4)
        gateway = Gateway(placer, options, records, tokenizer, samples, engine_keys=engine_keys)
        await gateway.start("127.0.0.1", 0)
        made = Rig(gateway, placer, records)
        made.engines = engines
        try:
            yield made
        except BaseException:
            await made.abandon()
            raise
        await made.close()


@asynccontextmanager
async def _engines(behaviours: tuple[Behaviour, ...]) -> AsyncIterator[list[Engine]]:
    if not behaviours:
        yield []
        return
    async with engine(behaviours[0]) as first, _engines(behaviours[1:]) as rest:
        yield [first, *rest]
