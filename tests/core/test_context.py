"""A prompt goes to engines whose context holds it, if there are any."""

from pointsman.core.decision import Ineligible
from pointsman.core.errors import Reason
from pointsman.core.events import ModelCard, NodeProbed
from pointsman.core.limits import CERTAIN_SHARE, PROBE_FAILURES_MAX
from pointsman.core.options import SchedulerOptions
from pointsman.core.request_events import Placed, Refused
from tests.support.driver import MODEL, Driver, request


def driver_of(**contexts: int | None) -> Driver:
    """A cluster of engines with these contexts."""
    driver = Driver(SchedulerOptions(policy="round_robin"))
    for name, tokens in contexts.items():
        driver.ready(name, models=(ModelCard(name=MODEL, context_tokens_max=tokens),))
    return driver


def nodes_of(driver: Driver, tokens: int, count: int = 6) -> set[str]:
    prompt = list(range(tokens))
    return {driver.serve(f"{tokens}-{n}", tokens=prompt) for n in range(count)}


def test_a_long_prompt_goes_where_it_fits() -> None:
    driver = driver_of(short=1_000, long=8_000)
    assert nodes_of(driver, 1_001) == {"long"}
    assert nodes_of(driver, 1_000) == {"short", "long"}


def test_an_unknown_context_is_no_bound() -> None:
    assert nodes_of(driver_of(short=1_000, unknown=None), 5_000) == {"unknown"}


def test_what_fits_nowhere_is_for_the_engine_to_refuse() -> None:
    assert nodes_of(driver_of(a=1_000, b=2_000), 9_000) == {"a", "b"}


def test_an_estimate_excludes_only_what_is_certain() -> None:
    driver = driver_of(short=1_000, long=8_000)
    text = "x" * 4_400
    estimated = driver.scheduler.explain(request("r", text), driver.now_s).prompt_tokens
    assert estimated > 1_000 > estimated * CERTAIN_SHARE, estimated
    assert {driver.serve(f"r{n}", text) for n in range(4)} == {"short", "long"}


def test_while_the_long_one_is_down_a_long_prompt_is_refused_for_now() -> None:
    driver = driver_of(short=1_000, long=8_000)
    for _ in range(PROBE_FAILURES_MAX):
        driver.step(NodeProbed(driver.ids["long"], healthy=False))
    (effect,) = driver.arrive("r", tokens=list(range(5_000)))
    assert isinstance(effect, Refused)
    assert effect.reason is Reason.NO_NODE


def test_a_dry_run_says_whose_context_is_too_short() -> None:
    driver = driver_of(short=1_000, long=8_000)
    wish = request("r", tokens=list(range(5_000)))
    decision = driver.scheduler.explain(wish, driver.now_s)
    assert decision.node == "long"
    (exclusion,) = decision.excluded
    assert exclusion.why is Ineligible.CONTEXT


def test_an_engine_that_says_more_is_asked_again() -> None:
    driver = driver_of(short=1_000, long=8_000)
    driver.describe("short", models=(ModelCard(name=MODEL, context_tokens_max=8_000),))
    assert nodes_of(driver, 5_000) == {"short", "long"}
    assert all(isinstance(e, Placed) for e in driver.arrive("last", tokens=[1]))
