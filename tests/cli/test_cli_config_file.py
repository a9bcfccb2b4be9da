"""A configuration is checked as a whole, before anything starts."""

import os
from pathlib import Path

import pytest

from pointsman.cli import config_example, config_file, config_reference
from pointsman.cli.config import Config
from pointsman.cli.yaml_reader import FILE_BYTES_MAX, Problem, Rejected


def load(tmp_path: Path, text: str, environment: dict[str, str] | None = None) -> Config:
    path = tmp_path / "pointsman.yaml"
    path.write_text(text)
    return config_file.load(path, environment or {})


def problems(tmp_path: Path, text: str, environment: dict[str, str] | None = None) -> list[Problem]:
    with pytest.raises(Rejected) as rejected:
        load(tmp_path, text, environment)
    return rejected.value.problems


def test_example_is_valid_and_names_every_field(tmp_path: Path) -> None:
    example = config_example.example()
    assert load(tmp_path, example).engines[0].url == "http://127.0.0.1:8000"
    uncommented = "\n".join(
        line.replace("# ", "", 1) if _is_field(line) else line for line in example.splitlines()
    )
    assert load(tmp_path, uncommented).policy == "marginal_cost"


def _is_field(line: str) -> bool:
    stripped = line.strip()
    return (
        stripped.startswith("# ") and ": " in stripped and stripped[2:].split(":")[0].isidentifier()
    )


def test_every_field_is_described() -> None:
    example = config_example.example().splitlines()
    for number, line in enumerate(example):
        if _is_field(line):
            assert example[number - 1].strip().startswith("#"), line


def test_the_document_is_what_the_code_says() -> None:
    """Remedy: pointsman init --reference > docs/CONFIGURATION.md."""
    document = Path(__file__).parents[2] / "docs" / "CONFIGURATION.md"
    assert document.read_text() == config_reference.reference()
    for name in ("keys", "retries", "probe_failures_max", "tokens_per_minute"):
        assert name in document.read_text()


def test_all_problems_are_reported_with_line_and_column(tmp_path: Path) -> None:
    text = "listen:\n  hots: x\nengins: []\nengines:\n  - url: http://a:1\n    pool: [1]\n"
    assert problems(tmp_path, text) == [
        Problem(2, 3, "listen: unknown key 'hots'; did you mean 'host'?"),
        Problem(3, 1, "unknown key 'engins'; did you mean 'engines'?"),
        Problem(6, 11, "engines[0].pool is to be a single value"),
    ]


def test_one_look_finds_them_all(tmp_path: Path) -> None:
    """A typo in one place hides nothing in another."""
    text = (
        "listen: {hots: x, trusted_proxies: [here]}\n"
        "policy: round_robbin\n"
        "engines:\n"
        "  - {url: 'htp://a:1', api_key: 'a b', kv_events: here}\n"
        "  - {url: 'http://b:1'}\n"
        "  - {url: 'http://B:1/'}\n"
        "keys: [{name: a, hash: pm-mine}, {name: a, hash: pm-another}]\n"
    )
    assert [p.line for p in problems(tmp_path, text)] == [1, 1, 2, 4, 4, 4, 6, 7, 7, 7]


def test_a_duplicate_key_is_no_override(tmp_path: Path) -> None:
    text = "engines: []\nlog:\n  level: info\n  level: debug\n"
    assert problems(tmp_path, text) == [
        Problem(4, 3, "log: 'level' is given twice, first in line 3")
    ]


def test_an_unset_variable_stops_the_start(tmp_path: Path) -> None:
    text = "engines: []\nlisten:\n  api_keys: ['${KEY}']\n"
    found = problems(tmp_path, text)
    assert [(p.line, p.column) for p in found] == [(3, 14)]
    assert "KEY is not set" in found[0].message
    assert load(tmp_path, text, {"KEY": "s3cret"}).listen.api_keys == ("s3cret",)


def test_an_engines_key_is_one_that_a_header_can_carry_and_is_not_shown(tmp_path: Path) -> None:
    text = "engines:\n  - url: http://a:1\n    api_key: '${KEY}'\n"
    assert load(tmp_path, text, {"KEY": "s3cret"}).engines[0].api_key == "s3cret"
    text = "engines:\n  - url: http://a:1\n    api_key: s3 cret\n"
    assert problems(tmp_path, text) == [
        Problem(3, 14, "engines[0].api_key: it holds what no header can carry")
    ]


def test_variables_may_stand_for_numbers_and_have_defaults(tmp_path: Path) -> None:
    text = "engines: []\nlisten:\n  port: ${PORT}\nadmin:\n  port: ${ADMIN:-9001}\n"
    config = load(tmp_path, text, {"PORT": "9000"})
    assert (config.listen.port, config.admin.port) == (9000, 9001)


def test_a_word_that_yaml_takes_for_a_truth_value_needs_no_quotes(tmp_path: Path) -> None:
    config = load(tmp_path, "engines: []\nretries: {preemption: off}\n")
    assert config.retries.preemption == "off"


def test_a_dollar_can_be_written(tmp_path: Path) -> None:
    config = load(tmp_path, "engines: []\nlisten:\n  api_keys: ['a$${B}']\n")
    assert config.listen.api_keys == ("a${B}",)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("listen: {port: many}", "'many' is not a whole number"),
        ("listen: {port: 70000}", "70000 is above 65535"),
        ("listen: {port: true}", "True is not a whole number"),
        ("listen: {reply_headers: 1}", "1 is neither true nor false"),
        ("timeouts: {total_s: 0}", "0 is not above 0"),
        ("timeouts: {total_s: soon}", "'soon' is not a number"),
        ("log: {level: loud}", "'loud' is none of debug, error, info, warning"),
        ("log: {access: null}", "None is not text"),
        ("listen: 7", "listen is to be a mapping"),
        ("listen: {api_keys: a}", "listen.api_keys is to be a list"),
        ("policy: round_robbin", "did you mean 'round_robin'?"),
        ("admin: {port: 8080}", "8080 is listen.port too"),
        ("limits: {bodies_bytes_max: 1048576}", "is below limits.body_bytes_max"),
        ("timeouts: {body_gap_s: 700}", "is above timeouts.body_s"),
        ("listen: {keep_alive_comments_s: 0.1}", "is below 0.25"),
        ("retries: {budget_ratio: 1.5}", "1.5 is above 1"),
    ],
)
def test_a_bad_value_is_named(tmp_path: Path, value: str, message: str) -> None:
    found = problems(tmp_path, f"engines: []\n{value}\n")
    assert len(found) == 1
    assert found[0].line == 2
    assert message in found[0].message


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("10.0.0.7:8000", "did you mean http://10.0.0.7:8000?"),
        ("htp://a:1", "the scheme is 'htp'"),
        ("http://a:1/v1", "write http://a:1"),
        ("/models/llama", "is a path"),
        ("./llama", "is a path"),
        ("http://:80", "names no host"),
        ("http://a:99999", "Port out of range"),
        ("http://u:p@a:1", "no user or password"),
    ],
)
def test_a_typo_in_an_engine_url_is_named(tmp_path: Path, url: str, message: str) -> None:
    found = problems(tmp_path, f"engines:\n  - url: '{url}'\n")
    assert [(p.line, p.column) for p in found] == [(2, 10)]
    assert message in found[0].message


def test_engines_are_distinct(tmp_path: Path) -> None:
    first, second, third = (
        "  - url: http://a:1\n",
        "  - url: http://A:1/\n",
        "  - url: http://b:1\n",
    )
    text = f"engines:\n{first}{second}{third}    name: engine-1\n"
    assert [(p.line, p.message) for p in problems(tmp_path, text)] == [
        (3, "engines[1].url: http://a:1 is engines[0] already"),
        (5, "engines[2].name: 'engine-1' is the name of engines[0] already"),
    ]


def test_the_ranks_of_a_server_have_one_key(tmp_path: Path) -> None:
    ranks = [
        f"  - {{url: 'http://a:1#{rank}', api_key: '{key}'}}\n"
        for rank, key in enumerate(("k", "", "k", "j"))
    ]
    (found,) = problems(tmp_path, "engines:\n" + "".join(ranks))
    message = "engines[3].api_key: another entry for http://a:1 has another key"
    assert (found.line, found.message) == (5, message)


def test_a_file_without_engines_does_not_start(tmp_path: Path) -> None:
    assert "no engines" in problems(tmp_path, "policy: round_robin\n")[0].message
    assert "no engines" in problems(tmp_path, "")[0].message
    assert load(tmp_path, "engines: []\n").engines == ()


def test_what_is_not_yaml_is_named_with_its_place(tmp_path: Path) -> None:
    found = problems(tmp_path, "engines:\n  - url: [\n")
    assert found[0].message.startswith("not YAML")
    assert found[0].line == 3
    found = problems(tmp_path, "listen:\n  api_keys: [${KEY}]\n")
    assert (found[0].line, found[0].message.split()[-1]) == (2, '"${NAME}"')
    found = problems(tmp_path, "? [a, b]\n: c\nengines: []\n")
    assert found == [Problem(1, 3, "a key is to be a single word")]
    found = problems(tmp_path, "engines:\n\t- url: x\n")
    assert found[0].message.endswith("indent with spaces, not with tabs")
    assert problems(tmp_path, "engines: \x00")[0].message.startswith("not YAML")
    assert problems(tmp_path, "[" * 500)[0].message == "nested too deeply for a configuration"


def test_a_name_that_looks_like_a_number_is_text(tmp_path: Path) -> None:
    text = "engines:\n  - url: http://a:1\n    name: 7\n    labels: {gpu: 100, spot: 'yes'}\n"
    engine = load(tmp_path, text).engines[0]
    assert (engine.name, engine.labels) == ("7", {"gpu": "100", "spot": "yes"})


def test_a_large_file_is_not_read_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "large.yaml").write_bytes(b"#" * (FILE_BYTES_MAX + 1))
    with pytest.raises(Rejected, match="is larger than"):
        config_file.load(tmp_path / "large.yaml", {})


@pytest.mark.parametrize("path", ["pipe", "/dev/zero", "."])
def test_what_cannot_be_read_again_is_refused(tmp_path: Path, path: str) -> None:
    """A pipe would stop the process until somebody writes to it."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Rejected, match="is no regular file"):
        config_file.load(tmp_path / path, {})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(Rejected) as rejected:
        config_file.load(tmp_path / "none.yaml", {})
    assert "no such file" in rejected.value.problems[0].message
