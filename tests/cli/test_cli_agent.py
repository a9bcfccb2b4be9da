"""`pointsman agent`: what is wrong is said before anything is tried."""

import asyncio
import signal
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from pointsman.cli.agent import agent
from pointsman.cli.config import Agents, Config
from pointsman.cli.config_file import agents_problem
from pointsman.cli.control_address import UnusableControl, control_address, read_secret
from pointsman.wire.control import ControlAddress

GOOD = ["--scheduler", "127.0.0.1:1", "--engine", "http://127.0.0.1:2"]


def refusal(*arguments: str) -> str:
    result = CliRunner().invoke(agent, [*GOOD, *arguments])
    assert result.exit_code == 2, result.output
    return result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--scheduler", "nowhere"], "neither HOST:PORT nor"),
        (["--scheduler", "host:99999"], "no port 99999"),
        (["--engine", "127.0.0.1:8000"], "did you mean http://"),
        (["--name", "two words"], "--name two words"),
        (["--kv-events", "sometimes"], "--kv-events"),
        (["--secret-file", "/no/such/file"], "No such file"),
        (["--advertise", "a/b"], "--advertise"),
        (["--run"], "belong together"),
        (["vllm", "serve"], "belong together"),
        (["--engine", "http://127.0.0.1:3", "--run", "--", "vllm"], "one engine"),
        (["--heartbeat", "60"], "--heartbeat"),
        (["--front-wait", "nan"], "--front-wait"),
        (["--engine", "http://127.0.0.1:2/"], "--engine: http://127.0.0.1:2 is given twice"),
        (["--engine", "http://a:3", "--name", "x" * 63], "its engines get -1, -2 … behind it"),
        (["--front", "65535", "--engine", "http://a:3"], "there is no port 65536"),
        (["--front", "18999", "--front-host", "a..b"], "--front: "),
        (["--kv-events", "tcp://gpu-1:99999"], "--kv-events: 'tcp://gpu-1:99999' is neither"),
        (["--kv-events", "tcp://gpu-1:5557\n"], "--kv-events: "),
        (["--advertise", "[::1]x"], "--advertise: 'http://[[::1]x]:2': "),
    ],
)
def test_what_is_wrong_is_said(arguments: list[str], said: str) -> None:
    assert said in refusal(*arguments)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.7:8090", ControlAddress("10.0.0.7", 8090)),
        ("gateway:8090", ControlAddress("gateway", 8090)),
        ("[::1]:8090", ControlAddress("::1", 8090)),
        ("/run/pointsman.sock", ControlAddress(path="/run/pointsman.sock")),
    ],
)
def test_addresses_are_read(text: str, address: ControlAddress) -> None:
    assert control_address(text) == address


def test_a_secret_comes_from_a_file_or_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("0123456789abcdef\n")
    assert read_secret(str(file), {}) == b"0123456789abcdef"
    variable = {"POINTSMAN_AGENT_SECRET": "fedcba9876543210"}
    assert read_secret("", variable) == b"fedcba9876543210"
    assert read_secret(str(file), variable) == b"0123456789abcdef"
    assert read_secret("", {}) is None


def test_a_secret_that_can_be_guessed_is_none(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("short-and-sweet")
    with pytest.raises(UnusableControl, match="16 to 4096 bytes") as raised:
        read_secret(str(file), {})
    assert "short-and-sweet" not in str(raised.value)


@pytest.mark.parametrize(
    ("agents", "said"),
    [
        (Agents(), ""),
        (Agents(listen="127.0.0.1:8090"), ""),
        (Agents(listen="/run/agents.sock"), ""),
        (Agents(listen="0.0.0.0:8090"), "everyone who reaches 0.0.0.0 could add engines"),
        (Agents(listen="8090"), "neither HOST:PORT nor"),
        (Agents(listen="127.0.0.1:8090", secret_file="/no/such/file"), "No such file"),
    ],
)
def test_a_place_for_agents_is_checked(
    monkeypatch: pytest.MonkeyPatch, agents: Agents, said: str
) -> None:
    monkeypatch.delenv("POINTSMAN_AGENT_SECRET", raising=False)
    problem = agents_problem(Config(agents=agents))
    assert said in problem
    assert bool(problem) is bool(said)


def test_with_a_secret_agents_may_come_from_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POINTSMAN_AGENT_SECRET", "0123456789abcdef")
    assert agents_problem(Config(agents=Agents(listen="0.0.0.0:8090"))) == ""


async def test_an_agent_without_scheduler_and_engine_waits_and_ends_when_told() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pointsman", "agent", *GOOD),
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    async with asyncio.timeout(30):
        said = b""
        while b"trying again" not in said:
            said += await process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
