"""A scheduler that is told the same requests as another one, but knows their prompts as text
only, and of caches only what it has placed: what would it have decided?

It follows: each request is booked where the other one has sent it. So the two differ in what
they know of a prompt, and in nothing else.
"""

import time
from collections.abc import Sequence

from pointsman.core.decision import Decision
from pointsman.core.errors import EndCause
from pointsman.core.events import ModelCard
from pointsman.core.ids import ModelName
from pointsman.core.request import Outcome, Request
from pointsman.core.request_events import Arrived, Placed, Settled
from tests.support.cluster import Answer
from tests.support.driver import Driver


class TextTwin:
    """Of a cluster with `nodes`, all serving `model`."""

    def __init__(self, nodes: Sequence[str], model: str, **facts: object) -> None:
        self._driver = Driver()
        for node in nodes:
            self._driver.join(node, labels=(("node", node),))
            cards = (ModelCard(name=ModelName(model)),)
            self._driver.describe(node, models=cards, **facts)

    def decide(self, request: Request) -> Decision:
        """What it would do; changes nothing."""
        self._driver.now_s = time.monotonic()
        return self._driver.scheduler.explain(request, self._driver.now_s)

    def follow(self, request: Request, answer: Answer, took_s: float) -> None:
        """Book the request where it went, and what came of it."""
        there = request.but(labels=(("node", answer.node),))
        [placed] = self._driver.step(Arrived(there))
        assert isinstance(placed, Placed), placed
        self._driver.now_s += took_s
        outcome = Outcome(
            EndCause.FINISHED,
            ttft_s=took_s,
            decode_s=0.0,
            prompt_tokens=answer.prompt_tokens,
            output_tokens=int(answer.json["usage"]["completion_tokens"]),
            cached_tokens=answer.cached_tokens,
        )
        self._driver.step(Settled(request.id, outcome))
