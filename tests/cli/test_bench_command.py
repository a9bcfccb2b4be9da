"""`pointsman bench` and `compare` end to end against a scripted server: output, codes, remedies."""

import asyncio
import gzip
import json
import signal
import socket
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from click.testing import CliRunner

from pointsman.cli import bench_session
from pointsman.cli.bench import bench, compare
from pointsman.cli.sources import read_trace_file
from pointsman.report import plots
from pointsman.traffic.source import Source, stream
from tests.loadgen.rude_server import GOOD, RudeServer, answers, hangs, rude_server, streams
from tests.support.processes import run_inside

MODELS = answers("200 OK", "application/json", b'{"data":[{"id":"m1"},{"id":"m2"}]}')
BEFORE = answers("200 OK", "application/json", b'{"policy":"before","policies":[]}')
TRACE_ROW = '{"t_ms":%d,"input_tokens":40,"output_tokens":3,"hash_ids":[1,2],"block_tokens":16}\n'


async def run_bench(*arguments: str) -> tuple[int | None, str, str]:
    """The command in a thread, where no signal can be handled: (exit code, stdout, stderr)."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(bench_session, "on_signals", lambda _: nullcontext())
        ended = await run_inside("bench", *arguments)
    return ended.code, ended.out, ended.err


async def interrupted_bench(server: RudeServer, *arguments: str) -> tuple[int, str, str]:
    """The command in a process of its own, interrupted once two requests are there."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pointsman", "bench", server.url, *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    await server.received(2)
    process.send_signal(signal.SIGINT)
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_a_trace_is_replayed_and_reported(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl.gz"
    trace.write_bytes(gzip.compress("".join(TRACE_ROW % (10 * n) for n in range(9)).encode()))
    file, page = tmp_path / "run.json", tmp_path / "run.html"
    async with rude_server(MODELS, streams(GOOD)) as server:
        code, out, err = await run_bench(
            server.url, "--trace", str(trace), "--requests", "6", "--speed", "2",
            "--json", str(file), "--html", str(page), "--label", "mine",
        )  # fmt: skip
    assert (code, err) == (0, "")
    assert "6 of 6 requests" in out
    assert len(server.requests) == 7
    [run] = json.loads(file.read_bytes())["runs"]
    assert (run["label"], run["model"], run["load"]["mode"]) == ("mine", "m1", "open")
    assert run["records"][5]["due_s"] == pytest.approx(0.025)
    assert run["summary"]["ideal_hit_ratio"] == pytest.approx(5 * 32 / (6 * 40))
    assert page.read_text().startswith("<!doctype html>")
    assert names(tmp_path) == ["run.html", "run.json", "t.jsonl.gz"]  # no half-written file
    other = file.rename(tmp_path / "other.json")
    file.write_bytes(other.read_bytes())
    compared = CliRunner().invoke(compare, [str(file), str(other)])
    assert compared.exit_code == 0
    assert "compared with run: mine" in compared.stdout
    assert "other: mine" in compared.stdout


async def test_a_server_that_asks_for_a_key_is_told_of() -> None:
    denied = answers("401 Unauthorized", "application/json", b'{"error":{"message":"no key"}}')
    async with rude_server(denied) as server:
        code, _, err = await run_bench(server.url)
    assert code == 1
    assert "/v1/models answers 401. Remedy: give --api-key, or POINTSMAN_API_KEY." in err


@pytest.mark.parametrize(
    ("options", "source"),
    [
        (("--rate", "400", "--speed", "2"), Source(trace="t", rate_rps=400, speed=2)),
        (("--seed", "3", "--limit", "7"), Source(trace="t", limit=7)),
    ],
)
async def test_a_trace_is_sent_as_a_replay_of_it_is_simulated(
    tmp_path: Path, options: tuple[str, ...], source: Source
) -> None:
    trace, seed = tmp_path / "t.jsonl", 3 if "--seed" in options else 0
    trace.write_text("".join(TRACE_ROW % (10 * n) for n in range(9)))
    async with rude_server(streams(GOOD)) as server:
        code, out, _ = await run_bench(
            server.url, "--trace", str(trace), "--model", "m", "--json", "-", *options
        )
    assert code == 0
    wanted = stream(source, seed=seed, trace=read_trace_file(trace))
    [run] = json.loads(out)["runs"]
    assert [record["due_s"] for record in run["records"]] == [r.at_s for r in wanted]


async def test_failures_end_with_one_and_json_goes_to_stdout() -> None:
    async with rude_server(streams(GOOD), answers("503 No", "text/plain", b"full")) as server:
        code, out, _ = await run_bench(
            server.url, "--workload", "long-tail", "--requests", "4", "--concurrency", "1",
            "--model", "m", "--json", "-",
        )  # fmt: skip
    [run] = json.loads(out)["runs"]
    assert code == 1
    assert (run["summary"]["ok"], run["summary"]["errors"]) == (1, 3)
    assert run["summary"]["error_groups"][0]["cause"] == "503 without a JSON error"


async def test_each_policy_is_chosen_and_the_first_one_put_back() -> None:
    async with rude_server(streams(GOOD)) as server, rude_server(BEFORE) as admin:
        code, out, _ = await run_bench(
            server.url, "--requests", "2", "--model", "m", "--policy", "one,two",
            "--admin-url", admin.url,
        )  # fmt: skip
    assert code == 0
    chosen = [json.loads(body)["policy"] for first, _, body in admin.requests if "PUT" in first]
    assert chosen == ["one", "two", "before"]
    assert "compared with one" in out
    assert "errors of" not in out
    prompts = [json.loads(body)["messages"][0]["content"] for _, _, body in server.requests]
    assert len({prompt[:64] for prompt in prompts}) == 4  # no run finds another's cache


async def test_runs_are_reported_although_the_policy_cannot_be_put_back() -> None:
    script = (BEFORE, BEFORE, answers("500 Oops", "text/plain", b"broken"))
    async with rude_server(streams(GOOD)) as server, rude_server(*script) as admin:
        code, out, err = await run_bench(
            server.url, "--requests", "2", "--model", "m", "--policy", "one",
            "--admin-url", admin.url,
        )  # fmt: skip
    assert code == 1
    assert "policy before: the admin port answers 500: broken" in err
    assert "2 of 2 requests" in out


async def test_a_policy_that_is_none_ends_before_the_first_run() -> None:
    in_force = answers("200 OK", "application/json", b'{"policy":"one","policies":["one","two"]}')
    async with rude_server(streams(GOOD)) as server, rude_server(in_force) as admin:
        code, _, err = await run_bench(
            server.url, "--model", "m", "--policy", "one,towo", "--admin-url", admin.url
        )
        assert server.requests == []
    assert code == 2
    assert "'towo' is none of one, two; did you mean 'two'?" in err


async def test_a_comparison_names_errors_and_a_new_folder_is_made(tmp_path: Path) -> None:
    in_force = answers("200 OK", "application/json", b'{"policy":"one"}')
    page = tmp_path / "new" / "runs.html"
    broken = answers("503 No", "text/plain", b"full")
    async with rude_server(broken) as server, rude_server(in_force) as admin:
        code, out, _ = await run_bench(
            server.url, "--requests", "2", "--model", "m", "--policy", "one,two",
            "--admin-url", admin.url, "--html", str(page),
        )  # fmt: skip
    assert code == 1
    assert page.exists()
    assert "errors of one" in out
    assert "503 without a JSON error" in out


async def test_runs_of_two_commands_share_no_prompt() -> None:
    async with rude_server(streams(GOOD)) as server:
        for _ in range(2):
            await run_bench(server.url, "--requests", "1", "--model", "m")
        prompts = [json.loads(body)["messages"][0]["content"] for _, _, body in server.requests]
    assert prompts[0][:64] != prompts[1][:64]


async def test_interrupt_stops_and_still_reports() -> None:
    async with rude_server(streams(GOOD), hangs) as server:
        code, out, _ = await interrupted_bench(
            server, "--requests", "9", "--concurrency", "1", "--model", "m"
        )
    assert code == 1
    assert "1 of 2 requests" in out
    assert "1 interrupted · stopped early" in out


async def test_interrupt_before_any_answer_says_so_instead_of_a_table() -> None:
    async with rude_server(hangs) as server:
        code, out, _ = await interrupted_bench(
            server, "--requests", "9", "--concurrency", "2", "--model", "m"
        )
    assert code == 1
    assert "before any answer was whole: of 2 requests on their way 0 had a first token" in out
    assert len(out.splitlines()) == 2


async def test_a_server_that_is_not_there_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        code, _, err = await run_bench(f"127.0.0.1:{taken.getsockname()[1]}")
    assert code == 1
    assert "connection refused. Remedy: start the server" in err


async def test_a_server_that_never_answers_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench_session, "ASK_S_MAX", 0.3)
    async with rude_server(hangs) as server:
        for given in ([], ["--model", "m", "--policy", "a", "--admin-url", server.url]):
            code, _, err = await run_bench(server.url, *given)
            assert code == 1
            assert "not over within 0.3 s. Remedy: start the server" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["x", "--trace", "a", "--workload", "chat"], "exclude each other"),
        (["x", "--rate", "1", "--concurrency", "1"], "exclude each other"),
        (["x", "--trace", "/no/such/file"], "/no/such/file"),
        (["ftp://x"], "is no HTTP address. Remedy"),
        (["x", "--workload", "chat", "--json", "/no/folder/x.json"], "is no folder"),
        (["x", "--trace", __file__], "line 1 is in no known trace format"),
        (["x", "--speed", "0"], "--speed"),
        (["x", "--json", str(Path(__file__).parent)], "is a folder. Remedy: name a file"),
        (["x", "--window-s", "1", "2"], "A window goes with a trace"),
        (["x", "--policy", ","], "--policy names none"),
        (["http://[::1"], "http://[::1: Invalid IPv6 URL. Remedy: give an address like"),
        (["x", "--speed", "nan"], "Invalid value for '--speed': nan is no number"),
        (["x", "--timeout-s", "inf"], "Invalid value for '--timeout-s': inf is no number"),
        (["x", "--window-s", "nan", "1"], "Invalid value for '--window-s': nan is no number"),
        (["x", "--api-key", "s3cret\n"], "--api-key: it holds what no header can carry"),
    ],
)
def test_wrong_usage_ends_with_two_and_a_remedy(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(bench, arguments)
    assert result.exit_code == 2
    assert said in result.stderr.replace("\n", " ")
    assert "s3cret" not in result.stderr


def test_page_without_matplotlib_is_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "find_spec", lambda _: None)
    result = CliRunner().invoke(bench, ["x", "--html", "x.html"])
    assert result.exit_code == 2
    assert "pip install 'pointsman[report]'" in result.stderr


def test_compare_refuses_what_holds_no_runs(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    for arguments in ([str(tmp_path / "x.json")], [str(tmp_path / "missing.json")], []):
        assert CliRunner().invoke(compare, arguments).exit_code == 2
