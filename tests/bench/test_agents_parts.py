"""The bench on agents measures what it says, on few of them and briefly."""

from bench.agents import measure


async def test_a_few_agents_are_heard() -> None:
    result = await measure(agents=3, changes=2, watched_s=1.0)
    assert 3 <= result.beats <= 9
    assert 60 < result.bytes_each < 200, "a beat, two blocks in and two out"
    assert "within" in result.line(3, 2) or "OVER" in result.line(3, 2)
