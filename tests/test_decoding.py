"""Whatever others send is decoded, or is one error."""

from typing import Any

import msgspec
import pytest

from pointsman.decoding import Undecodable, decoded, decoded_or_none

JSON = msgspec.json.Decoder(list[str | list[Any]]).decode
PACKED = msgspec.msgpack.Decoder(list[str]).decode


def test_what_is_as_declared_is_decoded() -> None:
    assert decoded(JSON, b'["a"]') == decoded_or_none(PACKED, bytearray(b"\x91\xa1a")) == ["a"]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "truncated"),
        (b"[1]", "Expected `str | array`, got `int`"),
        (b'["\xff"]', "Invalid UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_not_is_one_error(data: bytes, why: str) -> None:
    with pytest.raises(Undecodable, match=why):
        decoded(JSON, data)
    assert decoded_or_none(JSON, data) is None


def test_text_that_is_none_is_no_other_error_in_msgpack() -> None:
    assert decoded_or_none(PACKED, b"\x91\xa1\xff") is None
