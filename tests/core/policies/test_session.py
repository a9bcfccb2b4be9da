"""Where a session's home is, and when that is another."""

from pointsman.core.events import NodeLeft, NodeProbed
from pointsman.core.limits import PROBE_FAILURES_MAX, PROBE_SUCCESSES_MIN
from pointsman.core.options import SchedulerOptions
from pointsman.core.request_events import Placed
from tests.support.driver import Driver


def at_home(*names: str) -> tuple[Driver, str]:
    """Engines, and the one of them that has served the session before."""
    driver = Driver(SchedulerOptions(policy="session"))
    driver.ready(*names)
    return driver, driver.serve("first", session="s")


def test_a_session_stays_and_returns_after_a_flap() -> None:
    driver, home = at_home("a", "b", "c")
    assert {driver.serve(f"r{i}", session="s") for i in range(5)} == {home}
    for _ in range(PROBE_FAILURES_MAX):
        driver.step(NodeProbed(driver.ids[home], healthy=False))
    assert driver.serve("away", session="s") != home
    for _ in range(PROBE_SUCCESSES_MIN):
        driver.advance(60.0)
        driver.step(NodeProbed(driver.ids[home], healthy=True))
    assert driver.serve("back", session="s") == home


def test_the_sessions_of_a_node_that_leaves_find_another_home() -> None:
    driver, home = at_home("a", "b", "c")
    driver.step(NodeLeft(driver.ids[home]))
    (placed,) = driver.arrive("next", session="s")
    assert isinstance(placed, Placed)
    others = {driver.serve(f"r{i}", session="s") for i in range(5)}
    assert others == {placed.node}
