"""What one request costs in metrics, decision ring and access log. Bar: 10 us in all.

python -m bench.micro_telemetry
"""

import io
from typing import BinaryIO, cast

from prometheus_client import CollectorRegistry, generate_latest

from bench.timing import median_us
from pointsman.telemetry.access_log import AccessLog
from pointsman.telemetry.decisions import DecisionRing
from pointsman.telemetry.metrics import RequestMetrics
from tests.support.rows import row
from tests.telemetry.records import STREAMED, decision


class _Nowhere(io.RawIOBase):
    def write(self, data: object) -> int:
        return len(data)  # type: ignore[arg-type]  # always a memoryview

    def writable(self) -> bool:
        return True


class _UnarmedLog(AccessLog):
    """Without a loop: lines are flushed by size alone."""

    def note(self) -> None:
        self._buffer += self._encode(self._line(STREAMED)) + b"\n"
        if len(self._buffer) > 200_000:
            self.flush()


def main() -> None:
    registry = CollectorRegistry()
    metrics = RequestMetrics(registry, lambda: {STREAMED.model})
    ring = DecisionRing()
    one = decision("x", candidates=(row("n"),) * 8)
    log = _UnarmedLog(cast("BinaryIO", _Nowhere()))
    costs = {
        "metrics of a finished request": median_us(lambda: metrics.exchange_ended(STREAMED)),
        "a decision's own time": median_us(lambda: metrics.decided(40e-6)),
        "decision ring": median_us(lambda: ring.record(one)),
        "access line": median_us(log.note),
    }
    for name, us in costs.items():
        print(f"{name:<32} {us:7.2f} us")
    print(f"{'together':<32} {sum(costs.values()):7.2f} us")
    print(f"{'a scrape of /metrics':<32} {median_us(lambda: generate_latest(registry)):7.0f} us")


if __name__ == "__main__":
    main()
