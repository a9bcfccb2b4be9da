"""One placed request: what was booked for it, and what is learned from its end."""

from typing import Final

from pointsman.core.calibration import OutputLengths, TokenRatio
from pointsman.core.errors import EndCause, FailureKind
from pointsman.core.events import IndexTrust
from pointsman.core.node import Node
from pointsman.core.placement import Attempt, Credit, Demand, Work
from pointsman.core.request import Outcome, Request
from pointsman.core.request_events import RecallCause
from pointsman.core.row import Row
from pointsman.core.self_check import Doubt

_FINISHED: Final = EndCause.FINISHED  # Python 3.11 takes 0.1 us to look an enum's member up

_DECODED_MIN: Final = 0.1
"""An answer that decoded for less than this share of the time between first byte and end says
nothing of decoding: what is left when the prefills between are taken off is their error."""


class Flight:
    """Owned by the scheduler from placement to settlement or failure."""

    __slots__ = (
        "attempt",
        "batch_at_start",
        "compensated",
        "credit",
        "demand",
        "first_token_due_s",
        "kv_at_start",
        "node",
        "placed_s",
        "predicted",
        "prefill_learned",
        "prefilled_attention_at_start",
        "prefilled_tokens_at_start",
        "queue_attention",
        "queue_tokens",
        "recall",
        "started_s",
        "work",
    )

    def __init__(
        self, attempt: Attempt, demand: Demand, node: Node, row: Row, now_s: float
    ) -> None:
        self.attempt = attempt
        self.demand = demand
        self.node = node
        self.predicted = row
        self.credit: Credit | None = None  # of its prompt's blocks, once that is caught up
        self.placed_s = now_s
        self.first_token_due_s = now_s + row.first_token_s
        self.started_s: float | None = None
        self.recall: RecallCause | None = None  # asked for, and not answered yet
        self.compensated = False  # what was booked for it is given back already
        self.prefill_learned = False
        share = row.queue_s / node.queue_s if node.queue_s > 0 else 0.0
        self.queue_attention = node.queue_attention * share
        self.queue_tokens = row.queue_tokens * share
        self.batch_at_start = self.kv_at_start = 0
        self.prefilled_tokens_at_start = 0
        self.prefilled_attention_at_start = 0.0
        self.work = Work(
            new_tokens=row.new_tokens,
            attention=row.attention,
            prefill_s=row.work_s,
            hit_share=row.hit_tokens / (row.hit_tokens + row.new_tokens),
            kv_tokens=demand.prompt_tokens + demand.output_tokens // 2,
            output_tokens=demand.output_tokens,
        )

    @property
    def request(self) -> Request:
        return self.attempt.request

    def next_attempt(self, kind: FailureKind) -> Attempt:
        """The same request, which failed like this, to be placed elsewhere."""
        before, node_id = self.attempt, self.node.id
        tried, avoided = (*before.tried, node_id), (*before.avoided, node_id)
        busy = before.busy + (kind is FailureKind.BUSY)
        return before.but(tried=tried, avoided=avoided, busy=busy)

    def recalled_attempt(self) -> Attempt:
        """The same request, taken back: to be placed anew, elsewhere if its node is in trouble but
        serves."""
        before, node = self.attempt, self.node
        avoided = before.avoided
        if self.recall is RecallCause.NODE_DOWN and node.serving and node.condition.is_stuck:
            avoided = (*avoided, node.id)
        return before.but(avoided=avoided, recalls=before.recalls + 1)

    def started(self, now_s: float) -> None:
        """The first byte is there. A second call changes nothing.

        While a node's speeds are not known, placing is blind to them, so its first requests tell
        its prefill speed at once, by the hit that was predicted: the engine's own count comes
        only with the end of the answer.
        """
        if self.started_s is not None:
            return
        if self.request.stream and not self.node.calibration.calibrated:
            self.prefill_learned = now_s > self.placed_s
            _observe_prefill(self, None, now_s - self.placed_s)
        self.started_s = now_s
        self.recall = None  # void: its first byte was sooner
        self.node.start(self.request.id, now_s)
        bound_s = self.request.slo_ttft_s
        if bound_s is not None and self.request.stream:
            self.node.slo_seen(now_s - self.attempt.arrived_s <= bound_s)
        self.batch_at_start, self.kv_at_start = self.node.inflight, self.node.kv_tokens
        self.prefilled_tokens_at_start = self.node.prefilled_tokens
        self.prefilled_attention_at_start = self.node.prefilled_attention

    def stalled_s(self, now_s: float) -> float:
        """How long it stood still for prefills of its node since it began to stream, by the speeds
        as known now: when those were placed there may have been none."""
        node = self.node
        tokens = node.prefilled_tokens - self.prefilled_tokens_at_start
        attention = node.prefilled_attention - self.prefilled_attention_at_start
        return node.calibration.in_force.work_s(tokens, attention) + node.head_took_s(now_s)

    def prefilled(self, outcome: Outcome) -> bool:
        """Whether the node prefilled the prompt, as far as can be known."""
        return self.started_s is not None or outcome.end is _FINISHED


def check_hits(flight: Flight, outcome: Outcome) -> bool:
    """Compare the hit that was foretold with the engine's own count, of every answer. Whether
    the node's events may no longer be believed."""
    if outcome.cached_tokens is None or outcome.prompt_tokens is None:
        return False
    node, is_text = flight.node, flight.request.prompt.token_count is None
    is_exact = node.trust is IndexTrust.EXACT
    node.hits.observe(
        indexed_tokens=flight.predicted.index_hit_tokens,
        reported_tokens=outcome.cached_tokens,
        prompt_tokens=outcome.prompt_tokens,
        block_tokens=node.block_tokens,
        from_text=is_text,
        from_events=is_exact,
    )
    return is_exact and node.hits.doubt is not Doubt.NONE


def learn(
    flight: Flight, outcome: Outcome, lengths: OutputLengths, ratios: TokenRatio, now_s: float
) -> None:
    """Take from a finished request what the next prediction needs: a sample of requests is
    enough, and learning from each would take longer than placing it."""
    node = flight.node
    if outcome.end is not _FINISHED or not node.takes_sample(now_s):
        return
    request = flight.request
    if outcome.prompt_tokens is not None:
        if request.prompt.token_count is None and request.prompt.text:
            ratios.observe(request.model, len(request.prompt.text), outcome.prompt_tokens)
        if outcome.cached_tokens is not None:
            node.hits.learn(
                foretold_tokens=flight.predicted.index_hit_tokens,
                found_tokens=outcome.cached_tokens,
                block_tokens=node.block_tokens,
            )
    output = outcome.output_tokens
    if output is None:
        output = outcome.streamed_tokens
    if output > 0:
        lengths.observe(request.model, request.tenant, output)
    if outcome.streamed and not _came_at_once(outcome):
        _learn_from_stream(flight, outcome, output, now_s)
    else:
        _learn_from_whole(flight, outcome, output)
    node.calibration.confirmed(now_s)


def _came_at_once(outcome: Outcome) -> bool:
    """Whether most of a stream came with its first byte: a proxy has held it back, or this process
    had no time to read. It seems to be decoded in no time."""
    return 2 * outcome.first_tokens > max(outcome.streamed_tokens, 2)


def _learn_from_stream(flight: Flight, outcome: Outcome, output_tokens: int, now_s: float) -> None:
    """First byte and end are both seen: prefill and decode speeds are told apart."""
    if outcome.ttft_s is not None and not flight.prefill_learned:
        _observe_prefill(flight, outcome, outcome.ttft_s)
    if outcome.decode_s is not None and output_tokens > 1:
        decoding_s = outcome.decode_s - flight.stalled_s(now_s)
        share = decoding_s / outcome.decode_s if outcome.decode_s > 0 else 0.0
        if share >= _DECODED_MIN:
            step_s = decoding_s / _decoded_tokens(outcome, output_tokens)
            _observe_decode(flight, step_s, _weight(share))


def _decoded_tokens(outcome: Outcome, output_tokens: int) -> float:
    """How many were decoded after the first byte, which may have come with several."""
    if outcome.first_tokens < 2:
        return output_tokens - 1
    return output_tokens * (1 - outcome.first_tokens / outcome.streamed_tokens)


def _weight(share: float) -> float:
    """What the sample of an answer counts that decoded for this share of its time. The rest is
    prefills, foreseen too long by a tenth or so: the less is left, the more of that error."""
    decoded, stalled = share**4, (1.0 - share) ** 4
    return decoded / (decoded + stalled)


def _learn_from_whole(flight: Flight, outcome: Outcome, output_tokens: int) -> None:
    """Only the sum is seen, so both parts are taken to be off by the same factor."""
    predicted_s = flight.predicted.first_token_s + flight.predicted.decode_s
    if outcome.ttft_s is None or predicted_s <= 0:
        return
    factor = (outcome.ttft_s + (outcome.decode_s or 0.0)) / predicted_s
    _observe_prefill(flight, outcome, factor * flight.predicted.first_token_s)
    if output_tokens > 1 and flight.demand.output_tokens > 0:
        step_s = factor * flight.predicted.decode_s / flight.demand.output_tokens
        _observe_decode(flight, step_s, 1.0)


def _observe_prefill(flight: Flight, outcome: Outcome | None, ttft_s: float) -> None:
    """Learn from the engine's own counts where it has given some, else from the predicted ones."""
    prompt, cached = flight.demand.prompt_tokens, None
    if outcome is not None:
        prompt, cached = outcome.prompt_tokens or prompt, outcome.cached_tokens
    if cached is None:
        cached = prompt - min(prompt, flight.work.new_tokens)
    new = max(1, prompt - cached)
    flight.node.calibration.observe_prefill(
        tokens_ahead=flight.queue_tokens,
        tokens_own=new,
        attention_ahead=flight.queue_attention,
        attention_own=new * (prompt - new / 2),
        ttft_s=ttft_s,
    )


def _observe_decode(flight: Flight, step_s: float, weight: float) -> None:
    """Batch and resident tokens are the means of what was there at the start, if that was
    seen, and at the end, when the request itself is already off its node's books. What is more
    than the engine runs at once was no part of the batch."""
    node = flight.node
    batch, kv_tokens = node.inflight + 1.0, float(node.kv_tokens + flight.work.kv_tokens)
    if flight.started_s is not None:
        batch = (batch + flight.batch_at_start) / 2
        kv_tokens = (kv_tokens + flight.kv_at_start) / 2
    batch = min(batch, node.running_max)
    node.calibration.observe_decode(
        batch_mean=batch, kv_tokens_mean=kv_tokens, step_s=step_s, weight=weight
    )
