"""What a policy is, and what several of them measure. How all choose among equals is in `pick`."""

from collections.abc import Sequence
from random import Random
from typing import Protocol

from pointsman.core.ids import NodeName
from pointsman.core.placement import Choice, Hold
from pointsman.core.request import Request
from pointsman.core.row import Row


class Policy(Protocol):
    """A way to choose among candidates. Rows are never empty."""

    @property
    def name(self) -> str: ...

    @property
    def prunes(self) -> bool:
        """Whether the holders of the longest prefixes and the least loaded nodes may stand
        for a large field; else every candidate is in `rows`."""
        ...

    def choose(self, request: Request, rows: Sequence[Row], rng: Random) -> Choice | Hold: ...

    def placed(self, request: Request, row: Row) -> None:
        """`row` was chosen and is booked: remember what the next choice needs."""
        ...

    def left(self, request: Request, node: NodeName) -> None:
        """`request` no longer runs on `node`, whichever policy placed it there."""
        ...

    def gone(self, node: NodeName) -> None:
        """`node` has left the cluster: what is remembered of it is void."""
        ...


class PolicyBase:
    """A policy that sees every candidate and remembers nothing: what is otherwise, it overrides."""

    prunes = False

    def placed(self, request: Request, row: Row) -> None: ...

    def left(self, request: Request, node: NodeName) -> None: ...

    def gone(self, node: NodeName) -> None: ...


def hit_ratio(row: Row) -> float:
    """The share of the prompt that is cached there."""
    return row.hit_tokens / (row.hit_tokens + row.new_tokens)


def load_share(row: Row) -> float:
    """How full a node is, 0 to 1: of its KV blocks leased, or of its concurrency limit in
    flight, whichever runs out first. What a router knows itself of an engine's utilisation."""
    return min(1.0, max(row.kv_share, row.inflight / row.concurrency_max))


_WAITING_FULL = 10  # for their first token


def waiting_share(row: Row) -> float:
    """How many wait there for their first token, 0 to 1, which ten are."""
    return min(1.0, row.waiting / _WAITING_FULL)
