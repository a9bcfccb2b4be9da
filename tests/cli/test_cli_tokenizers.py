"""Tokenizers in a configuration: what is wrong with them is found before anything starts."""

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from prometheus_client.registry import CollectorRegistry

from pointsman.cli.config import Config, Limits, Model
from pointsman.cli.main import main
from pointsman.cli.tokenizers import Tokenizers
from pointsman.core.ids import ModelName
from pointsman.core.scheduler import Scheduler
from pointsman.engines.tokenizer import folder
from pointsman.wire.endpoints import Endpoint
from tests.support.tokenizers import write_folder


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, arguments)
    return result.exit_code, result.stdout, result.stderr


def check(tmp_path: Path, *models: str) -> tuple[int, str]:
    """`pointsman check` of a file with these entries; its code and what it prints."""
    file = tmp_path / "p.yaml"
    entries = "".join(f"  - {{name: m{number}, {each}}}\n" for number, each in enumerate(models))
    file.write_text(f"engines:\n  - url: http://a:1\nmodels:\n{entries}")
    code, out, err = run("check", str(file))
    return code, (out + err).replace(f"{file}:", "").strip()


def test_good_tokenizers_are_ok(tmp_path: Path) -> None:
    model = write_folder(tmp_path / "model")
    bare = write_folder(tmp_path / "bare", template=None)
    code, said = check(
        tmp_path,
        f"tokenizer: {model}",
        "tokenizer: engine",
        f"tokenizer: {bare}, chat_template: none",
    )
    assert (code, said) == (0, "ok: 1 engine, policy marginal_cost, 3 with a tokenizer")


def test_a_folder_that_is_not_there_is_named_with_its_place(tmp_path: Path) -> None:
    code, said = check(tmp_path, "tokenizer: /nowhere/model")
    assert (code, said) == (2, "4:27: models[0].tokenizer: /nowhere/model is no folder")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("tokenizer: {0}/empty", "{0}/empty has no tokenizer.json"),
        ("tokenizer: {0}/bare", "{0}/bare has no chat template; name its file in chat_template"),
        ("tokenizer: {0}/model, chat_template: {0}/x.jinja", "{0}/x.jinja is no file"),
        ("tokenizer: {0}/broken", "is no Jinja template"),
        ("tokenizer: engine, chat_template: x", "leave chat_template out"),
        ("tokeniser: x", "unknown key 'tokeniser'; did you mean 'tokenizer'?"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, entry: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    write_folder(tmp_path / "bare", template=None)
    write_folder(tmp_path / "model")
    write_folder(tmp_path / "broken", template="{% for %}")
    code, said = check(tmp_path, entry.format(tmp_path))
    assert code == 2
    assert message.format(tmp_path) in said


def test_two_tokenizers_for_one_model(tmp_path: Path) -> None:
    file = tmp_path / "twice.yaml"
    file.write_text("engines: []\nmodels:\n" + "  - {name: m, tokenizer: engine}\n" * 2)
    code, _, err = run("check", str(file))
    assert (code, err) == (2, f"{file}:4:12: models[1].name: 'm' is models[0] already\n")


def test_without_the_extra_the_remedy_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_folder(tmp_path / "model")
    monkeypatch.setattr(folder, "find_spec", lambda name: None)
    code, said = check(tmp_path, f"tokenizer: {model}")
    assert code == 2
    assert "pip install 'pointsman[tokenizer]'" in said
    code, said = check(tmp_path, "tokenizer: engine")
    assert code == 0


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("m", "give MODEL=DIR"),
        ("=x", "give MODEL=DIR"),
        ("m=/nowhere", "/nowhere is no folder"),
    ],
)
def test_serve_refuses_what_cannot_work(option: str, message: str) -> None:
    code, _, err = run("serve", "--engine", "http://127.0.0.1:1", "--tokenizer", option)
    assert code == 2
    assert message in err


def test_serve_does_not_start_with_a_broken_tokenizer(tmp_path: Path) -> None:
    model = write_folder(tmp_path / "model")
    (model / "tokenizer.json").write_text("{}")
    engine = ("--engine", "http://127.0.0.1:1")
    options = ("--port", "0", "--admin-port", "0", "--access-log", "none")
    code, _, err = run("serve", *engine, *options, "--tokenizer", f"m={model}")
    assert code == 2
    assert "the tokenizer of m:" in err
    assert "is no tokenizer" in err


@pytest.mark.parametrize("bytes_max", [0, 4_000])
async def test_what_is_remembered_keeps_within_its_bytes(tmp_path: Path, bytes_max: int) -> None:
    """`limits.tokenizer_bytes_max`: at the bound the oldest texts go, and all are still encoded."""
    config = Config(
        models=(Model("m", str(write_folder(tmp_path / "model"))),),
        limits=Limits(tokenizer_bytes_max=bytes_max),
    )
    tokenizers = Tokenizers(config, Scheduler(), CollectorRegistry())
    counts = []
    try:
        for number in range(40):
            assert await encoded(tokenizers, f"the train of {number} o'clock is late again")
            state = tokenizers.state()
            assert state.pieces_bytes <= bytes_max
            counts.append(state.pieces)
    finally:
        await tokenizers.close()
    assert max(counts) == counts[-1] < 40, "it is full long before the end"
    assert bool(counts[-1]) is bool(bytes_max)


async def encoded(tokenizers: Tokenizers, text: str) -> object:
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    assert tokenizers.service is not None
    ids: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    tokenizers.service.tokenize(
        ModelName("m"), Endpoint.CHAT, json.dumps(body).encode(), ids.set_result
    )
    return await ids
