"""The gateways under test: how each is started, and when it is ready."""

import asyncio
import contextlib
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from enum import StrEnum
from pathlib import Path

import msgspec

from bench.peers.client import load
from bench.peers.engines import MODEL
from tests.support.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
OURS = ROOT / ".venv" / "bin" / "pointsman"
PEERS = ROOT / "bench" / ".venv" / "bin"
NGINX_FOLDERS = "/usr/local/sbin:/usr/sbin:/usr/local/bin:/usr/bin"
TOKEN_IDS = "+token-ids"
READY_S_MAX = 60.0
STOP_S_MAX = 10.0


class Kind(StrEnum):
    """What a gateway is asked to do: only like is compared with like."""

    CACHE_AWARE = "cache-aware"
    ROUND_ROBIN = "round-robin"
    PROXY = "proxy"


class Gateway(msgspec.Struct, frozen=True):
    """A gateway's name, what it does (a Kind, or by what policy), and the command that serves
    `engines` on a port."""

    name: str
    kind: str
    command: Callable[["Site"], Sequence[str | Path]]
    program: Path

    @property
    def label(self) -> str:
        return f"{self.name} {self.kind}"


class Site(msgspec.Struct, frozen=True):
    """Where a gateway is to stand."""

    port: int
    side_port: int  # for its metrics or administration
    engines: list[str]
    folder: Path
    kv_events: Sequence[str] = ()  # where engines publish them, if they do: one for each


class Running(msgspec.Struct, frozen=True):
    """A gateway that serves."""

    gateway: Gateway
    port: int
    pid: int


def known_gateways() -> list[Gateway]:
    """Each router with the policy it is known for and with its cheapest; nginx as the limit."""
    nginx = Path(shutil.which("nginx", path=NGINX_FOLDERS) or "/usr/sbin/nginx")
    return [
        Gateway("pointsman", Kind.CACHE_AWARE, _pointsman(), OURS),
        Gateway("pointsman", Kind.ROUND_ROBIN, _pointsman("--policy", "round_robin"), OURS),
        *(
            Gateway(name, kind, _router(command, policy), PEERS / name)
            for name, command in ROUTERS.items()
            for kind, policy in POLICIES.items()
        ),
        Gateway("nginx", Kind.PROXY, _nginx(nginx), nginx),
    ]


def router(name: str, kind: str) -> Gateway:
    """Ours or a peer, under one of its own policies. Raises KeyError for an unknown name.

    With TOKEN_IDS behind its policy, ours asks the engines for a prompt's ids, and finds what
    their KV events tell of it.
    """
    if name == OURS.name:
        policy = kind.removesuffix(TOKEN_IDS)
        known_by = () if kind == policy else ("--tokenizer", f"{MODEL}=engine")
        return Gateway(name, kind, _pointsman("--policy", policy, *known_by), OURS)
    return Gateway(name, kind, _router(ROUTERS[name], kind), PEERS / name)


@contextlib.asynccontextmanager
async def running(
    gateway: Gateway, engines: list[str], folder: Path, *, kv_events: Sequence[str] = ()
) -> AsyncIterator[Running]:
    """Starts `gateway`, which keeps its files in `folder`, and stops it at the end.

    Raises RuntimeError, with the end of its log, if it answers no request within READY_S_MAX.
    """
    port, side_port = free_ports(2)
    command = gateway.command(Site(port, side_port, engines, folder, kv_events))
    log = folder / "log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *map(str, command), stdout=output, stderr=output, cwd=folder
        )
    try:
        if not await _is_ready(process, port):
            raise RuntimeError(f"{gateway.label} does not serve:\n{log.read_text()[-2000:]}")
        yield Running(gateway, port, process.pid)
    finally:
        await stop(process)


@contextlib.asynccontextmanager
async def mock_engines(count: int, *, chunks: int, interval_s: float) -> AsyncIterator[list[str]]:
    """Serves `count` mock engines from one process of their own; gives their URLs."""
    ports = free_ports(count)
    words = (sys.executable, "-m", "bench.peers.engines", chunks, interval_s, *ports)
    process = await asyncio.create_subprocess_exec(*map(str, words), cwd=ROOT)
    try:
        for port in ports:
            if not await _is_ready(process, port):
                raise RuntimeError("the mock engines do not serve")
        yield [f"http://127.0.0.1:{port}" for port in ports]
    finally:
        await stop(process)


async def stop(process: asyncio.subprocess.Process) -> None:
    """Asks the process to end, then insists."""
    if process.returncode is None:
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), STOP_S_MAX)
    except TimeoutError:
        process.kill()
        await process.wait()


async def _is_ready(process: asyncio.subprocess.Process, port: int) -> bool:
    """Waits for four good answers in a row, so that every engine has been found."""
    deadline_s = asyncio.get_running_loop().time() + READY_S_MAX
    while process.returncode is None and asyncio.get_running_loop().time() < deadline_s:
        probe = await load(port, requests=4, concurrency=1, stream=False)
        if probe.errors == 0:
            return True
        await asyncio.sleep(0.25)
    return False


def _pointsman(*options: str) -> Callable[[Site], list[str | Path]]:
    def build(site: Site) -> list[str | Path]:
        engines = [word for url in site.engines for word in ("--engine", url)]
        place = [
            "--host",
            "127.0.0.1",
            "--port",
            str(site.port),
            "--admin-port",
            str(site.side_port),
        ]
        quiet = ["--access-log", "none"]  # as the others
        return [OURS, "serve", *place, *quiet, *options, *engines]

    return build


def _router(command: list[str], policy: str) -> Callable[[Site], list[str | Path]]:
    def build(site: Site) -> list[str | Path]:
        place = ["--host", "127.0.0.1", "--port", str(site.port)]
        metrics = ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(site.side_port)]
        routing = ["--policy", policy, "--worker-urls", *site.engines]
        quiet = ["--log-level", "error"]
        if policy == KV_AWARE:
            routing += ["--kv-event-model", MODEL]
            for url, endpoint in zip(site.engines, site.kv_events, strict=True):
                routing += ["--kv-event-source", f"{url}={endpoint}"]
        return [PEERS / command[0], *command[1:], *place, *metrics, *quiet, *routing]

    return build


def _nginx(program: Path) -> Callable[[Site], list[str | Path]]:
    def build(site: Site) -> list[str | Path]:
        servers = "".join(f"server {url.removeprefix('http://')}; " for url in site.engines)
        config = site.folder / "nginx.conf"
        config.write_text(NGINX_CONFIG % {"port": site.port, "servers": servers})
        return [program, "-e", site.folder / "error.log", "-p", site.folder, "-c", config]

    return build


POLICIES = {Kind.CACHE_AWARE: "cache_aware", Kind.ROUND_ROBIN: "round_robin"}
KV_AWARE = "kv_aware"  # vllm-router's; it trusts engines' events only where it is told of them
ROUTERS = {
    "vllm-router": ["vllm-router"],
    "smg": ["smg", "launch"],
    "sglang-router": ["sglang-router", "launch"],
}

# A bare reverse proxy, tuned to be cheap: kept connections on both sides, no buffering, no log.
NGINX_CONFIG = """
daemon off;
worker_processes 1;
pid nginx.pid;
error_log error.log;
events { worker_connections 1024; }
http {
  access_log off;
  client_body_temp_path client; proxy_temp_path proxy; fastcgi_temp_path fastcgi;
  uwsgi_temp_path uwsgi; scgi_temp_path scgi;
  keepalive_requests 1000000;
  upstream engines { %(servers)s keepalive 64; keepalive_requests 1000000; }
  server {
    listen 127.0.0.1:%(port)s;
    location / {
      proxy_pass http://engines;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
    }
  }
}
"""
