"""An engine that restarted is another engine."""

import msgspec
import pytest

from pointsman.collectors.identity import restart_evidence
from pointsman.wire.engine_metrics import EngineKind, EngineSignals

PAGE = EngineSignals(
    kind=EngineKind.VLLM,
    prompt_tokens_total=100,
    generation_tokens_total=50,
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
        (EngineSignals(kind=EngineKind.UNKNOWN, process_start_time_s=9_999.0), ""),
    ],
)
def test_what_proves_a_restart(page: EngineSignals, evidence: str) -> None:
    found = restart_evidence(PAGE, page)
    assert evidence in found
    assert bool(evidence) == bool(found)
