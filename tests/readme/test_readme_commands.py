"""Runs the commands of README.md as a reader would, top-down, in the project's folder."""

import contextlib
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.readme.readme_blocks import Block, How, blocks
from tests.tidy.source_tree import ROOT

BLOCKS = blocks((ROOT / "README.md").read_text())
READY_S_MAX = 180.0  # what `make demo` may take from nothing
STOP_S_MAX = 30.0
Start = Callable[[Block], None]

pytestmark = [pytest.mark.readme, pytest.mark.timeout(READY_S_MAX + STOP_S_MAX + 60)]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """As after `source .venv/bin/activate`; $HOME is scratch."""
    path = f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"
    return os.environ | {"PATH": path, "HOME": str(tmp_path_factory.mktemp("home"))}


@pytest.fixture(scope="module")
def start(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts a server block, after it has stopped the one before."""
    with contextlib.ExitStack() as running:

        def replace(block: Block) -> None:
            running.close()
            log = tmp_path_factory.mktemp("server") / "log"
            running.enter_context(_server(block, environment, log))

        yield replace


def test_the_readme_has_commands() -> None:
    assert any(block.how is not How.SKIP for block in BLOCKS)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"line {block.line}")
def test_readme_commands(block: Block, environment: dict[str, str], start: Start) -> None:
    match block.how:
        case How.SKIP:
            pytest.skip(block.reason)
        case How.SERVER:
            start(block)
        case How.RUN:
            _run(block, environment)


def _run(block: Block, environment: dict[str, str]) -> None:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.commands],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, f"exit {done.returncode} of:\n{block.commands}"


@contextlib.contextmanager
def _server(block: Block, environment: dict[str, str], log: Path) -> Iterator[None]:
    assert not _is_ready(block.port), f"port {block.port} is taken by another server"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", block.commands],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        _wait_until_ready(block, process, log)
        yield
        assert process.poll() is None, f"ended by itself:\n{_end_of(log)}"
    finally:
        _stop(process, log)


def _wait_until_ready(block: Block, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + READY_S_MAX
    while not _is_ready(block.port):
        assert process.poll() is None, f"exit {process.returncode}:\n{_end_of(log)}"
        assert time.monotonic() < deadline_s, f"not ready in {READY_S_MAX} s:\n{_end_of(log)}"
        time.sleep(0.2)


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=2) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError as error:
        error.close()
        return False
    except OSError:
        return False


def _stop(process: subprocess.Popen[bytes], log: Path) -> None:
    """Presses Ctrl-C, as a reader would; what runs in the background is then ended."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(STOP_S_MAX)
    except subprocess.TimeoutExpired:
        pytest.fail(f"does not stop on Ctrl-C:\n{_end_of(log)}")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _end_of(log: Path) -> str:
    return log.read_text(errors="replace")[-4000:]
