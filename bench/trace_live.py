"""A real trace, replayed live through `pointsman up`: policies side by side in one run.

    python -m bench.trace_live [--trace FILE] [--requests 600] [--engines 8] [--html FILE]

Engines and arrivals are sped up together, so the load is `--load` times that of the trace on
real-time engines. What is printed beside the report: each policy's hit ratio against the best
that one pooled LRU cache of the engines' total KV size could do in order of arrival.
"""

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from pointsman.cli.trace_file import read_trace_file
from pointsman.traffic.ideal import bounded_hit_ratio, ideal_hit_ratio

TRACE = Path(__file__).parents[2] / "shared/traces/mooncake_conversation.jsonl.gz"
BLOCK_TOKENS = 16
PORT, ADMIN_PORT = 18480, 18481
START_S_MAX = 60.0


def main() -> None:
    options = _options()
    with _scratch_file() as runs, _cluster(options):
        _bench(options, runs)
        results = json.loads(runs.read_text())["runs"]
    requests = read_trace_file(options.trace).requests[: options.requests]
    kv_tokens = options.engines * options.kv_blocks * BLOCK_TOKENS
    pooled = bounded_hit_ratio(requests, capacity_tokens=kv_tokens)
    print(
        f"ideal hit ratio: infinite cache {ideal_hit_ratio(requests):.1%}, "
        f"one pooled LRU of {kv_tokens:,} tokens {pooled:.1%}"
    )
    for run in results:
        hit = run["summary"]["hit_ratio"]
        print(f"{run['label']:>22}: hit ratio {hit:.1%}, {hit / pooled:.2f} of the pooled ideal")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trace", type=Path, default=TRACE)
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--engines", type=int, default=8)
    parser.add_argument("--kv-blocks", type=int, default=62_500, help="of an engine; 1M tokens")
    parser.add_argument("--speed", type=float, default=5.0, help="of the engines")
    parser.add_argument("--load", type=float, default=1.2, help="arrivals beside the trace's own")
    parser.add_argument("--policy", default="round_robin,least_request,marginal_cost")
    parser.add_argument("--html", type=Path)
    return parser.parse_args()


@contextlib.contextmanager
def _scratch_file() -> Iterator[Path]:
    """A path for the runs."""
    path = Path(f"out/trace-live-{time.time_ns()}.json")
    path.parent.mkdir(exist_ok=True)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _cluster(options: argparse.Namespace) -> Iterator[None]:
    """`pointsman up` until it can place."""
    words = ["up", "--engines", options.engines, "--kv-blocks", options.kv_blocks]
    words += ["--speed", options.speed, "--port", PORT, "--admin-port", ADMIN_PORT]
    process = subprocess.Popen(
        [sys.executable, "-m", "pointsman", *map(str, words), "--access-log", "none"],
        stdout=subprocess.DEVNULL,
    )
    try:
        _wait_ready(process)
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)


def _wait_ready(process: "subprocess.Popen[bytes]") -> None:
    deadline_s = time.monotonic() + START_S_MAX
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            raise SystemExit(f"pointsman up exited with {process.returncode}")
        with contextlib.suppress(urllib.error.URLError):
            urllib.request.urlopen(f"http://127.0.0.1:{PORT}/ready")
            return
        time.sleep(0.2)
    raise SystemExit(f"pointsman up was not ready in {START_S_MAX:.0f} s")


def _bench(options: argparse.Namespace, runs: Path) -> None:
    words = ["bench", f"http://127.0.0.1:{PORT}", "--trace", options.trace]
    words += ["--requests", options.requests, "--speed", options.speed * options.load]
    words += ["--policy", options.policy, "--admin-url", f"http://127.0.0.1:{ADMIN_PORT}"]
    words += ["--json", runs, *(["--html", options.html] if options.html else [])]
    subprocess.run([sys.executable, "-m", "pointsman", *map(str, words)], check=True)


if __name__ == "__main__":
    main()
