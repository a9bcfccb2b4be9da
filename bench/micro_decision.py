"""A whole decision: admission, route, lease; then the credit of its prompt, which nobody waits
for, and the settlement.

    python -m bench.micro_decision [--nodes 5,25,64,100,1024]

For each fleet size an index of realistic fill, calibrated nodes with work on them, and prompts
of which a part is cached on some node. Times are CPU of one thread, in µs: p50 and p99 over
the decisions, p50 for the rest. Hashing the prompt is not in them: it is done once a request,
whatever the fleet's size.
"""

import argparse
import gc
import random
import time

from pointsman.core.blocks import Prompt
from pointsman.core.errors import EndCause
from pointsman.core.events import (
    Admitted,
    ModelCard,
    NodeDescribed,
    NodeFacts,
    NodeJoined,
    NodeSpec,
)
from pointsman.core.ids import ModelName, NodeName, RequestId
from pointsman.core.options import SchedulerOptions
from pointsman.core.request import Outcome, Request
from pointsman.core.request_events import Arrived, Placed, Settled, Started
from pointsman.core.scheduler import Scheduler
from pointsman.core.scheme import TEXT_SCHEME, Namespace
from pointsman.traffic.quantile import quantile
from tests.support.driver import teach

MODEL = ModelName("m")
BYTES_PER_TOKEN = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", default="5,25,64,100,1024", help="fleet sizes")
    parser.add_argument("--decisions", type=int, default=2_000, help="decisions a row")
    options = parser.parse_args()
    print(f"{'nodes':>6} {'prompt':>9} {'blocks':>9}   {'p50':>7} {'p99':>7}", end="   ")
    print(f"{'credit':>7} {'settle':>7}")
    for nodes in map(int, options.nodes.split(",")):
        _row(nodes, prompt_tokens=13_000, blocks=100_000, decisions=options.decisions)
    _row(1024, prompt_tokens=100_000, blocks=2_000_000, decisions=options.decisions // 4)


def _row(nodes: int, *, prompt_tokens: int, blocks: int, decisions: int) -> None:
    bench = Bench(nodes, prompt_tokens=prompt_tokens)
    bench.fill(blocks)
    gc.collect()
    gc.freeze()
    placed, credited, settled = map(sorted, bench.decide(decisions))
    p50, p99 = quantile(placed, 0.5), quantile(placed, 0.99)
    print(
        f"{nodes:>6} {prompt_tokens:>9,} {bench.blocks:>9,}   {p50:>7.1f} {p99:>7.1f}   "
        f"{quantile(credited, 0.5):>7.1f} {quantile(settled, 0.5):>7.1f}"
    )


class Bench:
    """A fleet with work on it, and prompts that share prefixes."""

    def __init__(self, nodes: int, *, prompt_tokens: int) -> None:
        self._rng = random.Random(nodes)
        self._prompt_bytes = prompt_tokens * BYTES_PER_TOKEN
        self._stems: list[bytes] = []
        self._count = 0
        self._open: list[RequestId] = []
        self.scheduler = Scheduler(SchedulerOptions(seed=1))
        facts = NodeFacts(models=(ModelCard(name=MODEL),), block_tokens=16, kv_blocks=200_000)
        for i in range(nodes):
            spec = NodeSpec(name=NodeName(f"n{i}"), url=f"http://n{i}")
            (admitted,) = self.scheduler.step(NodeJoined(spec), 0.0)
            assert isinstance(admitted, Admitted)
            self.scheduler.step(NodeDescribed(admitted.node_id, facts), 0.0)
        for node in self.scheduler._cluster.nodes:
            teach(node.calibration)

    @property
    def blocks(self) -> int:
        return sum(view.index_blocks for view in self.scheduler.nodes(0.0))

    def fill(self, blocks: int) -> None:
        """Serve prompts until the index holds `blocks`; leave a few requests on each node."""
        for _ in range(blocks // (self._prompt_bytes // TEXT_SCHEME.size)):
            stem = self._rng.randbytes(self._prompt_bytes // 2)
            self._stems.append(stem)
            self._finish(self._place(self._request(stem)))
        busy = 4 * len(list(self.scheduler._cluster.nodes))
        for _ in range(busy):
            self._open.append(self._place(self._request(self._rng.randbytes(1_000), pad=False)))

    def finish_all(self) -> None:
        """Let the fleet be idle."""
        for request_id in self._open:
            self._finish(request_id)
        self._open.clear()

    def decide(self, decisions: int) -> tuple[list[float], list[float], list[float]]:
        """Microseconds of each placement, credit and settlement."""
        placed_us, credited_us, settled_us = [], [], []
        for _ in range(decisions):
            request = self._request(self._rng.choice(self._stems))
            request.prompt.chain(TEXT_SCHEME)
            begin = time.thread_time_ns()
            self._place(request)
            placed_us.append((time.thread_time_ns() - begin) / 1_000)
            begin = time.thread_time_ns()
            self.scheduler.catch_up()
            credited_us.append((time.thread_time_ns() - begin) / 1_000)
            begin = time.thread_time_ns()
            self._finish(request.id)
            settled_us.append((time.thread_time_ns() - begin) / 1_000)
        return placed_us, credited_us, settled_us

    def _request(self, stem: bytes, *, pad: bool = True) -> Request:
        self._count += 1
        tail = self._rng.randbytes(self._prompt_bytes - len(stem)) if pad else b""
        prompt = Prompt(Namespace(MODEL), text=stem + tail)
        return Request(
            id=RequestId(f"r{self._count}"), model=MODEL, prompt=prompt, max_output_tokens=128
        )

    def _place(self, request: Request) -> RequestId:
        (effect,) = self.scheduler.step(Arrived(request), self._count * 0.002)
        assert isinstance(effect, Placed), effect
        return request.id

    def _finish(self, request_id: RequestId) -> None:
        now_s = self._count * 0.002
        self.scheduler.step(Started(request_id), now_s)
        outcome = Outcome(EndCause.FINISHED, streamed=True, ttft_s=0.5, decode_s=1.0)
        self.scheduler.step(Settled(request_id, outcome), now_s)


if __name__ == "__main__":
    main()
