"""An engine that restarted is another engine."""

import msgspec
import pytest

from pointsman.collectors.identity import other_engine, restart_evidence
from pointsman.core.events import ModelCard, NodeFacts
from pointsman.core.ids import ModelName
from pointsman.wire.engine_metrics import EngineKind, EngineSignals

PAGE = EngineSignals(
    kind=EngineKind.VLLM,
    prompt_tokens_total=100,
    generation_tokens_total=50,
    block_size=16,
    kv_blocks_total=1_000,
    process_start_time_s=1_000.0,
)


def after(**changes: object) -> EngineSignals:
    return msgspec.structs.replace(PAGE, **changes)


@pytest.mark.parametrize(
    ("page", "evidence"),
    [
        (after(), ""),
        (after(prompt_tokens_total=150), ""),
        (after(prompt_tokens_total=None), ""),
        (after(process_start_time_s=1_000.4), ""),
        (after(process_start_time_s=None), ""),
        (after(process_start_time_s=1_060.0), "its process started 60 s later"),
        (after(generation_tokens_total=3), "generation_tokens_total fell from 50 to 3"),
        (after(kind=EngineKind.SGLANG), "it was vllm, it is sglang"),
        (after(block_size=None, kv_blocks_total=None), ""),
        (after(block_size=32), "it had 16 tokens in a block, it has 32"),
        (after(kv_blocks_total=999), "it had 1000 KV blocks, it has 999"),
        (EngineSignals(kind=EngineKind.UNKNOWN, process_start_time_s=9_999.0), ""),
    ],
)
def test_what_proves_a_restart(page: EngineSignals, evidence: str) -> None:
    found = restart_evidence(PAGE, page)
    assert evidence in found
    assert bool(evidence) == bool(found)


FACTS = NodeFacts(models=(ModelCard(ModelName("m"), 1_024),), running_max=4)
ADAPTER = ModelCard(ModelName("a"), parent=ModelName("m"))


def facts(context_tokens_max: int | None = 1_024, **changes: object) -> NodeFacts:
    models = (ModelCard(ModelName("m"), context_tokens_max),)
    return msgspec.structs.replace(FACTS, **{"models": models, **changes})


@pytest.mark.parametrize(
    ("told", "evidence"),
    [
        (facts(), ""),
        (facts(models=(*FACTS.models, ADAPTER)), ""),
        (facts(context_tokens_max=None, running_max=None), ""),
        (facts(models=(ADAPTER,)), "it serves other models"),
        (facts(context_tokens_max=2_048), "the context of m was 1024 tokens, it is 2048"),
        (facts(running_max=2), "it ran 4 requests at once, it runs 2"),
    ],
)
def test_which_facts_are_another_engines(told: NodeFacts, evidence: str) -> None:
    assert other_engine(FACTS, told) == evidence
