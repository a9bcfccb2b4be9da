"""What a request's end teaches: speeds, output lengths, bytes a token, whether hits come true."""

import pytest

from pointsman.core.errors import EndCause
from pointsman.core.limits import LEARN_INTERVAL_S
from pointsman.core.node import Node
from tests.support.driver import Driver, request, teach

TEXT = "a prompt of some length, again and again. " * 100


def driver_with_node(*, learned: bool = True) -> Driver:
    driver = Driver()
    driver.ready("a")
    if learned:
        (node,) = driver.nodes
        teach(node.calibration)
    return driver


def stall(node: Node, seconds: float) -> None:
    """It does prefills of others that take so long at the speeds it is believed to have."""
    node.prefilled_tokens += round(seconds / node.speeds.prefill_s_per_token)


def serve(driver: Driver, request_id: str, *, stream: bool = True, **outcome: object) -> None:
    driver.arrive(request_id, TEXT, stream=stream, max_output_tokens=100)
    if stream:
        driver.start(request_id)
    driver.settle(request_id, EndCause.FINISHED, streamed=stream, **outcome)
    driver.advance(2 * LEARN_INTERVAL_S)


def serve_interrupted(
    driver: Driver, request_id: str, *, output_tokens: int, **outcome: object
) -> None:
    """A stream that stands still for two seconds of others' prefills."""
    (node,) = driver.nodes
    driver.arrive(request_id, TEXT, max_output_tokens=output_tokens)
    driver.start(request_id)
    stall(node, 2.0)
    outcome |= {"streamed": True, "output_tokens": output_tokens}
    driver.settle(request_id, EndCause.FINISHED, **outcome)
    driver.advance(1.0)


def predicted_s(driver: Driver) -> float:
    asked = request("x", TEXT, max_output_tokens=100)
    (row,) = driver.scheduler.explain(asked, driver.now_s).candidates
    return row.prefill_s + row.decode_s


def test_a_streamed_answer_tells_prefill_and_decode_apart() -> None:
    driver = driver_with_node(learned=False)
    for n in range(30):
        serve(
            driver, f"r{n}", ttft_s=0.5, decode_s=0.99, output_tokens=100,
            prompt_tokens=1_000, cached_tokens=0,
        )  # fmt: skip
    (view,) = driver.scheduler.nodes(driver.now_s)
    assert view.calibrated
    speeds = view.speeds
    prefill_s = speeds.dispatch_s + 1_000 * speeds.prefill_s_per_token
    assert prefill_s + 500_000 * speeds.attention_s_per_token2 == pytest.approx(0.5, rel=0.1)
    assert speeds.step_s + speeds.sequence_s == pytest.approx(0.01, rel=0.15)


@pytest.mark.parametrize("together", [1, 40, 99, 100])
def test_tokens_that_come_together_were_not_decoded_in_no_time(together: int) -> None:
    """A loop that is busy, or a proxy that buffers, hands on many at once."""
    driver = driver_with_node(learned=False)
    for n in range(60):
        first = together if n % 2 else 1
        serve(
            driver, f"r{n}", ttft_s=0.5 + 0.01 * (first - 1), decode_s=0.01 * (100 - first) + 1e-5,
            output_tokens=100, streamed_tokens=100, first_tokens=first,
            prompt_tokens=1_000, cached_tokens=0,
        )  # fmt: skip
    (view,) = driver.scheduler.nodes(driver.now_s)
    assert view.speeds.step_s + view.speeds.sequence_s == pytest.approx(0.01, rel=0.3)


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_whole_answer_scales_both_by_what_the_sum_was_off(factor: float) -> None:
    driver = driver_with_node()
    before_s = predicted_s(driver)
    for n in range(40):
        serve(driver, f"r{n}", stream=False, ttft_s=factor * before_s, output_tokens=100)
    assert predicted_s(driver) == pytest.approx(factor * before_s, rel=0.25)


def test_the_prefills_of_others_are_not_taken_for_decoding() -> None:
    driver = driver_with_node()
    (node,) = driver.nodes
    before = node.speeds.step_s
    for n in range(30):
        serve_interrupted(driver, f"r{n}", output_tokens=100, ttft_s=0.1, decode_s=3.1)
    assert node.speeds.step_s < 2 * before, "1.1 s for 99 tokens, not 3.1 s"


def test_a_short_answer_that_a_long_prefill_interrupts_says_nothing_of_decoding() -> None:
    driver = driver_with_node()
    (node,) = driver.nodes
    before = node.speeds
    for n in range(30):
        serve_interrupted(driver, f"r{n}", output_tokens=10, decode_s=2.1)
    assert node.speeds.step_s == before.step_s


def test_a_prefill_that_goes_on_when_an_answer_ends_is_not_taken_for_decoding() -> None:
    driver = driver_with_node()
    (node,) = driver.nodes
    before = node.speeds.step_s
    for n in range(30):
        driver.arrive(f"r{n}", TEXT, max_output_tokens=10)
        driver.start(f"r{n}")
        driver.arrive(f"long{n}", f"another {n} " * 10_000)
        driver.advance(1.0)
        driver.settle(f"r{n}", streamed=True, decode_s=1.0, output_tokens=10)
        driver.settle(f"long{n}")
        driver.advance(1.0)
    assert node.speeds.step_s < 2 * before, "111 ms a token"


def test_how_long_an_answer_stood_still_is_told_by_the_speeds_as_learned_since() -> None:
    driver = driver_with_node(learned=False)
    (node,) = driver.nodes
    for n in range(20):
        driver.arrive(f"r{n}", TEXT, max_output_tokens=100)
        driver.start(f"r{n}")
    stall(node, 0.5)
    kv_tokens = node.kv_tokens / 2
    teach(node.calibration, times=4.0)
    for n in range(20):
        driver.settle(f"r{n}", streamed=True, decode_s=5.0, output_tokens=101)
        driver.advance(2 * LEARN_INTERVAL_S)
    assert node.calibration.in_force.step_s(10, kv_tokens) == pytest.approx(0.03, rel=0.2), "3 s"


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        (EndCause.CLIENT_GONE, {"ttft_s": 9.0, "decode_s": 9.0, "output_tokens": 5}),
        (EndCause.ENGINE_ERROR, {"ttft_s": 9.0}),
        (EndCause.FINISHED, {}),
    ],
)
def test_what_did_not_finish_or_says_nothing_teaches_nothing(
    end: EndCause, outcome: dict[str, object]
) -> None:
    driver = driver_with_node()
    before_s = predicted_s(driver)
    for n in range(20):
        driver.arrive(f"r{n}", TEXT, max_output_tokens=100)
        driver.start(f"r{n}")
        driver.settle(f"r{n}", end, streamed=n % 2 == 0, **outcome)
        driver.advance(1.0)
    driver.advance(1.0)
    hits = {row.hit_tokens for row in driver.scheduler.explain(request("x", TEXT), 0.0).candidates}
    assert hits != {0}, "the prompt was prefilled"
    assert predicted_s(driver) <= before_s


def test_a_busy_node_is_learned_from_by_samples() -> None:
    driver = driver_with_node()
    (node,) = driver.nodes
    assert node.takes_sample(10.0)
    assert not node.takes_sample(10.0 + LEARN_INTERVAL_S / 2)
    assert node.takes_sample(10.0 + LEARN_INTERVAL_S)


def test_bytes_a_token_and_output_lengths_are_learned() -> None:
    driver = driver_with_node()
    for n in range(60):
        driver.arrive(f"r{n}", TEXT, tenant="t")
        driver.start(f"r{n}")
        driver.settle(f"r{n}", streamed=True, prompt_tokens=len(TEXT) // 2, streamed_tokens=7)
        driver.advance(1.0)
    decision = driver.scheduler.explain(request("x", TEXT, tenant="t"), driver.now_s)
    assert decision.prompt_tokens == pytest.approx(len(TEXT) // 2, rel=0.1)
    assert decision.output_tokens_expected <= 40


def test_a_second_start_is_harmless() -> None:
    driver = driver_with_node()
    driver.arrive("r1", TEXT)
    driver.start("r1")
    before = driver.scheduler.nodes(driver.now_s)
    driver.start("r1")
    assert driver.scheduler.nodes(driver.now_s) == before
    driver.start("never")
    assert driver.scheduler.stats.stale_events == 1
