"""Gateway CPU per request and per streamed chunk, with a placer that costs nothing.

python -m bench.micro_relay

Client, gateway and mock engines are processes of their own; CPU is the gateway's. What the
scheduler costs comes on top (bench.macro measures the whole). Goals: 85 us a small request with
its decision, 20 us a chunk.
"""

import argparse
import asyncio
import contextlib
import statistics
import sys
from collections.abc import AsyncIterator

import msgspec
import uvloop

from bench.peers.client import load
from bench.peers.cpu import cpu_s, resident_bytes
from bench.peers.engines import EVENTS_AT_END, MODEL
from bench.peers.gateways import mock_engines
from pointsman.gateway import Gateway, GatewayOptions
from tests.support.placer import turn_placer
from tests.support.ports import free_ports

CHUNKS = 100
INTERVAL_S = 0.002
REQUESTS = 5_000
STREAMS = 160
START_S_MAX = 10.0


class Round(msgspec.Struct, frozen=True):
    request_us: float
    chunk_us: float


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", nargs="+", metavar=("PORT", "URL"), help="be the gateway")
    arguments = parser.parse_args()
    if arguments.serve:
        port, *urls = arguments.serve
        uvloop.run(serve(int(port), urls))
    else:
        uvloop.run(measure(arguments.rounds))


async def serve(port: int, urls: list[str]) -> None:
    """The gateway's process."""
    gateway = Gateway(turn_placer(urls, MODEL), GatewayOptions())
    await gateway.start("127.0.0.1", port)
    await asyncio.Event().wait()


async def measure(rounds: int) -> None:
    async with mock_engines(2, chunks=CHUNKS, interval_s=INTERVAL_S) as urls:
        port = free_ports(1)[0]
        async with gateway_process(port, urls) as pid:
            done = [await measure_round(port, pid) for _ in range(rounds)]
            for field in Round.__struct_fields__:
                values = [getattr(one, field) for one in done]
                print(
                    f"{field:12} median {statistics.median(values):6.1f}   least {min(values):6.1f}"
                )
            print(f"resident {resident_bytes(pid) / 2**20:.0f} MiB")


@contextlib.asynccontextmanager
async def gateway_process(port: int, urls: list[str]) -> AsyncIterator[int]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.micro_relay", "--serve", str(port), *urls
    )
    try:
        async with asyncio.timeout(START_S_MAX):
            while not await answers(port):  # noqa: ASYNC110 - another process's port
                await asyncio.sleep(0.05)
        yield process.pid
    finally:
        process.terminate()
        await process.wait()


async def answers(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


async def measure_round(port: int, pid: int) -> Round:
    await load(port, requests=REQUESTS // 5, concurrency=16, stream=False)
    before_s = cpu_s(pid)
    plain = await load(port, requests=REQUESTS, concurrency=16, stream=False)
    between_s = cpu_s(pid)
    streamed = await load(port, requests=STREAMS, concurrency=8, stream=True)
    after_s = cpu_s(pid)
    assert plain.errors + streamed.errors == 0, "a run with errors is worth nothing"
    assert streamed.events == STREAMS * (CHUNKS + EVENTS_AT_END), "events were lost"
    request_s = (between_s - before_s) / REQUESTS
    chunk_s = (after_s - between_s - STREAMS * request_s) / (STREAMS * CHUNKS)
    return Round(request_s * 1e6, chunk_s * 1e6)


if __name__ == "__main__":
    main()
