"""Real text without a GPU: a small model on two llama.cpp servers, behind `pointsman serve`.

    python tools/demo_real.py MODEL.gguf [options of `pointsman serve`]

In the foreground until Ctrl-C; everything ends with it. `make demo-real` fetches the model and
the engine, and runs this.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SERVER = ROOT / "tests" / "engines_live" / "programs" / "llamacpp_server.py"
PYTHON = ROOT / ".venv-engines" / "bin" / "python"
MODEL, CONTEXT_TOKENS = "smollm2", 2048
PORTS = (18_001, 18_002)
START_S_MAX = 60.0
STOP_S_MAX = 20.0


def main(weights: str, options: Sequence[str]) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = [stack.enter_context(_server(weights, port, folder)) for port in PORTS]
        for port, server in zip(PORTS, servers, strict=True):
            _wait_for(port, server, folder)
        urls = [word for port in PORTS for word in ("--engine", f"http://127.0.0.1:{port}")]
        command = [sys.executable, "-m", "pointsman", "serve", *urls, *options]
        with subprocess.Popen(command) as gateway:  # noqa: S603 - our own words
            signal.signal(signal.SIGTERM, lambda *_: gateway.terminate())
            signal.signal(signal.SIGINT, lambda *_: None)  # the terminal tells it, too
            return gateway.wait()


@contextmanager
def _server(weights: str, port: int, folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """llama.cpp with four slots; it gets no Ctrl-C, for running answers finish first."""
    command = [str(PYTHON), str(SERVER), weights, str(port), MODEL, str(CONTEXT_TOKENS)]
    with _log(port, folder).open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)  # noqa: S603 - our own words
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for(port: int, server: "subprocess.Popen[bytes]", folder: Path) -> None:
    end_s = time.monotonic() + START_S_MAX
    while time.monotonic() < end_s and server.poll() is None:
        with suppress(urllib.error.URLError, OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
            return
        time.sleep(0.2)
    tail = _log(port, folder).read_text(errors="replace")[-2000:]
    raise SystemExit(f"llama.cpp does not serve on port {port}:{os.linesep}{tail}")


def _log(port: int, folder: Path) -> Path:
    return folder / f"llamacpp-{port}.log"


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    raise SystemExit(main(sys.argv[1], sys.argv[2:]))
