"""A small request's way through service, scheduler and telemetry, in one process.

    python -m bench.micro_service [--rounds 15] [--profile]

What `pointsman serve` does besides HTTP: arrive, decide, deliver, record, settle, count; for
fresh prompts of 1 kB on two engines whose answers come whole. µs are CPU of one thread: the
median and the least of rounds. Machines are noisy; calls a request are not, so compare these
first. Goal: 40 us.
"""

import argparse
import cProfile
import gc
import pstats
import statistics
import sys
import time
from types import FrameType

from prometheus_client import CollectorRegistry

from bench.micro_decision import MODEL, Bench
from pointsman.control.service import SchedulerService
from pointsman.core.blocks import Prompt
from pointsman.core.errors import EndCause
from pointsman.core.ids import RequestId
from pointsman.core.request import Outcome, Request
from pointsman.core.request_events import Verdict
from pointsman.core.scheme import Namespace
from pointsman.telemetry.decisions import DecisionRing
from pointsman.telemetry.metrics import RequestMetrics
from tests.telemetry.records import STREAMED

REQUESTS = 2_000  # a round
INTERVAL_S = 0.0005
NAMESPACE = Namespace(MODEL)
STEM = b"You set the points. " * 50
OUTCOME = Outcome(
    EndCause.FINISHED, streamed=False, ttft_s=0.01, decode_s=0.0, prompt_tokens=250, output_tokens=4
)
RECORDED = STREAMED.but(node="n0", streamed=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--profile", action="store_true", help="show where the time goes")
    options = parser.parse_args()
    traffic = Traffic()
    traffic.run(REQUESTS)
    gc.collect()
    gc.freeze()
    rounds = [traffic.timed_us(REQUESTS) for _ in range(options.rounds)]
    print(f"request: median {statistics.median(rounds):5.1f} us   least {min(rounds):5.1f} us")
    print(f"request: {traffic.calls(REQUESTS):5.1f} calls")
    if options.profile:
        profile = cProfile.Profile()
        profile.runcall(traffic.run, REQUESTS)
        pstats.Stats(profile).sort_stats("tottime").print_stats(40)


class Traffic:
    """Requests of one gateway, each settled before the next arrives."""

    def __init__(self) -> None:
        bench = Bench(2, prompt_tokens=256)
        bench.fill(200)
        bench.finish_all()
        self._now_s = 100.0
        self._count = 0
        self._metrics = RequestMetrics(CollectorRegistry(), lambda: (MODEL,))
        self._service = SchedulerService(
            bench.scheduler,
            decisions=DecisionRing(),
            clock=lambda: self._now_s,
            observer=self._metrics,
        )

    def run(self, requests: int) -> None:
        """Serve so many."""
        service, metrics = self._service, self._metrics
        for _ in range(requests):
            self._now_s += INTERVAL_S
            self._count += 1
            prompt = Prompt(NAMESPACE, text=b"%b%0120d" % (STEM, self._count))
            request_id = RequestId(f"r{self._count}")
            request = Request(request_id, MODEL, prompt, max_output_tokens=16, stream=False)
            service.arrive(request, _ignore)
            service.settle(request_id, OUTCOME)
            metrics.exchange_ended(RECORDED)

    def timed_us(self, requests: int) -> float:
        """Microseconds of CPU of one request."""
        begin_s = time.thread_time()
        self.run(requests)
        return (time.thread_time() - begin_s) / requests * 1e6

    def calls(self, requests: int) -> float:
        """Calls of one request, Python's and C's."""
        count = 0

        def note(_frame: FrameType, event: str, _argument: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(note)
        try:
            self.run(requests)
        finally:
            sys.setprofile(None)
        return count / requests


def _ignore(_verdict: Verdict) -> None:
    """A gateway's part is measured elsewhere (bench.micro_relay)."""


if __name__ == "__main__":
    main()
