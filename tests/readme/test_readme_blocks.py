"""Which commands of the README are run, and how."""

import pytest

from tests.readme.readme_blocks import Block, How, blocks
from tests.tidy.source_tree import ROOT


def test_every_bash_block_is_found() -> None:
    document = "a\n```bash\none\n```\nb\n```bash server port=9000\ntwo\n```\n```text\nno\n```\n"
    assert blocks(document) == [
        Block(2, "one\n"),
        Block(6, "two\n", How.SERVER, port=9000),
    ]


def test_a_server_stands_on_the_default_port() -> None:
    assert blocks("```bash server\nx\n```\n")[0].port == 8080


def test_a_block_is_skipped_only_with_a_reason() -> None:
    assert blocks("```bash skip: needs a GPU\nx\n```\n")[0].reason == "needs a GPU"
    for how in ("skip", "skip:", "skip: ", "Server", "server port=x"):
        with pytest.raises(ValueError, match="line 1"):
            blocks(f"```bash {how}\nx\n```\n")


def test_the_readme_hides_no_commands() -> None:
    """A block that shows a prompt or calls itself sh is not run: it has to be called bash."""
    text = (ROOT / "README.md").read_text()
    assert "```sh" not in text
    assert "```console" not in text
    assert "\n$ " not in text
