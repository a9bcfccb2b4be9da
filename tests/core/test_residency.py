"""What nodes are believed to hold, where two sources of knowledge meet."""

from array import array

from pointsman.core.cache_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    CacheChange,
)
from pointsman.core.errors import EndCause
from pointsman.core.events import (
    CacheChanged,
    IndexTrust,
    IndexTrusted,
    ModelCard,
)
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


def stored(tokens: range, name: int = 1, parent: int | None = None) -> BlockStored:
    """The engine tells of one block."""
    return BlockStored((name,), parent, tuple(tokens), len(tokens))


def changed(driver: Driver, *changes: CacheChange) -> None:
    driver.step(CacheChanged(driver.ids["a"], changes))


def hit_tokens(driver: Driver, tokens: range) -> int:
    asked = request("x", "", tokens=array("q", [*tokens, 7]))
    (row,) = driver.scheduler.explain(asked, driver.now_s).candidates
    return row.index_hit_tokens


def test_an_engines_own_events_are_what_is_believed_of_its_token_blocks() -> None:
    driver = Driver()
    driver.ready("a")
    driver.serve("r-1", "", tokens=array("q", range(64)))
    assert hit_tokens(driver, range(64)) == 64, "history, while there are no events"
    changed(driver, stored(range(16)))
    assert hit_tokens(driver, range(64)) == 16, "the engine knows better"
    changed(driver, stored(range(16, 32), name=2, parent=1), BlockRemoved((2,)))
    assert hit_tokens(driver, range(64)) == 16
    changed(driver, AllBlocksCleared())
    assert hit_tokens(driver, range(64)) == 0


def test_being_exact_from_the_start_voids_what_history_claimed() -> None:
    driver = Driver()
    driver.ready("a")
    driver.serve("r-1", "", tokens=array("q", range(64)))
    driver.step(IndexTrusted(driver.ids["a"], IndexTrust.EXACT))
    assert hit_tokens(driver, range(64)) == 0


def test_a_node_whose_events_end_lives_on_history_again() -> None:
    driver = Driver()
    driver.ready("a")
    changed(driver, stored(range(16)))
    driver.step(IndexTrusted(driver.ids["a"], IndexTrust.HISTORY))
    assert hit_tokens(driver, range(16)) == 0, "nothing tells of removals any more"
    driver.serve("r-1", "", tokens=array("q", range(32)))
    assert hit_tokens(driver, range(32)) == 32


def test_what_the_engine_has_reported_outlives_a_request_that_never_began() -> None:
    driver = Driver()
    driver.ready("a")
    driver.step(IndexTrusted(driver.ids["a"], IndexTrust.EXACT))
    driver.arrive("r-1", "", tokens=array("q", range(64)))
    assert hit_tokens(driver, range(64)) == 64, "an advance, so that siblings go together"
    changed(driver, stored(range(16)))
    driver.settle("r-1", EndCause.CLIENT_GONE)
    assert hit_tokens(driver, range(64)) == 16


def test_events_of_a_former_incarnation_are_ignored() -> None:
    driver = Driver()
    driver.ready("a")
    old = driver.ids["a"]
    driver.ready("a")
    driver.step(CacheChanged(old, (stored(range(16)),)))
    driver.step(IndexTrusted(old, IndexTrust.EXACT))
    assert hit_tokens(driver, range(16)) == 0
    assert driver.scheduler.stats.stale_events == 2


def test_trust_in_events_leaves_the_bound_of_texts_as_it_was_learned() -> None:
    """Events name tokens. A bound from the prior ratio would evict texts of a denser one."""
    driver = Driver()
    driver.ready("a", kv_blocks=64)
    (node,) = driver.nodes
    residency = driver.scheduler._residency
    residency.describe(node, 8.0)
    residency.credit(node, request("r", "x" * 8_192).prompt)
    held = residency.blocks(node)
    driver.step(IndexTrusted(driver.ids["a"], IndexTrust.DEGRADED))
    assert residency.blocks(node) == held == 16


def test_every_name_of_a_model_finds_what_events_tell_of_it() -> None:
    """vLLM may serve one model under several names; its events know of none of them."""
    driver = Driver()
    cards = (ModelCard("a", root="/llama"), ModelCard("b", root="/llama"), ModelCard("c"))  # type: ignore[arg-type]  # plain names
    driver.ready("a", models=cards)
    changed(driver, stored(range(16)))
    tokens = array("q", [*range(16), 7])
    hits = {}
    for name in ("a", "b", "c"):
        asked = request("x", "", tokens=tokens, model=name)
        [row] = driver.scheduler.explain(asked, driver.now_s).candidates
        hits[name] = row.index_hit_tokens
    assert hits == {"a": 16, "b": 16, "c": 0}
