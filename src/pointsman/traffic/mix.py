"""Mixed traffic: parts that come together, each with a source, a time and a priority of its own.

So a storm is a part that begins late and ends early, a long-context flood one with few and long
requests, and a step of the load a second part of the same kind.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec
from msgspec.structs import replace

from pointsman.traffic.request import TrafficRequest
from pointsman.traffic.source import Problem, Source

PARTS_MAX = 64
_IDS_APART = 1 << 40
"""Block ids of one part: more than any generator or trace counts to."""

_SEEDS_APART = 1_000_003

Priority = Annotated[int, msgspec.Meta(ge=-100, le=100)]


class Part(Source, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A source that begins at `start_s`. `tenant` and `priority` replace its requests' own. It
    shares no prefix and no session with other parts."""

    name: Annotated[str, msgspec.Meta(min_length=1)]
    start_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    tenant: str | None = None
    priority: Priority | None = None


def mixed(
    parts: Sequence[tuple[Part, tuple[TrafficRequest, ...]]],
) -> tuple[TrafficRequest, ...]:
    """One stream, in order of arrival, of each part's own."""
    every = [
        _of_part(part, place, request)
        for place, (part, requests) in enumerate(parts)
        for request in requests
    ]
    return tuple(sorted(every, key=lambda request: request.at_s))


def seed_of_part(seed: int, place: int) -> int:
    """Parts of one kind are not to send the same requests at the same moments."""
    return seed + place * _SEEDS_APART


def mix_problems(parts: Sequence[Part]) -> Iterator[tuple[int, Problem]]:
    """What is wrong between the parts, and with which of them."""
    for place, part in enumerate(parts):
        if Counter(each.name for each in parts[: place + 1])[part.name] > 1:
            yield place, Problem("name", f"'{part.name}' names another part already")


def _of_part(part: Part, place: int, request: TrafficRequest) -> TrafficRequest:
    first_id = place * _IDS_APART
    return replace(
        request,
        at_s=request.at_s + part.start_s,
        block_ids=tuple(first_id + block_id for block_id in request.block_ids),
        session=f"{part.name}/{request.session}" if request.session else "",
        tenant=request.tenant if part.tenant is None else part.tenant,
        priority=request.priority if part.priority is None else part.priority,
        part=part.name,
    )
