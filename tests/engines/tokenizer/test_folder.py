"""A model's folder is read as transformers reads it; what is wrong with it is said."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from pointsman.engines.tokenizer import ModelTokenizer, Pieces, Unusable, folder
from pointsman.engines.tokenizer.fallback import Fallback, Inexact
from pointsman.wire.endpoints import Endpoint
from tests.support.tokenizers import byte_level, with_template, write_folder

HELLO = {"messages": [{"role": "user", "content": "hi"}]}


def load(path: Path, template: Path | None = None) -> ModelTokenizer:
    return folder.load(path, Pieces(1_000_000), template)


def text(path: Path, body: dict[str, Any] = HELLO, template: Path | None = None) -> str:
    """What is encoded of a chat."""
    tokens = load(path, template).tokens(Endpoint.CHAT, json.dumps(body).encode()).tokens
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    decoded: str = tokenizer.decode(list(tokens), skip_special_tokens=False)
    return decoded


def completion(path: Path, prompt: str, **body: Any) -> list[int]:
    data = json.dumps({"prompt": prompt, **body}).encode()
    return list(load(path).tokens(Endpoint.COMPLETIONS, data).tokens)


# --- templates ----------------------------------------------------------------------------


def test_the_template_stands_in_the_configuration(tmp_path: Path) -> None:
    write_folder(tmp_path)
    assert text(tmp_path) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_a_file_wins_and_an_option_wins_over_that(tmp_path: Path) -> None:
    write_folder(tmp_path / "m")
    (tmp_path / "m" / "chat_template.jinja").write_text("file")
    assert text(tmp_path / "m") == "file"
    (tmp_path / "own.jinja").write_text("option")
    assert text(tmp_path / "m", template=tmp_path / "own.jinja") == "option"


def test_requests_with_tools_have_a_template_of_their_own(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]
    write_folder(tmp_path, template=None, chat_template=named)
    assert text(tmp_path) == "d"
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert text(tmp_path, {**HELLO, "tools": tools}) == "t"
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("file")
    assert text(tmp_path, {**HELLO, "tools": tools}) == "file"


def test_special_tokens_have_either_form(tmp_path: Path) -> None:
    write_folder(tmp_path, template="{{ bos_token }}{{ eos_token }}{{ pad_token }}")
    assert text(tmp_path) == "<s></s>"
    old = {"pad_token": "<|im_end|>", "bos_token": "</s>"}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(old))
    assert text(tmp_path) == "<s></s><|im_end|>"


def test_a_model_without_a_template_serves_completions(tmp_path: Path) -> None:
    write_folder(tmp_path, template=None)
    with pytest.raises(Unusable, match="has no chat template"):
        load(tmp_path)
    made = folder.load(tmp_path, Pieces(0), chats=False)
    assert made.tokens(Endpoint.COMPLETIONS, b'{"prompt": "hi"}').tokens
    with pytest.raises(Inexact) as caught:
        made.tokens(Endpoint.CHAT, json.dumps(HELLO).encode())
    assert caught.value.cause is Fallback.OPTIONS


def test_other_routes_are_not_rendered(tmp_path: Path) -> None:
    with pytest.raises(Inexact) as caught:
        load(write_folder(tmp_path)).tokens(Endpoint.RESPONSES, b"{}")
    assert caught.value.cause is Fallback.ENDPOINT


# --- special tokens around prompts --------------------------------------------------------


def test_completions_get_the_tokenizers_special_tokens(tmp_path: Path) -> None:
    write_folder(tmp_path, with_template(byte_level()))
    plain = completion(tmp_path, "hi", add_special_tokens=False)
    assert completion(tmp_path, "hi") == [0, *plain, 1]


def test_only_the_file_decides_on_special_tokens(tmp_path: Path) -> None:
    """transformers 5 ignores these switches where there is a tokenizer.json."""
    write_folder(tmp_path, with_template(byte_level()), add_bos_token=False, add_eos_token=False)
    assert len(completion(tmp_path, "")) == 2


def test_tokens_of_the_configuration_are_added(tmp_path: Path) -> None:
    added = {"601": {"content": "<b>", "special": True}, "600": {"content": "<a>"}}
    write_folder(tmp_path, added_tokens_decoder=added)
    first, second = completion(tmp_path, "<a><b>")
    assert second == first + 1


# --- trouble ------------------------------------------------------------------------------


def test_a_good_folder_has_no_problem(tmp_path: Path) -> None:
    assert folder.problem(write_folder(tmp_path)) == ""


def test_problems_name_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert folder.problem(tmp_path / "x") == f"{tmp_path / 'x'} is no folder"
    assert "no tokenizer.json" in folder.problem(tmp_path)
    write_folder(tmp_path)
    assert "t.jinja is no file" in folder.problem(tmp_path, tmp_path / "t.jinja")
    monkeypatch.setattr(folder, "find_spec", lambda name: None)
    needed = "needs jinja2 and tokenizers: pip install 'pointsman[tokenizer]'"
    assert folder.problem(tmp_path) == needed
    with pytest.raises(Unusable, match="pip install"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("tokenizer.json", "{}", "is no tokenizer"),
        ("tokenizer_config.json", "[]", "cannot be read"),
        ("tokenizer_config.json", '{"a":' * 9_999, "cannot be read"),
        ("tokenizer_config.json", '{"chat_template": [{"name": "default"}]}', "`template`"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"7": {}}}', "`content`"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"x": {"content": ""}}}', "int"),
        ("chat_template.jinja", "{% for %}", "is no Jinja template"),
        ("config.json", '{"model_type": "gpt_oss"}', "give 'engine'"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, file: str, content: str, message: str) -> None:
    write_folder(tmp_path)
    (tmp_path / file).write_text(content)
    with pytest.raises(Unusable, match=message):
        load(tmp_path)


def test_a_template_that_is_no_text(tmp_path: Path) -> None:
    write_folder(tmp_path)
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(Unusable, match="cannot be read"):
        load(tmp_path)


def test_special_tokens_that_the_file_lacks_are_added(tmp_path: Path) -> None:
    write_folder(tmp_path, bos_token="<new>")
    assert len(completion(tmp_path, "<new>")) == 1


def test_nothing_is_imported_until_a_folder_is_loaded() -> None:
    """The extra may be absent, and costs 40 MB and half a second."""
    script = (
        "import sys, pointsman.cli.main, pointsman.cli.serve, pointsman.engines.tokenizer;"
        "print([name for name in ('jinja2', 'tokenizers', 'huggingface_hub')"
        " if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
