"""What nodes are believed to hold, where two sources of knowledge meet."""

from array import array

from pointsman.core.events import IndexTrust, IndexTrusted
from tests.support.driver import Driver, request

TEXT = "where do trains go? " * 100


def test_texts_keep_their_credit_on_a_node_whose_events_are_exact() -> None:
    """Events name tokens: of a prompt known only as text they say nothing, so our own history is
    all there is. Without it a chat would never find its cache again."""
    driver = Driver()
    driver.ready("a", "b")
    for name in ("a", "b"):
        driver.step(IndexTrusted(driver.ids[name], IndexTrust.EXACT))
    first = driver.serve("r-1", TEXT)
    assert {driver.serve(f"r-{n}", TEXT) for n in range(2, 6)} == {first}


def test_token_credits_end_with_the_request_where_events_are_exact() -> None:
    """The engine has said what it keeps: here nothing."""
    driver = Driver()
    driver.ready("a")
    driver.step(IndexTrusted(driver.ids["a"], IndexTrust.EXACT))
    driver.serve("r-1", "", tokens=array("q", range(256)))
    (node,) = driver.scheduler.nodes(driver.now_s)
    assert node.index_blocks == 0


def test_nodes_that_cut_prompts_differently_are_asked_in_their_own_blocks() -> None:
    driver = Driver()
    driver.ready("a", block_tokens=16)
    tokens = array("q", range(80))
    driver.serve("r-1", "", tokens=tokens)
    driver.ready("b", block_tokens=64)
    decision = driver.scheduler.explain(request("r-2", "", tokens=tokens), driver.now_s)
    assert {row.node: row.index_hit_tokens for row in decision.candidates} == {"a": 80, "b": 0}
