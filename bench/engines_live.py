"""Does sending prompts where their prefix is cached pay off on real engines? Two vLLM servers.

    python -m bench.engines_live [--groups 20] [--each 6] [--policy a,b,c]

An 8-layer model of random weights on CPUs (`make engines`), prompts of which about 1,024 tokens
are shared within a group; all policies in one run of `pointsman bench`, in front of the same two
servers. What counts are the ratios: computing a prefix takes 2 s here, finding it cached 0.1 s.
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

from tests.support.live_engines import LiveEngine, free_ports, make_model, vllm_servers

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
                runs = _bench(options, folder, url, admin_url)
    _print(runs)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--groups", type=int, default=20, help="shared prefixes")
    parser.add_argument("--each", type=int, default=6, help="requests of each")
    parser.add_argument("--concurrency", type=int, default=3)
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


def _bench(
    options: argparse.Namespace, folder: Path, url: str, admin_url: str
) -> list[dict[str, object]]:
    trace, runs = folder / "trace.jsonl", options.json or folder / "runs.json"
    trace.write_text("".join(_lines(options)))
    words = ["bench", url, "--trace", trace, "--concurrency", options.concurrency]
    words += ["--policy", options.policy, "--admin-url", admin_url, "--json", runs]
    subprocess.run([sys.executable, "-m", "pointsman", *map(str, words)], check=True)
    found: list[dict[str, object]] = json.loads(runs.read_text())["runs"]
    return found


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


def _print(runs: Sequence[dict[str, object]]) -> None:
    means = {str(run["label"]): run["summary"]["ttft_s"]["mean"] for run in runs}  # type: ignore[index]  # JSON
    *others, (name, ours) = means.items()
    for other, mean_s in others:
        print(f"mean time to first token, {name} / {other}: {ours / mean_s:.2f}")


if __name__ == "__main__":
    main()
