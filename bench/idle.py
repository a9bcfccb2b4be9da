"""CPU of an idle gateway with many engines attached: the price of probing and scraping them."""

import argparse
import asyncio
import contextlib
import tempfile
from pathlib import Path

import uvloop

from bench.peers.cpu import cpu_s, resident_bytes
from bench.peers.gateways import known_gateways, mock_engines, running

BAR_PERCENT = 5.0
SETTLED_S = 5.0  # after which every engine has been found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", type=int, default=100, help="mock engines [100]")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long to watch [30]")
    parser.add_argument(
        "--only", default="pointsman cache-aware", help="the gateway's name begins so"
    )
    arguments = parser.parse_args()
    percent, mib = uvloop.run(measure(arguments.only, arguments.engines, arguments.seconds))
    verdict = "within" if percent <= BAR_PERCENT else "OVER"
    print(
        f"{arguments.only}: idle with {arguments.engines} engines: {percent:.1f} % of a core, "
        f"{verdict} the bar of {BAR_PERCENT} %; {mib:.0f} MiB"
    )


async def measure(name: str, engines: int, watched_s: float) -> tuple[float, float]:
    """CPU in percent of one core, and memory in MiB."""
    gateway = next(one for one in known_gateways() if one.label.startswith(name))
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        urls = await stack.enter_async_context(mock_engines(engines, chunks=1, interval_s=0.01))
        server = await stack.enter_async_context(running(gateway, urls, folder))
        await asyncio.sleep(SETTLED_S)
        before_s = cpu_s(server.pid)
        await asyncio.sleep(watched_s)
        used_s = cpu_s(server.pid) - before_s
        return 100 * used_s / watched_s, resident_bytes(server.pid) / 2**20


if __name__ == "__main__":
    main()
