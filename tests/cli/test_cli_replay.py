"""`pointsman replay` as a user types it: the JSON of the contract, equal bytes, remedies."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pointsman.cli import replay_jobs
from pointsman.cli.replay import replay
from pointsman.cli.replay_jobs import RunJob, SimulationFailed, run_jobs
from pointsman.core.options import SchedulerOptions
from pointsman.core.policies import catalog
from pointsman.report import plots
from pointsman.sim import Scenario
from pointsman.traffic.request import TrafficRequest
from pointsman.traffic.trace import read_trace

ROW = {"input_tokens": 2000, "output_tokens": 20, "block_tokens": 512}
LINES = [ROW | {"t_ms": 200 * n, "hash_ids": [n % 4, 100 + n]} for n in range(40)]
TWO = "marginal_cost,round_robin"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, LINES)).encode()))
    return path


def test_the_help_shows_a_trace_that_can_be_read() -> None:
    assert replay.epilog is not None
    (line,) = [line for line in replay.epilog.splitlines() if '"t_ms"' in line]
    assert len(read_trace([line], name="help").requests) == 1


def run(*arguments: object) -> Result:
    return CliRunner().invoke(replay, ["--jobs", "1", *map(str, arguments)])


def document(*arguments: object) -> Any:
    result = run(*arguments, "--json", "-")
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    return json.loads(result.stdout)


def test_the_contract(trace: Path) -> None:
    found = document(trace, "--policy", TWO, "--nodes", 2, "--speed", 2, "--seed", 7)
    [entry] = found["scenarios"]
    assert entry["trace"] == str(trace)
    assert (entry["nodes"], entry["speed"], entry["seed"]) == (2, 2.0, 7)
    assert list(entry["policies"]) == TWO.split(",")
    for policy in entry["policies"].values():
        for key in ("ttft_s", "tpot_s", "e2e_s"):
            assert set(policy[key]) == {"mean", "p50", "p95", "p99"}
            assert 0 < policy[key]["mean"] <= policy[key]["p99"]
        assert (policy["requests"], policy["errors"]) == (40, 0)
        assert 0 < policy["hit_ratio"] <= entry["ideal_hit_ratio"]
        assert policy["goodput"] > 0
    assert entry["oracle"]["e2e_s"]["mean"] < entry["policies"]["round_robin"]["e2e_s"]["mean"]


def test_a_system_that_tells_only_how_many_cpus_there_are(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """macOS."""
    monkeypatch.delattr(os, "sched_getaffinity")
    result = CliRunner().invoke(replay, [str(trace), "--policy", "random", "--no-oracle"])
    assert result.exit_code == 0, result.stderr


def test_equal_bytes_whatever_the_processes(trace: Path) -> None:
    arguments = [str(trace), "--policy", "random,marginal_cost", "--nodes", "2", "--seeds", "2"]
    outputs = [
        CliRunner().invoke(replay, [*arguments, "--json", "-", "--jobs", jobs]).stdout_bytes
        for jobs in ("1", "2")
    ]
    assert len(outputs[0]) > 1000
    assert outputs[0] == outputs[1]
    seeds = [entry["seed"] for entry in json.loads(outputs[0])["scenarios"]]
    assert seeds == [0, 1]


def test_seeds_give_intervals_and_move_a_trace(trace: Path) -> None:
    found = document(trace, "--policy", TWO, "--nodes", 2, "--seeds", 3)
    [across] = found["across_seeds"]
    assert across["seeds"] == [0, 1, 2]
    assert across["policies"]["round_robin"]["e2e_s.mean"]["ci95"] > 0
    assert any("seeds above 0 move arrivals" in note for note in found["scenarios"][0]["notes"])


def test_the_table_goes_to_stdout(trace: Path, tmp_path: Path) -> None:
    file, page = tmp_path / "r.json", tmp_path / "r.html"
    result = run(trace, "--policy", TWO, "--nodes", 2, "--json", file, "--html", page)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "marginal_cost" in result.stdout
    assert "oracle" in result.stdout
    assert page.read_text().startswith("<!doctype html>")
    assert "wall_s" not in file.read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.html", "r.json", "t.jsonl.gz"]


def test_a_workload_needs_no_trace_and_the_oracle_can_be_left_out() -> None:
    found = document(
        "--workload", "shared-prefix", "--parameter", "tenants=2", "--limit", 20, "--rate", 10,
        "--nodes", 2, "--policy", "lmetric", "--no-oracle", "--timing",
    )  # fmt: skip
    [entry] = found["scenarios"]
    assert (entry["trace"], entry["oracle"]) == ("shared-prefix", None)
    assert entry["policies"]["lmetric"]["wall_s"] > 0


def test_defaults_are_in_the_catalog_and_all_means_all(trace: Path) -> None:
    defaults = list(document(trace, "--limit", 3)["scenarios"][0]["policies"])
    assert defaults[0] == catalog.DEFAULT
    assert set(defaults) <= set(catalog.names())
    everything = document(trace, "--limit", 3, "--policy", "all")["scenarios"][0]["policies"]
    assert list(everything) == catalog.names()


def test_the_fleet_is_what_the_options_say(trace: Path) -> None:
    found = document(
        trace, "--limit", 3, "--policy", TWO, "--slow", "1@2.5", "--nodes", 3,
        "--kv-tokens", 100_000, "--index", "precise", "--gateways", 2, "--closed-loop",
    )  # fmt: skip
    fleet = found["scenarios"][0]["fleet"]
    assert fleet.startswith("2 ")
    assert " + 1 " in fleet
    assert "2.5" in fleet
    assert "100,000 KV tokens" in fleet


def test_a_sweep_finds_a_speed(trace: Path) -> None:
    found = document(
        trace, "--policy", "round_robin", "--nodes", 1, "--sweep", "--slo-ttft-s", 0.5,
        "--slo-ttft-s-per-token", 0, "--no-oracle",
    )  # fmt: skip
    sweep = found["sweeps"][0]["policies"]["round_robin"]
    speeds = [point["speed"] for point in sweep["tried"]]
    assert speeds == sorted(speeds)
    assert sweep["best"]["slo_attainment"] >= 0.9
    above = [point for point in sweep["tried"] if point["speed"] > sweep["best"]["speed"]]
    assert above[0]["slo_attainment"] < 0.9
    assert above[0]["speed"] / sweep["best"]["speed"] <= 1.02


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Nothing to replay"),
        (["missing.jsonl"], "missing.jsonl: No such file"),
        (["--workload", "chat", "TRACE"], "exclude each other"),
        (["TRACE", "--policy", "marginal_cots"], "did you mean 'marginal_cost'"),
        (["TRACE", "--policy", ","], "names none"),
        (["TRACE", "--policy", "random", "--baseline", "lmetric"], "'lmetric' is none of random"),
        (["TRACE", "--slow", "9@2"], "not K@F with K of the 8 nodes"),
        (["TRACE", "--slow", "half"], "4@2.5"),
        (["TRACE", "--window-s", "50", "60"], "no request arrives in 50 s to 60 s"),
        (["TRACE", "--parameter", "tenants=3"], "A trace has no parameters"),
        (["--workload", "chat", "--parameter", "turns=3"], "'turns' is no parameter of chat"),
        (["--workload", "chat", "--parameter", "turns"], "NAME=NUMBER"),
        (["TRACE", "--json", "/dev/null/x.json"], "Remedy"),
        (["TRACE", "--nodes", "5000"], "5000 is not in the range"),
        (["--workload", "chat", "--rate", "1e-9"], "days; 366 can be replayed"),
    ],
)
def test_wrong_usage_is_explained(trace: Path, arguments: list[str], words: str) -> None:
    result = run(*(trace if each == "TRACE" else each for each in arguments))
    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stdout == ""


def test_a_zipped_trace_that_is_damaged_is_named(tmp_path: Path) -> None:
    zipped = bytearray(gzip.compress(bytes(range(256)) * 20))
    zipped[20] ^= 0xFF
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(zipped)
    result = run(path)
    assert result.exit_code == 2
    assert f"{path}: Error -3 while decompressing data" in result.stderr.replace("\n", " ")


def test_pages_need_matplotlib(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "find_spec", lambda _: None)
    result = run(trace, "--html", "x.html")
    assert result.exit_code == 2
    assert "pip install 'pointsman[report]'" in result.stderr


def test_a_broken_check_ends_with_1(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise AssertionError("17 blocks are missing")

    monkeypatch.setattr(replay_jobs, "simulate", broken)
    result = run(trace, "--policy", "random")
    assert result.exit_code == 1
    assert "t, random, seed 0: the simulation broke its own check: 17 blocks" in result.stderr


def test_a_failure_in_a_process_is_told_and_ends_the_others() -> None:
    """Requests in no order are against what `simulate` takes for granted, or are refused by it."""
    backwards = tuple(
        TrafficRequest(at_s=at_s, input_tokens=10, output_tokens=2) for at_s in (5.0, 0.0)
    )
    jobs = [
        RunJob(
            label=f"job {place}", scenario=Scenario(name="s"), requests=requests,
            name="round_robin", options=SchedulerOptions(policy="round_robin"), seed=0,
            keep_series=False, timing=False,
        )
        for place, requests in enumerate(((), backwards[:1]))
    ]  # fmt: skip
    shares: list[float] = []
    with pytest.raises((SimulationFailed, ValueError), match="no request"):
        run_jobs(jobs, processes=2, on_progress=shares.extend)
