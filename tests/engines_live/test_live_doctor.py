"""The doctor before real engines: silent where all is well."""

import re
from collections.abc import Sequence
from pathlib import Path

from pointsman.control.doctor import Check, Diagnosis, Finding, Scope, Severity, Target, examine
from pointsman.engines.tokenizer import Pieces, load
from tests.engines_live.conftest import Subject
from tests.support.live_engines import LiveEngine, VllmServers


def telling(found: Diagnosis) -> list[Finding]:
    """Without notes, and without how long this machine took to answer."""
    kept = (each for each in found.findings if each.severity is not Severity.NOTE)
    return [each for each in kept if not re.search(r"takes \d+ ms", each.seen)]


def targets(*engines: LiveEngine) -> tuple[Target, ...]:
    return tuple(Target(name=f"engine-{n}", url=e.url) for n, e in enumerate(engines, 1))


async def test_nothing_is_found_on_any_kind_of_engine(subject: Subject) -> None:
    found = await examine(Scope(targets=targets(subject.engine), wanted=("tiny",)))
    assert telling(found) == []
    [summary] = found.engines
    assert summary.kind == ("llamacpp" if subject.kind == "llamacpp" else "vllm")
    assert summary.cached_share == 1.0


async def test_two_vllm_servers_agree_with_our_token_ids(
    vllms: Sequence[LiveEngine], model: Path
) -> None:
    tokenizers = {"tiny": load(model, Pieces(0))}
    found = await examine(Scope(targets=targets(*vllms), tokenizers=tokenizers))
    assert telling(found) == []


async def test_a_vllm_that_caches_no_prefix_is_found(launcher: VllmServers) -> None:
    engine = launcher.start("--no-enable-prefix-caching")
    try:
        engine.until_healthy()
        found = await examine(Scope(targets=targets(engine)))
    finally:
        engine.kill()
    assert [each.check for each in telling(found)] == [Check.KV_CACHE]
