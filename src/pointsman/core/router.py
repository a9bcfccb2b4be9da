"""One request, all nodes, one answer: candidates, their costs, the policy's choice.

Reads everything, changes nothing but the rows it makes, so a dry run and a placement are the
same call.
"""

from collections.abc import Sequence
from math import inf
from random import Random

from pointsman.core.admission.held import HeldQueue
from pointsman.core.calibration import OutputLengths, TokenRatio
from pointsman.core.candidates import eligible, exclusions, matches, shortlist
from pointsman.core.cluster import Cluster
from pointsman.core.cost import add_held, costs
from pointsman.core.decision import Ineligible
from pointsman.core.errors import ANSWERS, Reason
from pointsman.core.footprint import Footprints
from pointsman.core.health import Health
from pointsman.core.ids import ModelName, NodeId
from pointsman.core.ledger import Ledger
from pointsman.core.limits import CERTAIN_SHARE, FLIGHTS_MAX, RETRY_AFTER_MAX_S, STARTING_S
from pointsman.core.node import Node
from pointsman.core.placement import Demand, Hold, Refusal, Route
from pointsman.core.policies.base import Policy
from pointsman.core.request import Request
from pointsman.core.residency import Levels, Residency, indexed_tokens
from pointsman.core.row import Row


class Router:
    """Borrows the scheduler's state; the scheduler books what comes of it."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        residency: Residency,
        ledger: Ledger,
        footprints: Footprints,
        lengths: OutputLengths,
        ratios: TokenRatio,
        held: HeldQueue,
    ) -> None:
        self._cluster = cluster
        self._residency = residency
        self._ledger = ledger
        self._footprints = footprints
        self._lengths = lengths
        self._ratios = ratios
        self._held = held

    def route(
        self,
        request: Request,
        demand: Demand,
        policy: Policy,
        rng: Random,
        *,
        now_s: float,
        tried: Sequence[NodeId],
        every_node: bool = False,
        ahead_max: int = FLIGHTS_MAX,
        again: bool = False,
    ) -> Route:
        """Where `request` should go. `every_node` costs candidates that cannot win, too.

        Of those that are held no more than `ahead_max` get room before it. One that failed and is
        tried `again` may wait inside an engine, and has waited for one before.
        """
        nodes = eligible(self._cluster, request, tried, demand.context_tokens)
        if not nodes:
            return Route(demand, (), 0, self._without_candidates(request, tried, demand, now_s))
        levels = self._residency.levels(nodes, request.prompt, demand.prompt_tokens)
        seen = nodes
        if policy.prunes and not every_node:
            seen = shortlist(nodes, levels, self._cluster.placements)
        rows = self._rows(seen, request, demand, levels, now_s=now_s)
        if ahead := min(self._held.as_urgent(request), ahead_max):
            add_held(rows, ahead * len(rows) / len(nodes))
        if again:
            for node, row in zip(seen, rows, strict=True):
                row.fits = self._ledger.account(node.id).fits(row.kv_blocks)
        if not levels:
            return Route(demand, rows, len(nodes), policy.choose(request, rows, rng))
        mask, tokens = levels[0]
        boundary = self._residency.boundary(nodes[0], request.prompt, demand.prompt_tokens, tokens)
        if boundary is not None:
            invested = self._residency.hot.invested(boundary, len(nodes), mask.bit_count(), now_s)
            if invested:
                self._invest(seen, rows, tokens, invested, now_s)
        answer = policy.choose(request, rows, rng)
        return Route(demand, rows, len(nodes), answer, boundary=boundary, boundary_tokens=tokens)

    def _rows(
        self,
        nodes: Sequence[Node],
        request: Request,
        demand: Demand,
        levels: Levels,
        *,
        now_s: float,
    ) -> list[Row]:
        """A row for each of `nodes`: what the request would cost there."""
        rows: list[Row] = []
        prompt, output, ledger = demand.prompt_tokens, demand.output_tokens, self._ledger
        footprints = self._footprints
        for node in nodes:
            indexed, restorable = indexed_tokens(node, levels), 0
            if node.restore_share:
                restorable = self._residency.restorable_tokens(node, request.prompt, indexed)
            row = costs(
                node,
                ledger,
                now_s,
                prompt=prompt,
                output=output,
                footprint=footprints.of(node, request.prompt, demand),
                indexed=indexed,
                restorable=restorable,
            )
            rows.append(row)
        return rows

    def _invest(
        self,
        nodes: Sequence[Node],
        rows: Sequence[Row],
        tokens: int,
        share: float,
        now_s: float,
    ) -> None:
        """Note what it takes to compute the first `tokens` of the prompt where they are not held,
        but for what the request itself has of it."""
        for node, row in zip(nodes, rows, strict=True):
            missing = tokens - row.hit_tokens
            if missing > 0:
                attention = missing * (tokens - missing / 2)
                known = node.calibration.counted_on(
                    now_s, idle=not node.inflight, tokens=row.new_tokens, attention=row.attention
                )
                _, token_s, pair_s = known.prefill.coefficients
                row.shared_s = share * (missing * token_s + attention * pair_s)

    def without_look(self, demand: Demand, answer: Hold | Refusal) -> Route:
        """An answer for which no node was looked at."""
        return Route(demand, (), 0, answer, looked=False)

    def demand(self, request: Request) -> Demand:
        """Prompt tokens, counted or estimated from its bytes, and the output expected."""
        prompt = request.prompt
        tokens = prompt.token_count
        if tokens is None:
            tokens = self._ratios.tokens(request.model, len(prompt.text))
            certain = int(tokens * CERTAIN_SHARE)
        else:
            certain = tokens
        output = self._lengths.expect(request.model, request.tenant, request.max_output_tokens)
        return Demand(tokens or 1, output, certain)

    def with_model(self, request: Request) -> Request:
        """A request that names no model means the only one served; one that gives a further name
        of a model shares the cache of the first."""
        if not request.model:
            request = request.meaning_one_of([card.name for card in self._cluster.models()])
        first = self._cluster.first_name(request.model)
        return request if first is None else request.cached_under(first)

    def retry_after_s(
        self, model: ModelName, reason: Reason, now_s: float, *, turn_s: float = 0.0
    ) -> float | None:
        """When it may be worth to come again: when its turn would have come, if it ever would,
        or the mean time until a node's prefills are done, not below the reason's floor; None
        where waiting does not help."""
        floor_s = ANSWERS[reason].retry_after_s
        if floor_s is None:
            return None
        nodes = self._cluster.serving(model)
        queue_s = sum(n.queue_ahead_s(now_s) for n in nodes) / len(nodes) if nodes else 0.0
        return min(RETRY_AFTER_MAX_S, max(floor_s, queue_s, 0.0 if turn_s == inf else turn_s))

    def is_contended(
        self, request: Request, demand: Demand, now_s: float, *, within_s: float
    ) -> bool:
        """Whether there are nodes for the request, and none would begin `within_s` with it."""
        ledger, footprints = self._ledger, self._footprints
        nodes = [node for node in self._cluster.serving(request.model) if matches(node, request)]
        for node in nodes:
            if node.inflight >= node.concurrency_max or node.queue_ahead_s(now_s) > within_s:
                continue
            needed = footprints.needed(node, request.prompt, demand)
            if node.runs_one_more(now_s) and ledger.account(node.id).fits(needed):
                return False
        return bool(nodes)

    def _without_candidates(
        self, request: Request, tried: Sequence[NodeId], demand: Demand, now_s: float
    ) -> Hold | Refusal:
        """Full is worth waiting for; wrong or absent is not."""
        cluster, nodes = self._cluster, self._cluster.nodes
        reasons = {
            exclusion.why
            for exclusion in exclusions(cluster, request, tried, demand.context_tokens)
        }
        if Ineligible.CONCURRENCY in reasons:
            return Hold("concurrency: every candidate is at its limit")
        if any(matches(node, request) for node in nodes):
            return Refusal(
                Reason.NO_NODE, f"No engine of model {request.model!r} that matches is up."
            )
        if cluster.knows(request.model):
            return Refusal(Reason.NO_MATCHING_NODE, _constraints(request))
        silent = [n for n in nodes if n.health is Health.JOINING and not n.spec.models]
        if silent:
            return Refusal(Reason.NO_NODE, _starting(silent, len(nodes), now_s))
        if not nodes:
            return Refusal(Reason.NO_NODE, "No engine is registered.")
        return Refusal(
            Reason.MODEL_NOT_FOUND,
            f"The model {request.model!r} does not exist. GET /v1/models lists what is served.",
        )


def _starting(silent: Sequence[Node], all_nodes: int, now_s: float) -> str:
    """Of engines that have yet to say what they serve: where to look if they never do."""
    if any(now_s - node.condition.since_s < STARTING_S for node in silent):
        return "Engines are still starting."
    return (
        f"No answer yet from {len(silent)} of {all_nodes} engines. The gateway's log says why, and "
        "so does GET /pointsman/v1/state on its admin port."
    )


def _constraints(request: Request) -> str:
    wanted = [f"{key}={value}" for key, value in request.labels]
    wanted += [f"zone={request.zone}"] if request.zone is not None else []
    wanted += [f"pool={request.pool}"] if request.pool is not None else []
    wanted += ["the response that it goes on from"] if request.home is not None else []
    return f"No engine of model {request.model!r} has {', '.join(wanted)}."
