"""Bodies of many tiny parts: what is read of them one by one is bounded, a prefix stays one."""

from typing import Any

import pytest

from pointsman.wire import canonical
from pointsman.wire.endpoints import Endpoint
from pointsman.wire.openai import read_request
from tests.wire.test_wire_openai import chat_bytes, read, user


def user_parts(count: int) -> list[Any]:
    return [user([{"type": "text", "text": str(number)} for number in range(count)])]


@pytest.mark.parametrize("turns", [3, 8, 9, 20, 50])
def test_many_turns_keep_their_prefix(turns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canonical, "PIECES_MAX", 32)
    messages = [user(f"turn {number}") for number in range(51)]
    known, longer = chat_bytes(messages[:turns]), chat_bytes(messages[: turns + 1])
    assert longer.startswith(known.removesuffix(b"]"))
    assert longer != known


def test_every_part_behind_the_bound_still_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canonical, "PIECES_MAX", 32)
    found = [chat_bytes(user_parts(count)) for count in range(100)]
    assert len(set(found)) == 100
    assert sorted(found, key=len) == found


@pytest.mark.parametrize(
    ("endpoint", "field", "part"),
    [
        (Endpoint.CHAT, "messages", b'{"role":"user","content":[{"type":"text","text":"a"}]}'),
        (Endpoint.RESPONSES, "input", b'{"role":"user","content":"a"}'),
        (Endpoint.SCORE, "text_2", b'"a"'),
    ],
)
def test_parts_read_one_by_one_are_bounded(
    endpoint: Endpoint, field: str, part: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canonical, "PIECES_MAX", 100)
    body = b'{"model":"m","query":"q","%b":[%b]}' % (field.encode(), b",".join([part] * 40_000))
    text = read_request(endpoint, body).prompt_text
    assert text is not None
    assert text.count(b'"a"') >= 40_000 - canonical.PIECES_MAX  # the rest, as it came: JSON


def test_a_reranking_of_many_counts_them_all() -> None:
    fields = read(Endpoint.RERANK, query="q", documents=["a"] * 50_000)
    assert fields.prompts == 50_000
