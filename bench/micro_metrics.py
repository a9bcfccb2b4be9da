"""Reading an engine's /metrics page. Goal: 300 us, so that 100 engines a second cost 3 % of a core.

python -m bench.micro_metrics
"""

from pathlib import Path

from bench.timing import median_us
from pointsman.wire.engine_metrics import read_metrics

RECORDINGS = Path(__file__).parents[1] / "tests" / "wire" / "data"


def main() -> None:
    for name in ("vllm_metrics.txt", "llamacpp_metrics.txt"):
        page = (RECORDINGS / name).read_bytes()
        us = median_us(lambda page=page: read_metrics(page))  # type: ignore[misc]  # mypy infers no lambda with defaults
        print(f"{name:24} {len(page):>7,} B {us:8.1f} us")


if __name__ == "__main__":
    main()
