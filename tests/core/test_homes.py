"""A turn that goes on from a response is bound to the node that made it."""

from pointsman.core.cluster import Cluster
from pointsman.core.decision import Ineligible
from pointsman.core.errors import Reason
from pointsman.core.events import NodeProbed
from pointsman.core.homes import Homes
from pointsman.core.ids import NodeId
from pointsman.core.limits import PROBE_FAILURES_MAX
from pointsman.core.options import SchedulerOptions
from pointsman.core.request_events import Placed, Refused
from tests.support.driver import Driver, request


def answered(driver: Driver, response_id: str, continues: str = "") -> str:
    """Serve a request whose answer is the response; returns its node."""
    (effect,) = driver.arrive(f"makes {response_id}", continues=continues)
    assert isinstance(effect, Placed), effect
    driver.start(effect.request_id)
    driver.settle(effect.request_id, response_id=response_id)
    return effect.node


def test_the_next_turn_goes_where_the_response_was_made() -> None:
    driver = Driver(SchedulerOptions(policy="round_robin"))
    driver.ready("a", "b", "c")
    home = answered(driver, "resp_0")
    turns = [answered(driver, f"resp_{n}", continues=f"resp_{n - 1}") for n in range(1, 6)]
    assert turns == [home] * 5
    assert answered(driver, "resp_x") != home


def test_a_dry_run_says_why_the_others_may_not() -> None:
    driver = Driver(SchedulerOptions(policy="round_robin"))
    driver.ready("a", "b")
    home = answered(driver, "resp_0")
    decision = driver.scheduler.explain(request("r", continues="resp_0"), driver.now_s)
    assert decision.node == home
    (exclusion,) = decision.excluded
    assert exclusion.why is Ineligible.RESPONSE


def test_while_its_node_is_down_a_turn_is_refused_for_now() -> None:
    driver = Driver(SchedulerOptions(policy="round_robin"))
    driver.ready("a", "b")
    home = answered(driver, "resp_0")
    for _ in range(PROBE_FAILURES_MAX):
        driver.step(NodeProbed(driver.ids[home], healthy=False))
    (effect,) = driver.arrive("r", continues="resp_0")
    assert isinstance(effect, Refused)
    assert effect.reason is Reason.NO_NODE
    assert effect.retry_after_s is not None


def test_a_restarted_engine_has_forgotten_it_and_so_have_we() -> None:
    driver = Driver(SchedulerOptions(policy="round_robin"))
    driver.ready("a", "b")
    home = answered(driver, "resp_0")
    driver.ready(home)  # the same name again: another incarnation
    nodes = {answered(driver, f"resp_{n}", continues="resp_0") for n in range(1, 5)}
    assert nodes == {"a", "b"}


def test_an_unknown_response_binds_nobody() -> None:
    driver = Driver()
    driver.ready("a")
    assert answered(driver, "resp_1", continues="resp_from_elsewhere") == "a"


def test_the_oldest_is_forgotten_first() -> None:
    cluster = Cluster()
    homes = Homes(cluster, homes_max=2)
    for number in range(3):
        homes.answered(f"resp_{number}", NodeId(number), request("r"))
    assert list(homes._homes) == ["resp_1", "resp_2"]
