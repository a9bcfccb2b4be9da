"""Admission in the configuration: who comes in while the cluster fills up, and who waits how."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from pointsman.core.admission_rules import AdmissionRules

Share = Annotated[float, Meta(gt=0, le=1)]

_RULES = AdmissionRules()


class Admission(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Shares are of the nodes that could serve a request: of their slots (concurrency_max) or of
    their KV blocks, whichever runs out first."""

    yellow_share: Annotated[
        Share,
        Meta(
            description="From here on low priority is held to its share. Lower keeps more room for "
            "the rest, and refuses batch work while there still is some."
        ),
    ] = _RULES.yellow_share
    red_share: Annotated[
        Share,
        Meta(
            description="From here on only high priority passes, and the rest waits in the queue. "
            "What is above it is free for the urgent; 1 keeps nothing free for them."
        ),
    ] = _RULES.red_share
    urgent_headroom: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="Of what high priority holds, how much is kept free for more of it, on top "
            "of what is above red. More serves its bursts at once, and leaves more unused.",
        ),
    ] = _RULES.urgent_headroom
    low_share: Annotated[
        float,
        Meta(ge=0, le=1, description="What low priority may hold while more than yellow is taken."),
    ] = _RULES.low_share
    backlog_s: Annotated[
        float,
        Meta(
            gt=0,
            le=3_600,
            description="Seconds of prompts waiting on each engine, from which on the rest waits "
            "here, in order, while anybody is urgent. Lower lets the urgent begin sooner; too low "
            "leaves engines without work between two requests.",
        ),
    ] = _RULES.backlog_s
    backlog_prefills: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000,
            description="Prompts waiting on each engine that it takes beside that: fewer do not "
            "count, however long they are.",
        ),
    ] = _RULES.backlog_prefills
    urgent_memory_s: Annotated[
        float,
        Meta(
            ge=0,
            le=86_400,
            description="Seconds after the last request of high priority for which others are "
            "still kept waiting like this. With 0 engines' own queues fill up between two of them.",
        ),
    ] = _RULES.urgent_memory_s
    order: Annotated[
        Literal["fair", "utility"],
        Meta(
            description="Who is next in the queue. By 'fair' the most urgent, and of equals "
            "tenants and lengths take turns by tokens. By 'utility' the most priority for the "
            "size, which is best for the mean and lets the long wait."
        ),
    ] = "fair"
    aging_s: Annotated[
        float,
        Meta(
            ge=0,
            le=86_400,
            description="Seconds of waiting that count as much as the next named priority (10); 0 "
            "is none, and low priority may starve. Nobody grows as urgent as high by waiting.",
        ),
    ] = _RULES.aging_s
    length_penalty: Annotated[
        float,
        Meta(
            ge=0,
            le=4,
            description="In the order by utility: the power of a request's tokens that its "
            "priority is divided by. 0 lets length not count.",
        ),
    ] = _RULES.length_penalty
    footprint_safety: Annotated[
        float,
        Meta(
            ge=1,
            le=4,
            description="Times the output that a request is expected to hold on average, for which "
            "KV blocks are reserved beside its prompt's. More leaves memory unused; less lets "
            "engines run out of it, which then put requests out and compute them again.",
        ),
    ] = _RULES.footprint_safety
    wait_factor: Annotated[
        float,
        Meta(
            gt=0,
            le=1_000,
            description="Times the mean execution time that a request may expect to wait; one that "
            "would wait longer gets 429 at once. Longer queues serve bursts, and late.",
        ),
    ] = _RULES.wait_factor
    wait_min_s: Annotated[
        float,
        Meta(
            ge=0,
            le=86_400,
            description="Seconds that it may expect to wait however short executions are. "
            "timeouts.queue_s bounds both.",
        ),
    ] = _RULES.wait_min_s
    wait_for_nodes_s: Annotated[
        float,
        Meta(
            ge=0,
            le=3_600,
            description="Seconds that a request waits where no engine is up, for a cluster that is "
            "scaled to zero; 0 answers 503 at once.",
        ),
    ] = _RULES.wait_for_nodes_s
    long_context_tokens: Annotated[
        int,
        Meta(ge=1, le=1 << 30, description="Prompts of so many tokens are very long."),
    ] = _RULES.long_context_tokens
    long_context_share: Annotated[
        Share,
        Meta(
            description="What very long prompts may hold together; more of them wait. Lower leaves "
            "more to the rest in a flood of them."
        ),
    ] = _RULES.long_context_share
    long_context_pool: Annotated[
        str,
        Meta(
            description="The pool that very long prompts go to, where it has engines of their "
            "model, and then all of it. Default: none, they go anywhere."
        ),
    ] = _RULES.long_context_pool
