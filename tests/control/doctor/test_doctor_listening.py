"""Which messages of a publisher are the examined engine's own."""

import pytest

from pointsman.control.doctor.listening import is_own
from pointsman.engines.adapters import EventSource


@pytest.mark.parametrize(
    ("announced", "topic", "own"),
    [
        (None, "", True),
        (None, "kv@10.0.0.1:8000@m", True),
        (None, "kv@10.0.0.1:8000@other", False),
        (None, "metrics@m", False),
        ("kv@a@m", "kv@a@m", True),
        ("kv@a@m", "kv@b@m", False),
        ("kv@a@m", "", False),
        ("", "", True),
        ("", "kv@a@m", False),
    ],
)
def test_a_topic_is_the_one_announced_or_else_one_of_its_models(
    announced: str | None, topic: str, own: bool
) -> None:
    source = EventSource("tcp://127.0.0.1:5557", None, announced)
    assert is_own(topic, source, {"m"}) is own
