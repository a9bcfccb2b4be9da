"""The driver's clock: no drift, pace, bounds. On a loop whose time is set by hand."""

import asyncio
from collections.abc import Iterator

import pytest

from pointsman.engines.compute_model import EngineSequence, Job, Profile
from pointsman.engines.simulated.driver import LAG_S_MAX, STEPS_PER_WAKE_MAX, EngineDriver
from pointsman.engines.simulated.metrics import EngineStats

PROFILE = Profile(
    name="second",
    base_s=1.0,
    prefill_s_per_token=0.0,
    attention_s_per_token2=0.0,
    sequence_s=0.0,
    kv_token_s=0.0,
    kv_blocks=100_000,
)


class ManualLoop(asyncio.SelectorEventLoop):
    """Time stands still unless a test moves it."""

    now_s = 1000.0

    def time(self) -> float:
        return self.now_s

    def run_ready(self) -> None:
        """Run everything that is due now, timers included."""
        self.call_soon(self.stop)
        self.run_forever()

    def jump(self, seconds: float) -> None:
        self.now_s += seconds
        self.run_ready()
        self.run_ready()


class Recorder:
    wants_tokens = True

    def __init__(self, loop: ManualLoop) -> None:
        self._loop = loop
        self.tokens_at_s: list[float] = []
        self.ended = ""

    def token(self, sequence: EngineSequence) -> None:
        new = sequence.generated - len(self.tokens_at_s)
        assert new > 0
        self.tokens_at_s += [self._loop.time() - 1000.0] * new

    def finished(self, sequence: EngineSequence) -> None:
        self.ended = "finished"

    def cut(self) -> None:
        self.ended = "cut"

    def fail(self) -> None:
        self.ended = "failed"


@pytest.fixture
def loop() -> Iterator[ManualLoop]:
    loop = ManualLoop()
    yield loop
    loop.close()


def driver(loop: ManualLoop, speed: float = 1.0) -> EngineDriver:
    async def make() -> EngineDriver:
        return EngineDriver(PROFILE, speed=speed, stats=EngineStats(100), publish=None)

    return loop.run_until_complete(make())


def test_late_timers_do_not_add_up(loop: ManualLoop) -> None:
    engine, recorder = driver(loop), Recorder(loop)
    engine.submit(Job("a", 1, 6), recorder)
    loop.run_ready()
    for _ in range(5):
        loop.jump(1.125)  # each wake-up comes late, and the 5 steps end on time nevertheless
    assert recorder.tokens_at_s == [1.125, 2.25, 3.375, 4.5, 5.625]
    loop.jump(0.375)
    assert recorder.tokens_at_s[-1] == 6.0
    assert recorder.ended == "finished"


def test_a_wake_up_completes_every_step_that_is_due(loop: ManualLoop) -> None:
    engine, recorder = driver(loop, speed=100), Recorder(loop)
    engine.submit(Job("a", 1, 10), recorder)
    loop.run_ready()
    loop.jump(0.0525)
    assert recorder.tokens_at_s == pytest.approx([0.0525] * 5)


def test_a_wake_up_is_bounded(loop: ManualLoop) -> None:
    engine, recorder = driver(loop, speed=1000), Recorder(loop)
    engine.submit(Job("a", 1, 1000), recorder)
    loop.run_ready()
    loop.now_s += 0.5
    loop.run_ready()
    assert len(recorder.tokens_at_s) == STEPS_PER_WAKE_MAX


def test_an_engine_too_far_behind_gives_the_time_up(loop: ManualLoop) -> None:
    engine, recorder = driver(loop), Recorder(loop)
    engine.submit(Job("a", 1, 100), recorder)
    loop.run_ready()
    loop.jump(1.0 + LAG_S_MAX + 50.0)
    assert len(recorder.tokens_at_s) == 1
    loop.jump(1.0)
    assert len(recorder.tokens_at_s) == 2


def test_pace_counts_from_the_next_step_and_a_hang_stops_all(loop: ManualLoop) -> None:
    engine, recorder = driver(loop), Recorder(loop)
    engine.submit(Job("a", 1, 100), recorder)
    loop.run_ready()
    engine.set_pace(slow=2.0, hang=False)
    loop.jump(1.0)
    loop.jump(2.0)
    assert recorder.tokens_at_s == [1.0, 3.0]
    engine.set_pace(slow=1.0, hang=True)
    engine.submit(Job("b", 1, 1), Recorder(loop))
    loop.jump(1000.0)
    assert len(recorder.tokens_at_s) == 2
    engine.set_pace(slow=1.0, hang=False)
    loop.jump(0.0)
    assert len(recorder.tokens_at_s) == 3


def test_restart_cuts_and_close_fails(loop: ManualLoop) -> None:
    engine = driver(loop)
    first, second = Recorder(loop), Recorder(loop)
    engine.submit(Job("a", 1, 100), first)
    loop.run_ready()
    loop.jump(1.0)
    assert len(first.tokens_at_s) == 1
    engine.restart()
    assert (first.ended, engine.requests, engine.model.pool.used) == ("cut", 0, 0)
    engine.submit(Job("b", 1, 100), second)
    loop.run_ready()
    loop.jump(1.0)
    engine.close()
    assert (second.ended, engine.requests) == ("failed", 0)
    loop.jump(10.0)
    assert len(second.tokens_at_s) == 1


def test_abort_inside_a_step_frees_at_once_and_is_idempotent(loop: ManualLoop) -> None:
    engine, recorder = driver(loop), Recorder(loop)
    engine.submit(Job("a", 40, 100), recorder)
    loop.run_ready()
    assert engine.model.pool.used == 3
    assert engine.abort("a")
    assert not engine.abort("a")
    assert engine.model.pool.used == 0
    loop.jump(5.0)
    assert recorder.tokens_at_s == []
    assert engine.requests == 0
