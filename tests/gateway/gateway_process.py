"""A gateway in a process of its own: `python -m tests.gateway.gateway_process MODEL URL…`.

Says its port on a line; answers each line it is sent with its state as JSON.
"""

import asyncio
import sys

import msgspec
import uvloop

from pointsman.core.limits import Timeouts
from pointsman.gateway import Gateway, GatewayOptions
from tests.support.placer import turn_placer

# Thousands of connections at once take their time on a busy machine, and no node is down.
OPTIONS = GatewayOptions(timeouts=Timeouts(connect_s=60.0))


async def main(model: str, urls: list[str]) -> None:
    gateway = Gateway(turn_placer(urls, model), OPTIONS)
    await gateway.start("127.0.0.1", 0)
    print(gateway.port, flush=True)
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        print(msgspec.json.encode(gateway.state()).decode(), flush=True)
    await gateway.stop()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2:]))
