"""Studies for tests: two policies and an oracle, written by hand."""

from pointsman.report.replay.numbers import RunNumbers, numbers
from pointsman.report.replay.study import ORACLE, ScenarioReport, SeedResult, Study, Sweep
from pointsman.traffic.outcome import Outcome, RequestRecord
from pointsman.traffic.replayed import NodeSeries, ReplayedRun, Series
from pointsman.traffic.request import TrafficRequest, summarize
from pointsman.traffic.slo import Slo

SERIES = Series(
    times_s=(0.0, 1.0, 2.0),
    held=(0, 0, 0),
    nodes=(
        NodeSeries(
            node="node-0", running=(0, 2, 1), waiting=(0, 1, 0), kv_usage=(0, 0, 0),
            remaining_s=(0.0, 6.0, 2.0),
        ),
        NodeSeries(
            node="node-1", running=(0, 1, 1), waiting=(0, 0, 0), kv_usage=(0, 0, 0),
            remaining_s=(0.0, 2.0, 2.0),
        ),
    ),
)  # fmt: skip


def record(index: int, ttft_s: float, *, e2e_s: float = 4.0, tpot_s: float = 0.02) -> RequestRecord:
    return RequestRecord(
        index=index, due_s=float(index), sent_s=float(index), outcome=Outcome.OK, e2e_s=e2e_s,
        ttft_s=ttft_s, tpot_s=tpot_s, input_tokens=1000, prompt_tokens=1000, cached_tokens=250,
    )  # fmt: skip


def failure(index: int) -> RequestRecord:
    return RequestRecord(
        index=index, due_s=0.0, sent_s=0.0, outcome=Outcome.HTTP_ERROR, e2e_s=0.1,
        input_tokens=1000, cause="queue <full>",
    )  # fmt: skip


def replayed(policy: str, seed: int, ttfts_s: list[float], *, failures: int = 0) -> ReplayedRun:
    good = [record(index, ttft_s) for index, ttft_s in enumerate(ttfts_s)]
    bad = [failure(len(good) + index) for index in range(failures)]
    return ReplayedRun(
        scenario="s", policy=policy, seed=seed, duration_s=10.0, records=(*good, *bad),
        series=SERIES, attempts=len(good), wall_s=0.5, decision_s=(1e-5, 3e-5),
    )  # fmt: skip


def run_numbers(policy: str, seed: int, ttfts_s: list[float], *, failures: int = 0) -> RunNumbers:
    return numbers(replayed(policy, seed, ttfts_s, failures=failures), Slo())


def scenario(name: str = "s", *, sweeps: tuple[Sweep, ...] = ()) -> ScenarioReport:
    """`ours` is twice as fast as `theirs` under both seeds, and twice as slow as the oracle."""
    requests = [
        TrafficRequest(at_s=float(at_s), input_tokens=1000, output_tokens=9) for at_s in (0, 5)
    ]
    seeds = [
        SeedResult(
            seed=seed,
            traffic=summarize(requests),
            ideal_hit_ratio=0.5,
            runs=(
                run_numbers("ours", seed, [level, 3 * level]),
                run_numbers("theirs", seed, [2 * level, 6 * level], failures=1),
            ),
            oracle=run_numbers(ORACLE, seed, [level / 2, 3 * level / 2]),
        )
        for seed, level in ((0, 0.1), (1, 0.2))
    ]
    return ScenarioReport(
        name=name, trace="t.jsonl", nodes=2, speed=1.5, fleet="2 x p", slo=Slo(), baseline="ours",
        seeds=tuple(seeds), notes=("a <note>",), sweeps=sweeps,
    )  # fmt: skip


def study(*names: str) -> Study:
    return Study(scenarios=tuple(scenario(name) for name in names or ("s",)))
