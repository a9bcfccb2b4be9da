"""Starts vLLM servers quickly: imports vLLM once, then forks a server whenever it is told to.

    python vllm_servers.py

Each line on stdin is JSON: {"log": FILE, "arguments": [...], "environment": {...}}. Each is
answered by the server's process id; its process group has that number, too. At the end of
stdin all servers are ended. The servers themselves are vLLM's own, unchanged.

Importing takes 15 s of CPU a process, which is most of what starting takes on two cores. For
the same reason an engine core is forked from its server instead of spawned.
Runs in the engines' own environment.
"""

import contextlib
import ctypes
import importlib
import json
import multiprocessing
import os
import signal
import sys
import time
from typing import Any

STOP_S_MAX = 10.0
PR_SET_PDEATHSIG = 1
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the worker runs inside the core: a process less
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # or all servers are pinned to one core
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}
PRELOADED = (
    "vllm.v1.engine.core",
    "vllm.v1.engine.async_llm",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.worker.cpu_model_runner",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.core.sched.scheduler",
    "vllm.model_executor.models.llama",
    "vllm.model_executor.models.registry",
    "vllm.model_executor.model_loader.default_loader",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.distributed.kv_events",
    "vllm.entrypoints.openai.chat_completion.serving",
    "vllm.entrypoints.openai.completion.serving",
)
servers: dict[int, None] = {}


def main() -> None:
    os.environ.update(ENVIRONMENT)
    _preload()
    signal.signal(signal.SIGCHLD, _reap)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(1))
    try:
        for line in iter(sys.stdin.readline, ""):
            print(_fork(json.loads(line)), flush=True)
    finally:
        _stop_all()


def _preload() -> None:
    importlib.import_module("torch").set_num_threads(1)
    fork = multiprocessing.get_context("fork")
    importlib.import_module("vllm.utils.system_utils").get_mp_context = lambda: fork  # type: ignore[attr-defined]  # theirs
    importlib.import_module("vllm.entrypoints.openai.api_server")
    importlib.import_module("vllm.entrypoints.launchers.api_server.entry")
    for name in ("vllm.v1.engine.utils", "vllm.v1.engine.coordinator"):
        importlib.import_module(name).get_mp_context = lambda: fork  # type: ignore[attr-defined]  # theirs
    for name in PRELOADED:
        try:
            importlib.import_module(name)
        except ImportError as error:  # a name that has moved only costs time
            print(f"not preloaded: {error}", file=sys.stderr)


def _fork(server: dict[str, Any]) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _serve(server)
            code = 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    servers[pid] = None
    return pid


def _serve(server: dict[str, Any]) -> None:
    """In the child: a process group of its own, which ends with the launcher."""
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    log = os.open(server["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(server["environment"])
    sys.argv = ["api_server", *server["arguments"]]
    importlib.import_module("vllm.entrypoints.launchers.api_server.entry").main()


def _reap(*_: object) -> None:
    """A server that was killed leaves its engine core behind, which holds its ports."""
    for pid in list(servers):
        ended, _status = os.waitpid(pid, os.WNOHANG)
        if ended:
            del servers[pid]
            _kill_group(pid)


def _stop_all() -> None:
    for pid in list(servers):
        os.kill(pid, signal.SIGTERM)
    end_s = time.monotonic() + STOP_S_MAX
    while servers and time.monotonic() < end_s:
        time.sleep(0.05)
    for pid in list(servers):
        _kill_group(pid)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
