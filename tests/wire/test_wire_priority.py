"""How urgent a request is, as heads and bodies say it."""

import pytest

from pointsman.wire.priority import (
    body_priority,
    named_priority,
    read_engines_priority,
    read_priority,
)


@pytest.mark.parametrize(
    ("value", "priority"),
    [
        ("high", 10),
        ("NORMAL", 0),
        ("low", -10),
        ("7", 7),
        ("-7", -7),
        ("1000", 100),
        ("-1000", -100),
    ],
)
def test_our_header(value: str, priority: int) -> None:
    assert read_priority(value) == priority


@pytest.mark.parametrize("value", ["", "urgent", "1.5", "high, low", "9" * 5_000])
def test_what_our_header_cannot_say(value: str) -> None:
    with pytest.raises(ValueError, match="int"):
        read_priority(value)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        ("-5", -5),
        ("\xa0-5", -5),  # vLLM decodes heads as Latin-1, and int() takes blanks of all kinds
        ("-1_0", -10),
        ("-1000", -1_000),
        (str(2**63 - 1), 2**63 - 1),
        (str(2**63), None),
        ("-1.0", None),
        ("soon", None),
        ("", None),
    ],
)
def test_vllms_header_is_read_as_vllm_reads_it(value: str, number: int | None) -> None:
    assert read_engines_priority(value) == number


@pytest.mark.parametrize(
    ("field", "tier", "priority"),
    [
        (None, None, 0),
        (-5, None, 5),
        (3, "priority", -3),
        (-(10**30), None, 100),
        (None, "priority", 10),
        (None, "flex", -10),
        (None, "auto", 0),
    ],
)
def test_a_body(field: int | None, tier: str | None, priority: int) -> None:
    assert body_priority(field, tier) == priority


def test_a_priority_may_have_a_name() -> None:
    assert (named_priority("high"), named_priority(-3)) == (10, -3)
