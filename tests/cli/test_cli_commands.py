"""Commands as a user types them: what they print, and how they leave."""

import os
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from errno import ENOSPC
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import StringIO
from pathlib import Path

import pytest
from click.testing import CliRunner

from pointsman import __version__, code_form
from pointsman.cli import explain
from pointsman.cli.explain import _INELIGIBLE
from pointsman.cli.main import main
from pointsman.cli.messages import say
from pointsman.core.decision import Ineligible


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, arguments)
    return result.exit_code, result.stdout, result.stderr


def test_help_lists_every_command_and_each_has_its_own() -> None:
    code, out, _ = run("--help")
    assert code == 0
    for command in (
        "up",
        "serve",
        "engine",
        "explain",
        "replay",
        "plan",
        "bench",
        "compare",
        "check",
        "doctor",
        "keys",
        "init",
    ):
        assert f"\n  {command} " in out
        assert run(command, "--help")[0] == 0, command


def test_help_imports_no_command() -> None:
    """`pointsman --help` stays below half a second because nothing heavy is imported."""
    probe = (
        "import sys; from click.testing import CliRunner; from pointsman.cli.main import main;"
        "CliRunner().invoke(main, ['--help']); print(*sys.modules)"
    )
    modules = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True
    ).stdout.split()
    heavy = {"aiohttp", "zmq", "uvloop", "rich", "msgspec", "prometheus_client", "asyncio"}
    assert heavy & set(modules) == set()


def test_the_version_is_the_package_s() -> None:
    assert run("--version")[1] == f"pointsman, version {__version__}, {code_form()}\n"


def test_wrong_usage_leaves_with_2() -> None:
    assert run("serv")[0] == 2
    assert run("serve", "--port", "x")[0] == 2


def test_a_mistyped_command_is_guessed() -> None:
    assert "Did you mean 'serve'?" in run("serv")[2]
    assert "There are up, serve" in run("xyz")[2]


def test_check_prints_ok(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    assert run("init", str(path))[0] == 0
    assert run("check", str(path))[:2] == (0, "ok: 1 engine, policy marginal_cost\n")


def test_check_prints_problems_as_compilers_do(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("engines: []\nlissten: {}\n")
    code, out, err = run("check", str(path))
    assert (code, out) == (2, "")
    assert err == f"{path}:2:1: unknown key 'lissten'; did you mean 'listen'?\n"


def test_init_overwrites_only_when_told(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("mine")
    code, _, err = run("init", str(path))
    assert (code, path.read_text()) == (2, "mine")
    assert "--force" in err
    assert run("init", "--force", str(path))[0] == 0
    assert run("init", "-")[1] == path.read_text()
    assert run("init", str(tmp_path / "no" / "p.yaml"))[0] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no engines"),
        (("--engine", "10.0.0.7:8000"), "did you mean http://10.0.0.7:8000?"),
        (("-c", "/nowhere/p.yaml"), "no such file"),
        (("--engine", "http://a:1", "--policy", "fastest"), "fastest"),
        (("--engine", "http://a:1", "--engine", "http://a:1/"), "is engines[0] already"),
        (("--engine", "http://localhost:8080"), "is listen.port of this gateway itself"),
        (("--engine", "http://0.0.0.0:8080"), "is listen.port of this gateway itself"),
        (("--engine", "http://127.0.0.1:9", "--admin-port", "9"), "is admin.port of this gateway"),
    ],
)
def test_serve_refuses_what_cannot_work(arguments: tuple[str, ...], message: str) -> None:
    code, _, err = run("serve", *arguments)
    assert code == 2
    assert message in err


@pytest.mark.parametrize("command", [("serve",), ("doctor",), ("agent", "--scheduler", "a:1")])
def test_an_engines_key_that_no_header_can_carry_is_refused_unshown(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POINTSMAN_ENGINE_KEY", "s3cret key")
    code, _, err = run(*command, "--engine", "http://a:1")
    assert code == 2
    assert "POINTSMAN_ENGINE_KEY: it holds what no header can carry" in err
    assert "s3cret" not in err


def test_more_engines_than_a_cluster_has_do_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pointsman.control.fleet.NODES_MAX", 1)
    engines = ("--engine", "http://a:1", "--engine", "http://a:2")
    code, _, err = run("serve", *engines, "--port", "0", "--admin-port", "0")
    assert code == 2
    assert "engine engine-2: the cluster has 1 nodes, its limit" in err


def test_a_name_with_an_empty_label_is_no_host() -> None:
    engine = ("--engine", "http://127.0.0.1:1", "--port", "0", "--admin-port", "0")
    code, err = leave("serve", *engine, "--host", "10.0.0..1", "--open")
    assert code == 2
    assert "cannot listen on 10.0.0..1:0: no such host; choose another --host" in err


def test_an_access_log_that_cannot_be_written_is_named() -> None:
    log = ("--access-log", "/nowhere/access.log")
    code, err = leave("serve", "--engine", "http://127.0.0.1:1", "--port", "0", *log)
    assert code == 2
    assert "access log /nowhere/access.log: No such file or directory" in err


def test_explain_needs_an_admin_plane_and_one_question() -> None:
    code, _, err = run("explain", "r-1", "--admin-url", "http://127.0.0.1:1")
    assert code == 2
    assert "is `pointsman up` or `serve` running?" in err
    assert run("explain", "r-1", "--prompt", "x")[0] == 2
    assert "--model goes with --prompt" in run("explain", "--model", "x")[2]
    assert "--path goes with --body" in run("explain", "--path", "x")[2]
    assert run("explain", "--body", "/nowhere.json")[0] == 2


@pytest.mark.parametrize("url", ["http://[::1", "127.0.0.1:x", "http://a b", "ftp://a", "a:0"])
def test_an_address_that_is_none_is_named_with_its_option(url: str) -> None:
    for arguments in (
        ("explain", "--admin-url", url),
        ("doctor", "--gateway", url),
        ("doctor", "--admin-url", url),
    ):
        code, _, err = run(*arguments)
        assert code == 2
        assert f"{arguments[1]}: '{url}'" in err


def test_explain_names_a_server_that_speaks_no_http() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"

        def greet() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"SSH-2.0-Other\r\n")
                connection.recv(4_096)

        threading.Thread(target=greet).start()
        code, _, err = run("explain", "--admin-url", url)
    assert code == 2
    assert f"no admin plane at {url}" in err


@pytest.mark.parametrize("status", [200, 404])
def test_explain_does_not_wait_for_the_end_of_an_answer_that_has_none(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Endless(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            with suppress(ConnectionError):
                while True:
                    self.wfile.write(b" " * 4_096)

        def log_message(self, *_: object) -> None: ...

    monkeypatch.setattr(explain, "ANSWER_BYTES_MAX", 100_000)
    with HTTPServer(("127.0.0.1", 0), Endless) as server:
        serving = threading.Thread(target=server.handle_request)
        serving.start()
        code, _, err = run("explain", "--admin-url", f"http://127.0.0.1:{server.server_port}")
        serving.join()
    assert code == 2
    assert "its answer does not end" in err


def test_explain_names_an_address_that_is_another_servers() -> None:
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>")

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Other) as server:
        threading.Thread(target=server.handle_request).start()
        url = f"http://127.0.0.1:{server.server_port}"
        code, _, err = run("explain", "--admin-url", url)
    assert code == 2
    assert f"{url}/pointsman/v1/decisions?limit=1 answers as no admin plane does" in err


def test_up_leaves_with_a_sentence_where_it_cannot_start() -> None:
    code, _, err = run("up", "--port", "8080", "--admin-port", "8080")
    assert code == 2
    assert "both 8080" in err
    ports = ("--engines", "1", "--port", "0", "--admin-port", "0")
    code, err = leave("up", *ports, "--access-log", "/nowhere/access.log")
    assert code == 2
    assert "Traceback" not in err
    assert "access log /nowhere/access.log: No such file or directory; give" in err
    code, err = leave("up", "--open", "--host", "no.such.host.invalid")
    assert code == 2
    assert "no such host; choose another --host" in err


def test_every_exclusion_has_words() -> None:
    assert set(_INELIGIBLE) == set(Ineligible)


def leave(*arguments: str) -> tuple[int, str]:
    """Run a command that is expected to end by itself."""
    done = subprocess.run(
        [sys.executable, "-m", "pointsman", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONWARNINGS": "error"},
    )
    return done.returncode, done.stderr


def test_a_disk_that_is_full_of_messages_keeps_nothing_from_starting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Full(StringIO):
        def flush(self) -> None:
            raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr(sys, "stderr", Full())
    say("API    http://127.0.0.1:8080/v1")
