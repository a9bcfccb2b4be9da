"""What the macro benchmark stands on: client and engines agree, CPU and ratios are right."""

import asyncio
import os
import subprocess
import sys
import time

import pytest

from bench.macro import OURS, Measured, ratios_of
from bench.peers.client import load
from bench.peers.cpu import CLOCK_OF_PROCESS, cpu_s, resident_bytes
from bench.peers.engines import EVENTS_AT_END, Engine
from bench.peers.gateways import Gateway, Kind, known_gateways
from tests.support.ports import free_ports

CHUNKS = 5


async def test_client_and_engine_agree_on_a_stream() -> None:
    server = await asyncio.get_running_loop().create_server(
        lambda: Engine(CHUNKS, 0.001), "127.0.0.1", 0
    )
    port = server.sockets[0].getsockname()[1]
    async with server:
        streamed = await load(port, requests=6, concurrency=2, stream=True)
        plain = await load(port, requests=6, concurrency=2, stream=False)
    assert (streamed.errors, streamed.events) == (0, 6 * (CHUNKS + EVENTS_AT_END))
    assert (plain.errors, plain.events) == (0, 0)


async def test_a_gateway_that_is_not_there_is_an_error_per_request() -> None:
    (port,) = free_ports(1)
    refused = await load(port, requests=3, concurrency=2, stream=False)
    assert refused.errors == 3


def test_cpu_of_children_counts() -> None:
    burn = "import time\nwhile time.process_time() < 0.2: pass\nprint(flush=True)\ninput()"
    nest = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}])"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", nest], stdin=pipe, stdout=pipe) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()  # the child has burnt it
        alone_s = time.clock_gettime((~parent.pid << 3) | CLOCK_OF_PROCESS)
        assert cpu_s(parent.pid) >= alone_s + 0.2
        parent.communicate(b"\n")


def test_own_memory_is_seen() -> None:
    assert resident_bytes(os.getpid()) > 2**20


def test_like_is_compared_with_like_turn_by_turn() -> None:
    measured = {
        f"{OURS} {Kind.CACHE_AWARE}": _measured([50, 60, 500], [12]),
        f"a {Kind.CACHE_AWARE}": _measured([100, 100, 1000], [30]),
        f"b {Kind.CACHE_AWARE}": _measured([200, 200, 2000], [24]),
        f"a {Kind.ROUND_ROBIN}": _measured([10, 10, 10], [10]),
        f"nginx {Kind.PROXY}": _measured([1, 1, 1], [1]),
    }
    template = known_gateways()[0]
    gateways = [
        Gateway(name, Kind(kind), template.command, template.program)
        for name, kind in (label.split() for label in measured)
    ]
    found = ratios_of(measured, gateways, Kind.CACHE_AWARE)
    assert found == {"request_us": pytest.approx(0.5), "chunk_us": pytest.approx(0.5)}
    assert ratios_of(measured, gateways, Kind.ROUND_ROBIN) == {}


def _measured(request_us: list[float], chunk_us: list[float]) -> Measured:
    return Measured(request_us, [], chunk_us, [], resident_mib=0)
