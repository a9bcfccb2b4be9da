"""One connection, watched: what is measured, and what is no HTTP."""

import time
from email.utils import formatdate

import pytest

from pointsman.control.doctor.connection import _clock_ahead_s, watch
from pointsman.engines.adapters import EngineTrouble
from tests.support import upstreams
from tests.support.upstreams import Served


@pytest.mark.parametrize(
    ("date_s", "ahead_s"), [(1000, 0.0), (999, -0.3), (1010, 9.5), (990, -9.3), (1001, 0.5)]
)
def test_a_date_is_cut_to_seconds_and_as_old_as_the_answer(date_s: int, ahead_s: float) -> None:
    """The answer took 0.2 s and was there at 1000.5."""
    assert _clock_ahead_s(formatdate(date_s, usegmt=True), 1000.5, 0.2) == pytest.approx(ahead_s)


def test_without_a_date_the_clock_is_not_known() -> None:
    assert _clock_ahead_s("", 1000.5, 0.2) is None
    assert _clock_ahead_s("yesterday", 1000.5, 0.2) is None


@pytest.mark.parametrize("is_chunked", [True, False])
async def test_an_answer_is_read_to_its_end(is_chunked: bool) -> None:
    async def answer(served: Served) -> None:
        date = f"Date: {formatdate(time.time(), usegmt=True)}"
        if is_chunked:
            await served.begin_stream(date)
            await served.chunk(b"fine")
            await served.end_stream()
        else:
            await served.reply(200, b"fine", date)

    async with upstreams.engine(answer) as engine:
        seen = await watch(engine.url, pool_idle_s=0.1)
    assert (seen.health_status, seen.reusable, seen.closed_after_s) == (200, True, None)
    assert seen.clock_ahead_s == 0.0


async def test_what_is_no_http_is_trouble() -> None:
    async def other(served: Served) -> None:
        await served.send(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")

    async def endless(served: Served) -> None:
        await served.send(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n")

    async def gone(served: Served) -> None:
        served.writer.close()

    for behaviour in (other, endless, gone):
        async with upstreams.engine(behaviour) as engine:
            with pytest.raises(EngineTrouble, match="GET /health"):
                await watch(engine.url, pool_idle_s=0.1)
    with pytest.raises(EngineTrouble, match="GET /health"):
        await watch(upstreams.closed_url(), pool_idle_s=0.1)
