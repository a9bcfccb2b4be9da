"""Real engines for tests and benches: vLLM and llama.cpp, as processes of their own.

They live in an environment of their own (`make engines`), because vLLM pins a hundred packages
and torch weighs a gigabyte. What starts them is in tests/engines_live/programs.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tests.support.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "engines_live" / "programs"
PYTHON = ROOT / ".venv-engines" / "bin" / "python"
LLAMACPP_INSTALLED = ROOT / ".venv-engines" / ".llamacpp"
VLLM_INSTALLED = ROOT / ".venv-engines" / ".vllm"

START_S_MAX = 240.0
"""Two vLLM servers take 16 s on two quiet cores, five times that where others work too."""

STOP_S_MAX = 20.0


class LiveEngine(msgspec.Struct, frozen=True):
    """A running engine. `pid` is its process, and its process group."""

    url: str
    pid: int
    log: Path

    def signal(self, number: signal.Signals) -> None:
        """To the server alone."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL to all of it: connections are reset, nothing is said."""
        os.killpg(self.pid, signal.SIGKILL)

    def get(self, path: str) -> bytes:
        """The body of a good answer."""
        with urllib.request.urlopen(self.url + path, timeout=10) as reply:
            body: bytes = reply.read()
        return body

    def until_healthy(self) -> None:
        """Fails with the end of its log when it is not up in time."""
        end_s = time.monotonic() + START_S_MAX
        while time.monotonic() < end_s:
            with contextlib.suppress(OSError, urllib.error.URLError):
                self.get("/health")
                return
            if not _lives(self.pid):
                break
            time.sleep(0.1)
        raise AssertionError(f"{self.url} did not start:\n{self.log.read_text()[-3000:]}")


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def make_model(folder: Path, *shape: int) -> Path:
    """The tiny model's folder; with a shape (hidden size, layers) without weights."""
    arguments = (str(folder), *map(str, shape))
    subprocess.run([PYTHON, PROGRAMS / "tiny_model.py", *arguments], check=True, timeout=120)
    return folder


@contextlib.contextmanager
def running_llamacpp(model: Path) -> Iterator[LiveEngine]:
    """llama.cpp's server, healthy."""
    [port] = free_ports(1)
    log = model / f"llamacpp-{port}.log"
    program, weights = PROGRAMS / "llamacpp_server.py", model / "model.gguf"
    command = [str(PYTHON), str(program), str(weights), str(port)]
    with _process(command, log) as process:
        engine = LiveEngine(f"http://127.0.0.1:{port}", process.pid, log)
        engine.until_healthy()
        yield engine


@contextlib.contextmanager
def running_simulated(folder: Path, *arguments: str) -> Iterator[LiveEngine]:
    """The project's own engine as a process, as the others are."""
    [port] = free_ports(1)
    log = folder / f"simulated-{port}.log"
    command = [sys.executable, "-m", "pointsman", "engine", "--port", str(port), *arguments]
    with _process(command, log) as process:
        engine = LiveEngine(f"http://127.0.0.1:{port}", process.pid, log)
        engine.until_healthy()
        yield engine


class VllmServers:
    """vLLM servers of one model; each starts in seconds once vLLM is imported.

    `arguments` are for all of them, after what every test needs.
    """

    def __init__(self, model: Path, launcher: subprocess.Popen[str], *arguments: str) -> None:
        self._model = model
        self._launcher = launcher
        self._arguments = arguments

    def start(self, *arguments: str, port: int = 0, events: Sequence[int] = ()) -> LiveEngine:
        """A server that is not up yet; on given ports where one is to come back there.

        `events` are the ports of its KV events and of their replay.
        """
        port = port or free_ports(1)[0]
        log = self._model / f"vllm-{port}.log"
        order = {
            "log": str(log),
            "arguments": [*self._command(port, events), *self._arguments, *arguments],
            "environment": {"VLLM_SERVER_DEV_MODE": "1", "VLLM_RPC_BASE_PATH": "/tmp"},
        }
        assert self._launcher.stdin is not None
        assert self._launcher.stdout is not None
        self._launcher.stdin.write(json.dumps(order) + "\n")
        self._launcher.stdin.flush()
        pid = int(self._launcher.stdout.readline())
        return LiveEngine(f"http://127.0.0.1:{port}", pid, log)

    def _command(self, port: int, events: Sequence[int]) -> Sequence[str]:
        settings = {
            "--model": str(self._model),
            "--served-model-name": "tiny",
            "--host": "127.0.0.1",
            "--port": str(port),
            "--dtype": "float32",
            "--block-size": "32",  # attention on CPUs takes multiples of 32 only
            "--kv-cache-memory-bytes": "16M",
            "--gpu-memory-utilization": "0.05",  # or it wants 92 % of the machine's to be free
        }
        if events:
            settings["--kv-events-config"] = json.dumps(kv_events(*events))
        flags = ("--enforce-eager", "--enable-prefix-caching", "--enable-prompt-tokens-details")
        quiet = ("--disable-uvicorn-access-log",)
        return [*(part for pair in settings.items() for part in pair), *flags, *quiet]


def kv_events(port: int, replay_port: int) -> Mapping[str, Any]:
    """vLLM's `--kv-events-config`, as docs/engines/vllm.md recommends it."""
    return {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{port}",
        "replay_endpoint": f"tcp://*:{replay_port}",
        "topic": "kv@127.0.0.1@tiny",
    }


@contextlib.contextmanager
def vllm_servers(model: Path, *arguments: str) -> Iterator[VllmServers]:
    """What starts vLLM servers; all of them end with it."""
    command = [str(PYTHON), str(PROGRAMS / "vllm_servers.py")]
    with _process(command, model / "launcher.log", stdin=subprocess.PIPE) as launcher:
        try:
            yield VllmServers(model, launcher, *arguments)
        finally:
            assert launcher.stdin is not None
            launcher.stdin.close()
            launcher.wait(STOP_S_MAX)


@contextlib.contextmanager
def _process(
    command: Sequence[str], log: Path, *, stdin: int = subprocess.DEVNULL
) -> Iterator[subprocess.Popen[str]]:
    """Runs `command` in a process group of its own; ended, or killed if need be."""
    with log.open("wb") as output:
        told = output if stdin == subprocess.DEVNULL else subprocess.PIPE
        process = subprocess.Popen(
            command, stdin=stdin, stdout=told, stderr=output, text=True, start_new_session=True
        )
    with process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
