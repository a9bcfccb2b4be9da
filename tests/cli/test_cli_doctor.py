"""`pointsman doctor` as a user types it: what it prints, and how it leaves."""

import json
from pathlib import Path

from click.testing import CliRunner

from pointsman.cli.main import main
from tests.support import upstreams
from tests.support.engines import running_engine
from tests.support.processes import run, run_inside


async def test_a_healthy_engine_leaves_with_0_and_in_silence() -> None:
    async with running_engine(kv_events_port=0) as engine:
        ended = await run("doctor", "--engine", engine.url)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith(f"engine-1  {engine.url}  vllm ")
    assert ended.out.splitlines()[-1].startswith("healthy: 0 problems")


async def test_an_engine_with_a_key_is_examined_with_it_and_the_remedy_names_it() -> None:
    async with running_engine(kv_events_port=0, api_key="own") as engine:
        ended = await run_inside("doctor", "--engine", engine.url, POINTSMAN_ENGINE_KEY="own")
        assert (ended.code, "own" in ended.out) == (0, False)
        ended = await run_inside("doctor", "--engine", engine.url)
    assert ended.code == 1
    assert "→ give the key that it was started with: engines[].api_key" in ended.out


async def test_a_problem_leaves_with_1_and_its_remedy() -> None:
    url = upstreams.closed_url()
    ended = await run_inside("doctor", "--engine", url)
    assert ended.code == 1
    assert "problem: engine-1, reachable: connection refused" in ended.out
    assert f"→ start it, or correct its address {url}" in ended.out
    assert ended.out.endswith("not healthy: 1 problem, 0 warnings, 0 notes\n")


async def test_json_has_everything_under_stable_names(tmp_path: Path) -> None:
    async with running_engine() as engine:
        file = tmp_path / "p.yaml"
        file.write_text(
            f"engines: [{{url: {engine.url}, name: gpu}}]\n"
            "admin: {host: 10.0.0.1}\n"
            "models: [{name: sim, tokenizer: engine}]\n"
            "timeouts: {engine_idle_s: 0.2}\n"
        )
        ended = await run_inside("doctor", "-c", str(file), "--json")
    report = json.loads(ended.out)
    assert (ended.code, report["healthy"], report["problems"]) == (0, True, 0)
    assert report["warnings"] + report["notes"] == len(report["findings"])
    assert list(report) == ["healthy", "problems", "warnings", "notes", "engines", "findings"]
    assert list(report["engines"][0]) == [
        *("name", "url", "kind", "version", "models", "block_tokens", "kv_blocks"),
        *("latency_s", "cached_share", "events"),
    ]
    found = [each for each in report["findings"] if each["check"] != "reachable"]  # a slow machine
    assert [list(each) for each in found] == [
        ["severity", "check", "subject", "seen", "remedy"]
    ] * 2
    assert [(each["severity"], each["subject"]) for each in found] == [
        ("warning", "admin"),
        ("note", "gpu"),
    ]


def test_wrong_usage_leaves_with_2(tmp_path: Path) -> None:
    def code(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(main, ("doctor", *arguments))
        return result.exit_code, result.stderr

    assert "nothing to examine" in code()[1]
    assert code("--engine", "gpu-1:8000")[0] == 2
    assert code("--gateway", "ftp://x")[0] == 2
    assert code("--engine", "http://a", "--engine", "http://a")[0] == 2
    assert code("-c", str(tmp_path / "none.yaml"))[0] == 2
