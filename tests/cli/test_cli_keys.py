"""Keys are shown once, kept as hashes, and asked for wherever strangers could come in."""

import hashlib
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from pointsman.agent import LocalEngine
from pointsman.cli import config_example, config_file
from pointsman.cli.config import Config, Engine, Key, Listen
from pointsman.cli.main import main
from pointsman.cli.wiring import api_keys, gateway_options
from pointsman.cli.yaml_reader import Problem, Rejected
from pointsman.control.api_types import NewNode
from pointsman.control.doctor import Scope
from pointsman.core.admission.key_rules import KeyLimits, KeyRules
from pointsman.core.events import NodeSpec
from pointsman.core.ids import NodeName

HASH = "sha256:" + "ab" * 32


def run(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
    result = CliRunner().invoke(main, arguments, input=stdin)
    return result.exit_code, result.stdout, result.stderr


def load(tmp_path: Path, text: str) -> Config:
    path = tmp_path / "pointsman.yaml"
    path.write_text(text)
    return config_file.load(path, {})


def problems(tmp_path: Path, text: str) -> list[Problem]:
    with pytest.raises(Rejected) as rejected:
        load(tmp_path, text)
    return rejected.value.problems


def test_a_new_key_and_its_entry_belong_together(tmp_path: Path) -> None:
    code, out, _ = run("keys", "new", "team-a")
    assert code == 0
    key, entry = out.split("\n", 1)
    assert len(key) > 40
    (made,) = load(tmp_path, "engines: []\n" + entry).keys
    assert made.name == "team-a"
    assert made.hash == "sha256:" + hashlib.sha256(key.encode()).hexdigest()
    assert key not in entry
    assert run("keys", "new", "team-a")[1].split("\n")[0] != key


def test_a_key_of_ones_own_is_read_from_stdin() -> None:
    key = "my-own-key-with-enough-letters"
    code, out, _ = run("keys", "hash", "team-a", stdin=key + "\n")
    assert code == 0
    assert hashlib.sha256(key.encode()).hexdigest() in out
    assert key not in out


def test_a_key_that_is_typed_is_asked_for_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pointsman.cli.keys._is_terminal", lambda: True)
    key = "my-own-key-with-enough-letters"
    code, out, err = run("keys", "hash", "team-a", stdin=key + "\n")
    assert code == 0
    assert "The key:" in err
    assert out.startswith("keys:"), "the entry alone"
    assert hashlib.sha256(key.encode()).hexdigest() in out
    assert key not in out + err


def test_keys_that_can_be_guessed_and_names_that_are_none_are_refused() -> None:
    code, _, err = run("keys", "hash", "team-a", stdin="hunter2\n")
    assert code == 2
    assert "hunter2" not in err
    assert run("keys", "new", "team a")[0] == 2
    code, _, err = run("keys", "hash", "team-a", stdin="a-key-with\x1bsomething-odd\n")
    assert code == 2
    assert "what no header can carry" in err


def test_an_entry_is_checked_where_it_stands(tmp_path: Path) -> None:
    text = (
        "engines: []\n"
        "keys:\n"
        "  - name: a\n"
        "    hash: pm-a-key-by-mistake\n"
        f"  - {{name: a, hash: '{HASH}'}}\n"
        f"  - {{name: b, hash: '{HASH.upper().replace('SHA', 'sha')}'}}\n"
    )
    found = problems(tmp_path, text)
    assert [(p.line, p.column) for p in found] == [(4, 11), (5, 12), (6, 21)]
    assert "pointsman keys new NAME" in found[0].message
    assert "by-mistake" not in found[0].message
    assert "'a' is the name of keys[0] already" in found[1].message
    assert "is that of keys[1] already" in found[2].message


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("priority_max: urgent", "Invalid"),
        ("priority_max: 101", "<= 100"),
        ("requests_per_minute: 0", "0 is below 1"),
        ("rpm: 1", "unknown key 'rpm'"),
    ],
)
def test_a_bad_value_is_named_with_its_place(tmp_path: Path, field: str, message: str) -> None:
    text = f"engines: []\nkeys:\n  - name: a\n    hash: {HASH}\n    {field}\n"
    (found,) = problems(tmp_path, text)
    assert found.line == 5
    assert message in found.message


def test_every_rule_reaches_the_gateway() -> None:
    key = Key(
        name="a",
        hash=HASH,
        models=("m",),
        priority_max="low",
        requests_per_minute=1,
        tokens_per_minute=2,
        concurrency_max=3,
        names_tenants=True,
    )
    config = Config(keys=(key,), listen=Listen(api_keys=("plain",)))
    named, plain = api_keys(config)
    assert named.digest == b"\xab" * 32
    assert plain.digest == hashlib.sha256(b"plain").digest()
    assert plain.rules == KeyRules()
    assert named.rules == KeyRules(
        name="a",
        models=("m",),
        priority_max=-10,
        names_tenants=True,
        limits=KeyLimits(requests_per_minute=1, tokens_per_minute=2, concurrency_max=3),
    )
    assert not gateway_options(config).forwards_authorization
    assert "ab" * 4 not in repr(named)


def test_the_example_key_is_valid_when_it_is_uncommented(tmp_path: Path) -> None:
    example = config_example.example()
    found = re.search(r"^keys:\n((?:  # .*\n)+)", example, re.MULTILINE)
    assert found
    block = re.sub(r"^  # ", "  ", found[0], flags=re.MULTILINE)
    assert load(tmp_path, "engines: []\n" + block).keys[0].name == "team-a"
    fields = re.sub(r"^( +)# (?=\w+: (?!.*…))", r"\1", block, flags=re.MULTILINE)
    for name in Key.__struct_fields__:
        assert re.search(rf"^ +(- )?{name}: ", fields, re.MULTILINE), name


def test_a_plain_key_that_is_empty_is_refused(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, "engines: []\nlisten:\n  api_keys: ['', a]\n")
    assert (found.line, found.column) == (3, 14)


# --- strangers ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listen", "is_fine"),
    [
        (Listen(), True),
        (Listen(host="localhost"), True),
        (Listen(host="::1"), True),
        (Listen(host="0.0.0.0"), False),
        (Listen(host=""), False),
        (Listen(host="gateway.example"), False),
        (Listen(host="0.0.0.0", api_keys=("k",)), True),
        (Listen(host="0.0.0.0", open=True), True),
    ],
)
def test_strangers_come_in_only_where_that_is_said(listen: Listen, is_fine: bool) -> None:
    assert (config_file.openness_problem(Config(listen=listen)) == "") is is_fine


def test_check_names_the_open_door(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, "engines: []\nlisten:\n  host: 0.0.0.0\n")
    assert (found.line, found.column) == (3, 9)
    assert "pointsman keys new" in found.message


@pytest.mark.parametrize("command", [("serve", "--engine", "http://127.0.0.1:1"), ("up",)])
def test_an_open_door_stops_the_start(command: tuple[str, ...]) -> None:
    code, _, err = run(*command, "--host", "0.0.0.0", "--port", "0", "--admin-port", "0")
    assert code == 2
    assert "--open" in err


@pytest.mark.parametrize(
    "holder",
    [
        Config(
            listen=Listen(api_keys=("s3cret",)),
            engines=(Engine(url="http://h:1", api_key="s3cret"),),
        ),
        LocalEngine(
            url="http://h:1", spec=NodeSpec(name=NodeName("e"), url="http://h:1"), api_key="s3cret"
        ),
        NewNode(name=NodeName("e"), url="http://h:1", api_key="s3cret"),
        Scope(gateway_key="s3cret"),
    ],
)
def test_what_holds_keys_shows_none(holder: object) -> None:
    assert "s3cret" not in repr(holder)
