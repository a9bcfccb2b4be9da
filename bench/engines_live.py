"""Does sending prompts where their prefix is cached pay off on real engines? Two vLLM servers.

    python -m bench.engines_live [--groups 20] [--each 6] [--policy a,b,c] [--rate X]

An 8-layer model of random weights on CPUs (`make engines`), prompts of which about 1,024 tokens
are shared within a group. What counts are the ratios: computing a prefix takes 2 s here, finding
it cached 0.1 s.

First a closed loop tells what the first policy can serve. Then each policy gets the same Poisson
arrivals, at 0.85 of that: clients do not come later because a policy is slow. In a closed loop
they do, which hides most of what is gained.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from pointsman.report.run import Run, decode_runs
from tests.support.live_engines import LiveEngine, make_model, vllm_servers
from tests.support.ports import free_ports

HIDDEN, LAYERS = 768, 8
SHARED_BLOCKS, OWN_BLOCKS = 5, 1
BLOCK = 50
"""Of the trace's tokens, each of which is four of the model's: its vocabulary is tiny."""

SETTINGS = (
    *("--load-format", "dummy", "--max-model-len", "4096", "--max-num-seqs", "8"),
    *("--max-num-batched-tokens", "2048", "--num-gpu-blocks-override", "512"),
    *("--kv-cache-memory-bytes", "256M"),
)
START_S_MAX = 120.0
AT_ONCE = 4
"""Requests under way while capacity is measured: two for each engine, which has one core."""
LOAD = 0.85
"""Of what the first policy can serve: a busy hour, without a queue that only grows."""


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        model = make_model(folder / "model", HIDDEN, LAYERS)
        with vllm_servers(model, *SETTINGS) as servers:
            engines = [servers.start(events=free_ports(2)) for _ in range(2)]
            for engine in engines:
                engine.until_healthy()
            with _gateway(_configuration(folder, model, engines)) as (url, admin_url):
                _warm_up(url)
                bench = Bench(options, folder, url, admin_url)
                rate_rps = options.rate or LOAD * bench.capacity_rps()
                runs = bench.open_loop(rate_rps)
    _print(runs, rate_rps)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--groups", type=int, default=20, help="shared prefixes")
    parser.add_argument("--each", type=int, default=6, help="requests of each")
    parser.add_argument("--rate", type=float, help=f"per second [{LOAD} of what can be served]")
    parser.add_argument("--policy", default="round_robin,least_request,marginal_cost")
    parser.add_argument("--json", type=Path, help="keep the runs")
    return parser.parse_args()


def _configuration(folder: Path, model: Path, engines: Sequence[LiveEngine]) -> Path:
    """With the model's tokenizer: where a token is a byte of text, the text index, which counts
    in 512 bytes, sees half of a prefix."""
    path = folder / "pointsman.yaml"
    content = {
        "engines": [{"url": engine.url} for engine in engines],
        "models": [{"name": "tiny", "tokenizer": str(model)}],
    }
    path.write_text(json.dumps(content))
    return path


@contextlib.contextmanager
def _gateway(configuration: Path) -> Iterator[tuple[str, str]]:
    """`pointsman serve` in front of the engines, once it is ready."""
    port, admin_port = free_ports(2)
    words = ("serve", "-c", str(configuration), "--access-log", "none")
    ports = ("--port", str(port), "--admin-port", str(admin_port))
    process = subprocess.Popen(
        [sys.executable, "-m", "pointsman", *words, *ports], stderr=subprocess.DEVNULL
    )
    try:
        _until_ready(process, f"http://127.0.0.1:{port}/ready")
        yield f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}"
    finally:
        process.terminate()
        process.wait(30)


def _until_ready(process: "subprocess.Popen[bytes]", url: str) -> None:
    end_s = time.monotonic() + START_S_MAX
    while time.monotonic() < end_s and process.poll() is None:
        with contextlib.suppress(urllib.error.URLError, OSError), urllib.request.urlopen(url):
            return
        time.sleep(0.2)
    raise SystemExit("the gateway was not ready")


def _warm_up(url: str) -> None:
    """A few prompts for each engine, so that the first policy does not pay for first times."""
    for number in range(6):
        prompt = " ".join(f"{number}{word}" for word in range(60))
        body = json.dumps({"model": "tiny", "prompt": prompt, "max_tokens": 4}).encode()
        request = urllib.request.Request(
            f"{url}/v1/completions", body, {"content-type": "application/json"}
        )
        urllib.request.urlopen(request, timeout=120).close()


class Bench:
    """`pointsman bench` with one trace, as often as it is wanted."""

    def __init__(self, options: argparse.Namespace, folder: Path, url: str, admin_url: str) -> None:
        self._policies = options.policy
        self._runs = options.json or folder / "runs.json"
        self._trace = folder / "trace.jsonl"
        self._trace.write_text("".join(_lines(options)))
        self._words = ("bench", url, "--trace", self._trace, "--admin-url", admin_url)

    def capacity_rps(self) -> float:
        """What the first policy serves while there is always enough to do."""
        [run] = self._run(self._policies.partition(",")[0], "--concurrency", AT_ONCE)
        return run.summary().throughput_rps

    def open_loop(self, rate_rps: float) -> Sequence[Run]:
        return self._run(self._policies, "--rate", f"{rate_rps:.2f}")

    def _run(self, policies: str, *words: object) -> Sequence[Run]:
        words = (*self._words, "--policy", policies, "--json", self._runs, *words)
        subprocess.run([sys.executable, "-m", "pointsman", *map(str, words)], check=True)
        return decode_runs(self._runs.read_bytes())


def _lines(options: argparse.Namespace) -> Iterator[str]:
    """The groups' requests, mixed. Blocks with one number share their text."""
    order = [group for group in range(options.groups) for _ in range(options.each)]
    Random(0).shuffle(order)
    for number, group in enumerate(order):
        shared = [100 * group + place for place in range(SHARED_BLOCKS)]
        row = {
            "t_ms": 100 * number,
            "input_tokens": BLOCK * (SHARED_BLOCKS + OWN_BLOCKS),
            "output_tokens": 8,
            "hash_ids": [*shared, 100_000 + number],
            "block_tokens": BLOCK,
        }
        yield json.dumps(row) + "\n"


def _print(runs: Sequence[Run], rate_rps: float) -> None:
    """What the last policy has of each other's times."""
    print(f"{rate_rps:.2f} requests a second")
    *others, ours = runs
    for other in others:
        mine, theirs = ours.summary().ttft_s, other.summary().ttft_s
        ratios = ", ".join(
            f"{name} {getattr(mine, name) / getattr(theirs, name):.2f}"
            for name in ("mean", "p50", "p95")
        )
        print(f"time to first token, {ours.label} / {other.label}: {ratios}")


if __name__ == "__main__":
    main()
