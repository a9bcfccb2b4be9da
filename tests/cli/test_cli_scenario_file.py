"""Scenario files: what they may say, and where in them something is wrong."""

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from pointsman.cli.replay import replay
from pointsman.cli.scenario_file import load_cases
from pointsman.cli.yaml_reader import Rejected
from pointsman.sim.scenario import FaultKind, Index, Knowledge

POLICIES = ["marginal_cost", "round_robin"]
WHOLE = """\
name: half of them slow
traffic: {trace: sub/t.jsonl, speed: 1.5, limit: 7, window: {end_s: 60}}
fleet:
  - {count: 2, profile: 70b-tp8-h100}
  - {count: 2, slowdown: 2.5, kv_tokens: 200000}
knowledge: {index: precise, event_loss: 0.01}
clients: {closed_loop: true, retries_max: 2, backoff: none}
faults: [{kind: crash, at_s: 60, duration_s: 30, nodes: [node-0]}]
slo: {ttft_s: 1}
policies: [round_robin]
seeds: [3, 4]
"""
MATRIX = """\
policies: [marginal_cost, round_robin]
seeds: [1]
scenarios:
  - {name: a, traffic: {workload: chat, rate_rps: 5, limit: 10}, fleet: [{count: 2}]}
  - name: b
    traffic: {workload: shared-prefix, rate_rps: 5, limit: 10, parameters: {tenants: 2}}
    fleet: [{count: 2}]
    policies: [round_robin]
"""


def problems(tmp_path: Path, text: str) -> list[tuple[int, int, str]]:
    path = tmp_path / "s.yaml"
    path.write_text(text)
    with pytest.raises(Rejected) as caught:
        load_cases(path, {}, POLICIES)
    return [(each.line, each.column, each.message) for each in caught.value.problems]


def test_what_is_nested_too_deeply_is_told_as_a_problem(tmp_path: Path) -> None:
    assert problems(tmp_path, "[" * 500) == [(1, 1, "nested too deeply for a configuration")]


def test_a_whole_scenario(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(WHOLE)
    [case] = load_cases(path, {}, POLICIES)
    assert case.sources[0].trace == str(tmp_path / "sub/t.jsonl")  # relative to the file
    assert (case.policies, case.seeds) == (("round_robin",), (3, 4))
    scenario = case.scenario
    assert (scenario.name, scenario.nodes) == ("half of them slow", 4)
    assert scenario.fleet[1].slowdown == 2.5
    assert scenario.knowledge.index is Index.PRECISE
    assert scenario.faults[0].kind is FaultKind.CRASH
    assert not hasattr(scenario, "traffic")


def test_several_scenarios_share_what_stands_beside_them(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(MATRIX)
    first, second = load_cases(path, {}, POLICIES)
    assert (first.policies, second.policies) == (tuple(POLICIES), ("round_robin",))
    assert first.seeds == second.seeds == (1,)


CIRCUMSTANCES = (
    MATRIX
    + """\
circumstances:
  as it is:
  late: {knowledge: {report_lag_s: 0.5}}
  two gateways: {gateways: 2}
"""
)


def test_each_scenario_comes_under_each_circumstance(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(MATRIX)
    written = {case.name: case for case in load_cases(path, {}, POLICIES)}
    path.write_text(CIRCUMSTANCES)
    cases = load_cases(path, {}, POLICIES)
    names = ["as it is", "late", "two gateways"]
    assert [case.name for case in cases] == [f"{case}: {name}" for case in "ab" for name in names]
    for case in cases:
        scenario, _, circumstance = case.name.partition(": ")
        assert (case.knowledge.report_lag_s == 0.5) is (circumstance == "late")
        assert (case.gateways == 2) is (circumstance == "two gateways")
        assert (
            msgspec.structs.replace(case, name=scenario, knowledge=Knowledge(), gateways=1)
            == written[scenario]
        )


def test_what_is_wrong_under_each_circumstance_is_said_once(tmp_path: Path) -> None:
    [problem] = problems(tmp_path, CIRCUMSTANCES.replace("workload: chat", "workload: chatt"))
    assert "'chatt'" in problem[2]
    [problem] = problems(tmp_path, CIRCUMSTANCES.replace("gateways: 2", "gateways: 65"))
    assert problem == (12, 28, "circumstances.two gateways.gateways: 65 is above 64")
    wrong = CIRCUMSTANCES.replace("report_lag_s: 0.5", "prior: {nodes: [node-2]}")
    [problem] = problems(tmp_path, wrong)
    assert problem == (11, 37, "knowledge.prior: 'node-2' is none of node-0 to node-1")


@pytest.mark.parametrize(
    ("wrong", "right", "line", "column", "words"),
    [
        ("slowdown", "slow", 5, 16, "unknown key 'slow'; did you mean 'slowdown'?"),
        ("slowdown: 2.5", "slowdown: 0", 5, 26, "0 is not above 0"),
        ("precise", "precice", 6, 20, "'precice' is none of precise, approximate"),
        ("kind: crash", "kind: crush", 8, 17, "'crush' is none of crash"),
        (
            "event_loss: 0.01",
            "prior: {nodes: [node-4]}",
            6,
            44,
            "prior: 'node-4' is none of node-0",
        ),
        ("[node-0]", "[node-4]", 8, 9, "'node-4' is none of node-0 to node-3"),
        ("70b-tp8-h100", "70b", 4, 25, "'70b' is none of"),
        ("[round_robin]", "[round-robin]", 10, 12, "did you mean 'round_robin'?"),
        ("trace: sub/t.jsonl", "trace: a, workload: chat", 2, 10, "either a trace or a workload"),
        ("{end_s: 60}", "{start_s: 70, end_s: 60}", 2, 61, "ends before it starts"),
        ("seeds: [3, 4]", "seeds: [-1]", 11, 9, "-1 is below 0"),
        ("slo: {ttft_s: 1}", "slo: {ttft_s: .nan}", 9, 15, "nan is not above 0"),
        ("slo: {ttft_s: 1}", "windows: {early: {start_s: 5, end_s: 1}}", 9, 18, "early: it ends"),
        (
            "[round_robin]",
            "[{name: a, policy: round_robin}, {name: a, policy: marginal_cost}]",
            *(10, 44, "'a' names another one already"),
        ),
        ("slowdown: 2.5", "slowdown: .inf", 5, 26, "inf is above 1000000000.0"),
        ("count: 2, profile", "count: 5000, profile", 4, 3, "nodes; a cluster has 4096 at most"),
    ],
)
def test_problems_have_a_place(
    tmp_path: Path, wrong: str, right: str, line: int, column: int, words: str
) -> None:
    assert wrong in WHOLE
    [problem] = problems(tmp_path, WHOLE.replace(wrong, right))
    assert problem[:2] == (line, column)
    assert words in problem[2]


def test_problems_of_the_whole(tmp_path: Path) -> None:
    assert "'traffic' is missing" in problems(tmp_path, "name: a\n")[0][2]
    assert "there is none" in problems(tmp_path, "scenarios: []\n")[0][2]
    assert "not YAML" in problems(tmp_path, "scenarios: [\n")[0][2]
    [twice] = problems(tmp_path, MATRIX.replace("name: b", "name: a"))
    assert twice == (5, 11, "name: 'a' is taken in line 4 already")


def test_scenario_files_are_replayed(tmp_path: Path) -> None:
    path = tmp_path / "matrix.yaml"
    path.write_text(MATRIX)
    result = CliRunner().invoke(replay, [str(path), "--jobs", "1", "--json", "-"])
    assert result.exit_code == 0, result.stderr
    entries = json.loads(result.stdout)["scenarios"]
    assert [(e["name"], e["seed"], list(e["policies"])) for e in entries] == [
        ("a", 1, POLICIES),
        ("b", 1, ["round_robin"]),
    ]


def test_what_is_wrong_is_printed_as_compilers_do(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("name: a\ntraffic: {workload: chat, rate: 3}\n")
    result = CliRunner().invoke(replay, [str(path)])
    assert result.exit_code == 2
    assert f"{path}:2:27: traffic: unknown key 'rate'" in result.stderr
    missing = CliRunner().invoke(replay, [str(tmp_path / "no.yaml")])
    assert (missing.exit_code, "cannot be read" in missing.stderr) == (2, True)


def test_options_that_a_file_says_itself_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(MATRIX)
    for options in (["--nodes", "3"], ["--speed", "2"], ["--closed-loop"]):
        result = CliRunner().invoke(replay, [str(path), *options])
        assert result.exit_code == 2
        assert f"{options[0]} does not go with a scenario file" in result.stderr
    mixed = CliRunner().invoke(replay, [str(path), "t.jsonl"])
    assert (mixed.exit_code, "not both at once" in mixed.stderr) == (2, True)


BARS = """\
name: stormy
traffic:
  - {name: base, workload: chat, rate_rps: 5, limit: 10}
  - {name: storm, workload: chat, rate_rps: 5, start_s: 3, duration_s: 2}
fleet: [{count: 2}]
clients_by_part: {storm: {retries_max: 3, backoff: none}}
faults: [{kind: crash, at_s: 6, duration_s: 3, nodes: [node-0]}]
config: {limits: {queue_length_max: 7}}
policies:
  - marginal_cost
  - {name: without a queue, policy: round_robin, config: {limits: {queue_length_max: 0}}}
expect:
  - {metric: lost, of: {part: base, window: during}, at_most: 0}
  - {metric: goodput, at_least: 1.5, times: {policy: without a queue}}
"""


def test_mixed_traffic_with_bars_and_variants(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(BARS)
    [case] = load_cases(path, {}, POLICIES)
    assert [source.name for source in case.sources] == ["base", "storm"]
    assert case.scenario.clients_by_part["storm"].retries_max == 3
    assert case.spans_s == {"before": (0, 6), "during": (6, 9), "after": (9, float("inf"))}
    assert [(v.name, v.policy) for v in case.variants] == [
        ("marginal_cost", "marginal_cost"),
        ("without a queue", "round_robin"),
    ]
    assert case.expect[1].times is not None


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("name: storm,", "name: base,", 4, "'base' names another part already"),
        ("workload: chat, rate_rps: 5, start_s: 3", "workload: chat, start_s: 3", 4, "rate_rps"),
        ("clients_by_part: {storm", "clients_by_part: {strom", 6, "did you mean 'storm'"),
        ("config: {limits: {queue_length_max: 7}}", "config: {log: {access: none}}", 8, "log"),
        ("policy: round_robin", "policy: round_robbin", 11, "did you mean 'round_robin'"),
        ("metric: lost,", "metric: losst,", 13, "did you mean 'lost'"),
        ("part: base, w", "part: bass, w", 13, "did you mean 'base'"),
        ("window: during", "window: meanwhile", 13, "none of before, during, after"),
        ("window: during", "nodes: [node-2]", 13, "none of node-0 to node-1"),
        (", at_most: 0}", "}", 13, "there is no bar"),
        ("times: {policy: without a queue}", "times: {policy: with it}", 14, "'with it' is none"),
        ("times: {policy: without a queue}", "times: {scenario: calm}", 14, "'calm' is none"),
        ("at_most: 0", "at_mots: 0", 13, "did you mean 'at_most'"),
    ],
)
def test_what_is_wrong_with_parts_and_bars(
    tmp_path: Path, old: str, new: str, line: int, words: str
) -> None:
    assert old in BARS
    found = problems(tmp_path, BARS.replace(old, new))
    assert [where for where, _, message in found if words in message] == [line]


@pytest.mark.parametrize(("most", "code"), [(0, 0), (-1, 1)])
def test_a_missed_bar_is_an_exit_code(tmp_path: Path, most: int, code: int) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(BARS.replace("at_most: 0", f"at_most: {most}").replace("1.5", "0.1"))
    result = CliRunner().invoke(replay, [str(path), "--jobs", "1", "--no-oracle"])
    assert result.exit_code == code, result.output
    assert f"{2 - code} of 2 bars are kept" in result.output
