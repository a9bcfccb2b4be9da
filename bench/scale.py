"""The real scheduler before 8 to 1,024 simulated engines: how long a decision takes.

    python -m bench.scale [--requests-a-node 40] [--sizes 8,16,…] [--png FILE]

Conversations on all nodes of a fleet at the same load a node, replayed on virtual time; every
arrival is timed with a real clock, queues, caches and speeds being what they come to be. Machines
are noisy: what counts is how the median grows, and the last size against the first.
"""

import argparse
import time
from pathlib import Path
from random import Random

from pointsman.sim import Scenario, simulate
from pointsman.sim.scenario import NodeGroup
from pointsman.traffic.quantile import quantile
from pointsman.traffic.sessions import chat

SIZES = "8,16,32,64,128,256,512,1024"
RATE_RPS_A_NODE = 4.0


def main() -> None:
    options = _options()
    print("nodes   requests   ok   wall s   x real time   decision us: p50   p90   p99")
    points = [_measure(int(size), options) for size in options.sizes.split(",")]
    if options.png is not None:
        _plot(points, options.png)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests-a-node", type=int, default=40)
    parser.add_argument("--requests-min", type=int, default=4_000)
    parser.add_argument("--sizes", default=SIZES, help="numbers of nodes")
    parser.add_argument("--policy", default="marginal_cost")
    parser.add_argument("--png", type=Path)
    return parser.parse_args()


def _measure(nodes: int, options: argparse.Namespace) -> tuple[int, float, float, float]:
    requests = chat(
        requests=max(options.requests_min, options.requests_a_node * nodes),
        rate_rps=RATE_RPS_A_NODE * nodes,
        rng=Random(1),
    )
    scenario = Scenario(name=f"{nodes} nodes", fleet=(NodeGroup(count=nodes),))
    run = simulate(scenario, requests, policy=options.policy, stopwatch=time.perf_counter)
    ok = sum(not record.failed for record in run.records)
    ordered = sorted(run.decision_s[len(run.decision_s) // 4 :])  # warm, and speeds known
    p50, p90, p99 = (quantile(ordered, share) * 1e6 for share in (0.5, 0.9, 0.99))
    speed = run.duration_s / run.wall_s
    print(
        f"{nodes:5}   {len(requests):8}   {ok / len(requests):4.0%}   {run.wall_s:6.1f}"
        f"   {speed:11.1f}   {p50:16.0f}   {p90:4.0f}   {p99:4.0f}",
        flush=True,
    )
    return nodes, p50, p90, p99


def _plot(points: list[tuple[int, float, float, float]], path: Path) -> None:
    from matplotlib.figure import Figure  # noqa: PLC0415 - an optional extra

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    sizes = [nodes for nodes, *_ in points]
    for place, name in ((1, "p50"), (2, "p90"), (3, "p99")):
        axes.plot(sizes, [point[place] for point in points], marker="o", label=name)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("nodes")
    axes.set_ylabel("one decision, µs")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
