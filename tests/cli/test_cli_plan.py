"""`pointsman plan`: files as users write them, golden numbers, and how it leaves."""

import json
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from click.testing import CliRunner

from pointsman.cli.main import main
from pointsman.planner.plan import Plan, plan
from tests.planner.instances import BLOOM_SERVERS, BLOOM_SERVICE
from tests.tidy.source_tree import ROOT

BLOOM = """
model: {layers: 70, layer_gb: 1.32, cache_gb: 0.11}
servers:
  - {name: high, count: 4, memory_gb: 40, job_s: 0.76, layer_s: 0.109}
  - {name: low, count: 16, memory_gb: 20, job_s: 0.76, layer_s: 0.175}
demand: {rate_per_s: 0.2}
"""

LLAMA = """
model: {layers: 32, layer_gb: 0.4375, cache_gb: 0.0336}
servers: [{name: engine, memory_gb: 40, job_s: 0.5, layer_s: 0.05}]
demand: {rate_per_s: 8}
"""


def run(path: Path, text: str, *options: str) -> tuple[int, str, str]:
    file = path / "plan.yaml"
    file.write_text(text)
    result = CliRunner().invoke(main, ["plan", str(file), *options])
    return result.exit_code, result.stdout, result.stderr.replace(f"{file}:", "")


def report(path: Path, text: str, *options: str) -> Any:
    return json.loads(run(path, text, "--json", *options)[1])


def test_it_is_the_planners_own_plan(tmp_path: Path) -> None:
    wanted = plan(BLOOM_SERVERS, BLOOM_SERVICE, rate_per_s=0.2)
    assert isinstance(wanted, Plan)
    told = report(tmp_path, BLOOM)
    assert told["feasible"]
    assert told["response_lower_s"] == pytest.approx(wanted.bounds.lower_s)
    assert told["response_upper_s"] == pytest.approx(wanted.bounds.upper_s)
    assert [(c["job_slots"], c["service_s"]) for c in told["chains"]] == [
        (chain.job_slots, pytest.approx(chain.service_s)) for chain in wanted.chains
    ]
    assert told["jobs_reserved"] == wanted.placement.jobs_reserved


def test_chains_compute_each_layer_once_in_order(tmp_path: Path) -> None:
    for chain in report(tmp_path, BLOOM)["chains"]:
        ends = [(stage["first_layer"], stage["last_layer"]) for stage in chain["stages"]]
        layers = [layer for first, last in ends for layer in range(first, last + 1)]
        assert layers == list(range(1, 71))


def test_an_engine_that_holds_a_whole_model_is_a_chain_of_one(tmp_path: Path) -> None:
    """The published 24 slots of LLaMA-2-7B on 40 GB; one chain's bounds are one number."""
    told = report(tmp_path, LLAMA)
    assert told["job_slots"] == 24
    assert [chain["service_s"] for chain in told["chains"]] == [pytest.approx(0.5 + 32 * 0.05)]
    assert told["response_lower_s"] == pytest.approx(told["response_upper_s"])
    assert told["placement"] == [{"server": "engine", "first_layer": 1, "last_layer": 32}]


def test_data_sheets_give_the_papers_times(tmp_path: Path) -> None:
    """109 ms a layer on the large slices, of which a chain computes 70, over four or more."""
    text = BLOOM.replace("layer_s: 0.109", "tflops: 120, bandwidth_gb_per_s: 1020")
    text = text.replace("cache_gb: 0.11}", "cache_gb: 0.11, gflop_per_token: 5}")
    text = text.replace(
        "rate_per_s: 0.2}", "rate_per_s: 0.2, input_tokens: 2000, output_tokens: 20}"
    )
    sheet, given = report(tmp_path, text), report(tmp_path, BLOOM)
    assert sheet["response_lower_s"] == pytest.approx(given["response_lower_s"], rel=0.005)


def test_a_cache_follows_from_tokens(tmp_path: Path) -> None:
    text = LLAMA.replace("cache_gb: 0.0336", "cache_kb_per_token: 16.8")
    text = text.replace("rate_per_s: 8}", "rate_per_s: 8, input_tokens: 1900, output_tokens: 100}")
    assert report(tmp_path, text) == report(tmp_path, LLAMA)


def test_replicas_for_a_response_time(tmp_path: Path) -> None:
    text = LLAMA.replace("rate_per_s: 8}", "rate_per_s: 20, response_s: 2.2}")
    code, out, _ = run(tmp_path, text)
    assert code == 1  # one engine does 11.4 jobs a second
    assert "no plan for 20 jobs/s: the servers carry less than 11.4 jobs/s" in out
    assert out.endswith("\nreplicas   2 for 2.2 s on average, for certain with --goal upper\n")
    text = LLAMA.replace("rate_per_s: 8}", "rate_per_s: 11, response_s: 2.2}")
    told = report(tmp_path, text)
    assert told["response_upper_s"] > 2.2
    assert (told["replicas_min"], told["replicas"]) == (2, 2)
    line = "replicas   2 for 2.2 s on average, for certain with --goal upper\n"
    assert line in run(tmp_path, text)[1]


def test_a_response_time_that_nothing_reaches(tmp_path: Path) -> None:
    text = LLAMA.replace("rate_per_s: 8}", "rate_per_s: 8, response_s: 2}")
    assert report(tmp_path, text)["replicas"] is None
    assert "replicas   not even 128 for 2 s on average" in run(tmp_path, text)[1]


def test_servers_without_room_leave_with_1_and_a_remedy(tmp_path: Path) -> None:
    code, out, _ = run(tmp_path, LLAMA.replace("memory_gb: 40", "memory_gb: 5"))
    assert code == 1
    assert "the servers hold 10 of 32 layers with one job's cache on each\n→ add servers" in out
    told = report(tmp_path, LLAMA.replace("memory_gb: 40", "memory_gb: 5"))
    assert (told["feasible"], told["chains"], told["response_lower_s"]) == (False, [], None)


def test_a_server_too_small_for_a_layer_is_named(tmp_path: Path) -> None:
    text = LLAMA.replace("}]", "}, {name: tiny, memory_gb: 0.4, layer_s: 0.05}]")
    assert report(tmp_path, text)["unused"] == ["tiny"]
    assert "tiny    none: no room" in run(tmp_path, text)[1]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("layers: 32", "layres: 32", "2:9: model: unknown key 'layres'; did you mean 'layers'?"),
        ("layers: 32", "layers: 0", "2:17: model.layers: 0 is below 1"),
        ("memory_gb: 40", "memory_gb: -1", "3:37: servers[0].memory_gb: -1 is not above 0"),
        ("cache_gb: 0.0336", "cache_kb_per_token: 16", "needs demand.input_tokens and demand.out"),
        (", cache_gb: 0.0336", "", "2:8: model: give cache_gb or cache_kb_per_token, one of them"),
        (", layer_s: 0.05", "", "servers[0]: give layer_s, or tflops and bandwidth_gb_per_s"),
        (", layer_s: 0.05", ", tflops: 1", "servers[0]: give layer_s, or tflops and bandwidth"),
        (
            "layer_s: 0.05",
            "tflops: 1, bandwidth_gb_per_s: 1",
            "servers[0]: tflops need model.gflop_per_token, demand.input_tokens and demand.output",
        ),
        (
            "layer_s: 0.05",
            "layer_s: 1, tflops: 1",
            "servers[0]: layer_s is there, so leave out tflops",
        ),
        ("}]", "}, {name: engine, memory_gb: 1, layer_s: 1}]", "name: 'engine' is given twice"),
        ("name: engine", "name: engine, count: 256", ""),
        ("name: engine", "name: engine, count: 257", "servers[0].count: 257 is above 256"),
        ("}]", ", count: 256}, {name: b, memory_gb: 1, layer_s: 1}]", "servers: 257 of them; 1 to"),
        ("[{name: engine, memory_gb: 40, job_s: 0.5, layer_s: 0.05}]", "[]", "servers: 0 of them"),
        ("demand: {rate_per_s: 8}", "", "'demand' is missing"),
        (
            "cache_gb: 0.0336",
            "cache_gb: 1e-300",
            "2:8: model: the servers have room for the caches",
        ),
        ("cache_gb: 0.0336", "cache_gb: 33.6e-3", ""),
        ("job_s: 0.5, layer_s: 0.05", "layer_s: 1e-300", "servers: one does a job in 3.2e-299 s"),
        ("}]", "}, {name: engine-1, memory_gb: 9, layer_s: 1}]", ""),
        (
            "}]",
            ", count: 2}, {name: engine-1, memory_gb: 9, layer_s: 1}]",
            "servers: 'engine-1' is the name of two, counted or given",
        ),
        ("rate_per_s: 8", "rate_per_s: 8, output_tokens: 0.1", "demand.output_tokens: 0.1 is bel"),
        ("rate_per_s: 8", "rate_per_s: .nan", "demand.rate_per_s: nan is not above 0"),
        ("rate_per_s: 8", "rate_per_s: 0", "demand.rate_per_s: 0 is not above 0"),
    ],
)
def test_a_file_that_cannot_be_used_leaves_with_2(
    tmp_path: Path, old: str, new: str, problem: str
) -> None:
    assert LLAMA.count(old) == 1
    code, out, err = run(tmp_path, LLAMA.replace(old, new))
    assert (code, out == "") == ((2, True) if problem else (0, False))
    assert problem in err


def test_what_would_take_for_ever_is_refused_at_once(tmp_path: Path) -> None:
    servers = ", ".join(f"{{name: s{n}, memory_gb: {n + 50}.37, layer_s: 1}}" for n in range(60))
    text = f"model: {{layers: 200, layer_gb: 1, cache_gb: 0.001}}\nservers: [{servers}]\n"
    code, out, err = run(tmp_path, f"{text}demand: {{rate_per_s: 1}}")
    assert (code, out) == (2, "")
    assert "2:10: servers: 60 of so many sizes, and 200 layers, take too long to plan" in err


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["plan", str(tmp_path / "no.yaml")])
    assert (result.exit_code, "cannot be read: No such file" in result.stderr) == (2, True)


def test_the_example_is_planned_and_so_is_that_of_the_help(tmp_path: Path) -> None:
    example = (ROOT / "docs" / "plan.yaml").read_text()
    code, out, _ = run(tmp_path, example)
    assert (code, out.splitlines()[0][:26]) == (0, "demand     2 jobs/s, 99% o"), out
    assert "replicas   2 for 17 s on average, for certain with --goal upper\n" in out
    text = CliRunner().invoke(main, ["plan", "--help"]).stdout
    shown = text[text.index("model: {") : text.index("layer_gb   weights")]
    assert run(tmp_path, dedent(f"    {shown}"))[0] == 0
