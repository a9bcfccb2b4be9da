"""How urgent a request is, as configurations, heads and bodies say it. Larger is more urgent.

vLLM counts the other way, in its header and in a body's `priority`: lower is sooner. It takes
the first of its headers before the body, and passes over one that is no integer.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from pointsman.core.limits import PRIORITY_HIGH, PRIORITY_LOW, PRIORITY_MAX, PRIORITY_NORMAL

PRIORITY_HEADER: Final = "x-pointsman-priority"
"""From clients to the gateway; from the gateway to the fronts of agents, as it has decided."""

ENGINES_HEADER: Final = "x-vllm-priority"

_NAMED: Final[Mapping[str, int]] = MappingProxyType(
    {"high": PRIORITY_HIGH, "normal": PRIORITY_NORMAL, "low": PRIORITY_LOW}
)
_TIERS: Final[Mapping[str, int]] = MappingProxyType(
    {"priority": PRIORITY_HIGH, "flex": PRIORITY_LOW}
)
_INT64_MAX: Final = (1 << 63) - 1
"""What is larger breaks vLLM's own messages."""


def named_priority(value: str | int) -> int:
    """A priority by its name, or as it is."""
    return value if isinstance(value, int) else _NAMED[value]


def read_priority(value: str) -> int:
    """Of our own header: high, normal, low or an integer. Raises ValueError."""
    named = _NAMED.get(value.lower())
    return clamped(int(value)) if named is None else named


def read_engines_priority(value: str) -> int | None:
    """Of vLLM's header, as it counts; None if that is to be passed over."""
    try:
        number = int(value)
    except ValueError:
        return None
    return number if abs(number) <= _INT64_MAX else None


def body_priority(priority: int | None, service_tier: str | None) -> int:
    """Of a body: vLLM's field goes before OpenAI's."""
    if priority is not None:
        return clamped(-priority)
    return _TIERS.get(service_tier, PRIORITY_NORMAL) if service_tier else PRIORITY_NORMAL


def clamped(priority: int) -> int:
    return max(-PRIORITY_MAX, min(PRIORITY_MAX, priority))
