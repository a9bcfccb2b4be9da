"""What admission goes by: watermarks, shares, the order of the queue, the length of waits."""

from enum import StrEnum
from typing import Final

import msgspec

YELLOW_SHARE: Final = 0.8
RED_SHARE: Final = 0.9
"""Of the slots or KV blocks of a model's nodes. What is left above red is where the
urgent find room at once."""

URGENT_HEADROOM: Final = 0.25
"""Of what high priority holds, that is kept free for more of it: a burst of the urgent otherwise
waits until a request that runs is over, for memory is given back by nobody else. In an overload
with 20 % of high priority, and two prompts waiting on each node, their p99 to a first token was
1.16 times its usual with none, and 1.02 times with this."""

LOW_SHARE: Final = 0.2
"""What low priority may hold of the cluster while others need it."""

BACKLOG_S: Final = 0.1
BACKLOG_PREFILLS: Final = 1
"""Prompts without a first token on each node, in seconds of prefill and in number, at which the
cluster counts as full while there is urgent traffic: what is beyond it is better ordered here than
in an engine's own queue, where the urgent wait behind it. Where nobody is urgent it costs more
than it gives: twice the time to a first token just beyond capacity."""

URGENT_MEMORY_S: Final = 60.0
"""How long traffic counts as urgent after the last request of high priority."""

AGING_S: Final = 20.0
"""Waiting that counts as much as the next named priority: less than a client's patience."""

WAIT_FACTOR: Final = 3.0
WAIT_MIN_S: Final = 10.0
"""The wait that a queue may promise: three times as long as a request takes to run, or what a
burst of short ones needs. What would wait longer is told so at once (Little's law)."""

LONG_CONTEXT_TOKENS: Final = 65_536
LONG_CONTEXT_SHARE: Final = 0.5
"""Prompts of 64k tokens and more may hold half of a model's nodes, so that a flood of them leaves
the other half to the rest. A bound of 32k meets coding agents, whose prompts are mostly cached:
their mean time to a first token doubled, and the p95 of conversations was 1.9 times as long."""


FOOTPRINT_SAFETY = 1.2
"""Over what outputs hold on average: lengths are predictions. With outputs counted whole, which is
2.2, a quarter fewer ran at once in bench/scenarios/shared-memory.yaml, and none was put out either
way."""


class QueueOrder(StrEnum):
    """Who is next of those who wait."""

    FAIR = "fair"  # priority; then tenants and lengths take turns by tokens
    UTILITY = "utility"  # priority for the size


class AdmissionRules(msgspec.Struct, frozen=True, kw_only=True):
    """Who is let in while the cluster fills up, who waits, and in which order.

    yellow_share         of a model's nodes taken: low priority is held to its share from here on
    red_share            from here on what is new waits, and only high priority passes
    urgent_headroom      of what high priority holds, by which red begins earlier
    low_share            of the nodes that low priority may hold beyond yellow
    backlog_s            prefill work that a node may have waiting before it counts as full
    backlog_prefills     and prompts; both while there are urgent requests
    urgent_memory_s      how long there are, after the last one
    order                of the queue: fair (priority, tenants, lengths) or utility
    aging_s              seconds of waiting that count as much as the next named priority; 0 is
                         none. Nothing grows as old as high priority
    length_penalty       in the order by utility: the power of a request's size
    wait_factor          times its mean execution time that a request may expect to wait
    wait_min_s           seconds that it may expect to wait, however short executions are
    footprint_safety     times the output that a request is expected to hold on average, for which
                         KV blocks are reserved
    wait_for_nodes_s     seconds to wait where no node is up; 0 is not at all
    long_context_tokens  prompts of as many are very long
    long_context_share   of the nodes that very long prompts may hold
    long_context_pool    where very long prompts go, if it has nodes of their model; empty is none
    """

    yellow_share: float = YELLOW_SHARE
    red_share: float = RED_SHARE
    urgent_headroom: float = URGENT_HEADROOM
    low_share: float = LOW_SHARE
    backlog_s: float = BACKLOG_S
    backlog_prefills: int = BACKLOG_PREFILLS
    urgent_memory_s: float = URGENT_MEMORY_S
    order: QueueOrder = QueueOrder.FAIR
    aging_s: float = AGING_S
    length_penalty: float = 1.0
    wait_factor: float = WAIT_FACTOR
    wait_min_s: float = WAIT_MIN_S
    footprint_safety: float = FOOTPRINT_SAFETY
    wait_for_nodes_s: float = 0.0
    long_context_tokens: int = LONG_CONTEXT_TOKENS
    long_context_share: float = LONG_CONTEXT_SHARE
    long_context_pool: str = ""
