"""An engine's process is kept running, and ended with all that it has started."""

import asyncio
import signal
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from pointsman.agent.agent import _Supervised
from pointsman.agent.supervisor import GaveUp, Supervisor, SupervisorOptions, Watcher
from tests.support.waiting import eventually

QUICK = SupervisorOptions(pause_s_min=0.01, pause_s_max=0.05, stop_s_max=0.5, restarts_max=3)


class Notes(Watcher):
    """What a supervisor tells."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.well = True

    def began(self) -> None:
        self.told.append("began")

    def ended(self, detail: str) -> None:
        self.told.append(detail)

    def is_well(self, since_s: float, options: SupervisorOptions) -> bool:
        return self.well


def program(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


def lives(pid: int) -> bool:
    """Whether there is such a process, and it is not only waiting to be buried."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


async def test_who_dies_is_started_again(tmp_path: Path) -> None:
    flag = tmp_path / "second"
    code = f"import pathlib, time, sys; f = pathlib.Path({str(flag)!r})\n"
    code += "if not f.exists(): f.touch(); sys.exit(7)\ntime.sleep(60)"
    notes = Notes()
    supervisor = Supervisor(program(code), notes, QUICK)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(supervisor.run())
        await eventually(lambda: len(notes.told) == 3)
        assert notes.told == ["began", "exit status 7", "began"]
        await supervisor.stop()


async def test_who_never_stays_up_is_given_up() -> None:
    notes = Notes()
    supervisor = Supervisor(program("import sys; sys.exit(1)"), notes, QUICK)
    with pytest.raises(GaveUp, match="exit status 1, 4 times"):
        await supervisor.run()
    assert supervisor.starts == 1 + QUICK.restarts_max


async def test_what_cannot_be_started_is_given_up_with_its_cause() -> None:
    supervisor = Supervisor(["/no/such/program"], Notes(), QUICK)
    with pytest.raises(GaveUp, match="No such file"):
        await supervisor.run()


async def test_who_is_sick_for_too_long_is_started_again() -> None:
    notes = Notes()
    supervisor = Supervisor(program("import time; time.sleep(60)"), notes, QUICK)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(supervisor.run())
        await eventually(lambda: notes.told == ["began"])
        notes.well = False
        await eventually(lambda: len(notes.told) >= 3)
        notes.well = True
        assert notes.told[:3] == ["began", "no answer for too long", "began"]
        await supervisor.stop()


async def test_the_end_is_polite_first(tmp_path: Path) -> None:
    done, ready = tmp_path / "done", tmp_path / "ready"
    code = "import pathlib, signal, sys, time\n"
    code += f"def end(*_): pathlib.Path({str(done)!r}).touch(); sys.exit(0)\n"
    code += f"signal.signal(signal.SIGTERM, end); pathlib.Path({str(ready)!r}).touch()\n"
    code += "time.sleep(60)"
    supervisor = Supervisor(program(code), Notes(), QUICK)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(supervisor.run())
        await eventually(ready.exists)
        await supervisor.stop()
        await supervisor.stop()
    assert done.exists()


async def test_who_ignores_it_is_killed_with_its_children(tmp_path: Path) -> None:
    child = tmp_path / "child"
    code = "import os, pathlib, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    code += f"pid = os.fork()\nif pid: pathlib.Path({str(child)!r}).write_text(str(pid))\n"
    code += "time.sleep(60)"
    supervisor = Supervisor(program(code), Notes(), QUICK)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(supervisor.run())
        await eventually(lambda: child.exists() and child.read_text() != "")
        pid = int(child.read_text())
        assert lives(pid)
        await supervisor.stop()
    await eventually(lambda: not lives(pid))


async def test_who_is_told_to_stop_while_starting_stops() -> None:
    supervisor = Supervisor(program("import time; time.sleep(60)"), Notes(), QUICK)
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        tasks.create_task(supervisor.run())
        await asyncio.sleep(0)
        await supervisor.stop()
    assert supervisor.pid is None or not lives(supervisor.pid)


async def test_what_a_dead_engine_leaves_behind_is_ended(tmp_path: Path) -> None:
    """vLLM's core outlives its API server, and holds the ports."""
    orphan = tmp_path / "orphan"
    code = "import os, pathlib, time\npid = os.fork()\n"
    code += f"if pid: pathlib.Path({str(orphan)!r}).write_text(str(pid)); os._exit(3)\n"
    code += "time.sleep(60)"
    notes = Notes()
    supervisor = Supervisor(program(code), notes, QUICK)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_until_given_up(supervisor))
        await eventually(lambda: "exit status 3" in notes.told)
        pid = int(orphan.read_text())
        await supervisor.stop()
    await eventually(lambda: not lives(pid))


async def test_a_cancelled_supervisor_leaves_nothing() -> None:
    supervisor = Supervisor(program("import time; time.sleep(60)"), Notes(), QUICK)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(supervisor.run())
        await eventually(lambda: supervisor.starts == 1)
        pid = supervisor.pid
        assert pid is not None
        running.cancel()
    await eventually(lambda: not lives(pid))


async def test_one_that_is_cancelled_amid_the_end_of_what_it_started_leaves_nothing() -> None:
    """It was told to stop before it knew the process, which does not heed SIGTERM."""

    def heed_nothing() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    options = replace(QUICK, stop_s_max=60.0)
    supervisor = Supervisor(["sleep", "60"], Notes(), options, prepare=heed_nothing)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(supervisor.run())
        await asyncio.sleep(0)
        await supervisor.stop()
        await eventually(lambda: supervisor.starts == 1)
        await asyncio.sleep(0)
        running.cancel()
    assert supervisor.pid is not None
    await eventually(lambda: not lives(supervisor.pid or 0))


@pytest.mark.parametrize(
    ("is_described", "silent_s", "lived_s", "is_well"),
    [
        (False, float("inf"), 899.0, True),
        (False, float("inf"), 901.0, False),
        (True, 59.0, 1e6, True),
        (True, 61.0, 1e6, False),
        (True, 1e6, 59.0, True),  # it was another process that said nothing
    ],
)
def test_an_engine_has_minutes_to_start_and_one_to_be_silent(
    is_described: bool, silent_s: float, lived_s: float, is_well: bool
) -> None:
    report = Mock(is_described=is_described, silent_s=silent_s, now_s=lambda: 2e6)
    watcher = _Supervised(report)
    assert watcher.is_well(2e6 - lived_s, SupervisorOptions()) is is_well


async def _until_given_up(supervisor: Supervisor) -> None:
    try:
        await supervisor.run()
    except GaveUp:
        return
