"""Our `dynamo` beside NVIDIA's own selector, on the same states.

`SelectionService` of ai-dynamo-runtime keeps books of its own: it is asked for its loads and
overlaps, rows are made of them, and what it then selects must be among the nodes that our
formula likes best (it draws lots among equals). Needs the extra `peers-check`:

    pip install -e '.[dev,peers-check]' && pytest tests/core/policies/test_dynamo_itself.py -rs

Seen to agree with release 1.6.1.
"""

import os
from random import Random
from typing import Any

import pytest

from pointsman.core.ids import NodeName
from pointsman.core.policies.dynamo import Dynamo
from pointsman.core.request import Request
from pointsman.core.row import Row
from tests.support.driver import request
from tests.support.rows import row

os.environ.setdefault("DYN_USE_KV_EVENTS", "false")  # its cache index learns from its choices
os.environ.setdefault("DYN_LOG", "error")

core = pytest.importorskip(
    "dynamo._core",
    reason="NOT CHECKED against Dynamo itself: ai-dynamo-runtime is not installed "
    "(extra peers-check); only the hand-computed numbers of test_dynamo.py hold",
)

BLOCK_TOKENS = 16
WORKERS = 4
STEPS = 150


class Peer:
    """Dynamo's selector and our policy, told the same."""

    def __init__(self) -> None:
        self.service = core.SelectionService(indexer_threads=1)
        self.ours = Dynamo()
        self.prefilling: list[tuple[str, Request, NodeName]] = []
        self.decoding: list[tuple[str, Request, NodeName]] = []

    async def start(self) -> None:
        for worker in range(WORKERS):
            await self.service.upsert_worker(
                {
                    "worker_id": worker,
                    "endpoint": f"http://127.0.0.1:{9_000 + worker}",
                    "block_size": BLOCK_TOKENS,
                    "data_parallel_start_rank": 0,
                    "data_parallel_size": 1,
                }
            )

    async def rows(self, tokens: list[int]) -> list[Row]:
        """Candidates as Dynamo itself sees them: its queues, and its cache index."""
        overlaps = await self.service.overlap_scores({"token_ids": tokens})
        hit = {w["worker_id"]: BLOCK_TOKENS * w["device_blocks"] for w in overlaps["workers"]}
        return [
            row(
                str(load["worker_id"]),
                hit=hit[load["worker_id"]],
                prompt=len(tokens),
                queue_tokens=load["potential_prefill_tokens"],
                block_tokens=BLOCK_TOKENS,
            )
            for load in self.loads()
        ]

    def loads(self) -> list[Any]:
        loads: list[Any] = self.service.loads()[0]["loads"]
        return loads

    async def arrive(self, request_id: str, tokens: list[int]) -> None:
        """Both choose; the request goes where Dynamo wants it."""
        asked, rows = request(request_id, "", tokens=tokens), await self.rows(tokens)
        self.ours.choose(asked, rows, Random(0))
        answer = await self.service.select_and_reserve(
            {"selection_id": request_id, "token_ids": tokens}
        )
        scores = {candidate.node: candidate.score for candidate in rows}
        theirs = NodeName(str(answer["worker_id"]))
        assert scores[theirs] == min(scores.values()), (theirs, scores, self.loads())
        self.ours.placed(asked, next(c for c in rows if c.node == theirs))
        self.prefilling.append((request_id, asked, theirs))

    async def end_prefill(self) -> None:
        flight = self.prefilling.pop(0)
        await self.service.prefill_complete(flight[0])
        self.decoding.append(flight)

    async def finish(self, index: int) -> None:
        request_id, asked, node = self.decoding.pop(index)
        await self.service.free_reservation(request_id)
        self.ours.left(asked, node)


@pytest.mark.parametrize("seed", range(4))
async def test_dynamo_selects_what_our_formula_likes_best(seed: int) -> None:
    rng, peer = Random(seed), Peer()
    await peer.start()
    stems = [[rng.randrange(50_000) for _ in range(16 * n)] for n in (4, 10, 40)]
    for step in range(STEPS):
        tail = [rng.randrange(50_000) for _ in range(rng.randrange(1, 400))]
        await peer.arrive(f"{seed}-{step}", rng.choice([*stems, []]) + tail)
        while peer.prefilling and rng.random() < 0.6:
            await peer.end_prefill()
        while peer.decoding and rng.random() < 0.5:
            await peer.finish(rng.randrange(len(peer.decoding)))
    peer.service.shutdown()
