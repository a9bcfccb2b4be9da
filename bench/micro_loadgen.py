"""CPU of the load client per streamed chunk and per request, on uvloop.

The server is a child process that sends prepared bytes, so that its CPU is not counted. Prints
microseconds of this process's CPU; the cost of a request is that of one with a single chunk.

    python bench/micro_loadgen.py [--chunks 200] [--requests 400] [--concurrency 16]
"""

import argparse
import asyncio
import multiprocessing
import time
from multiprocessing.connection import Connection as Pipe
from typing import cast

import uvloop

from pointsman.loadgen.client import LoadClient, parse_target
from pointsman.loadgen.runner import LoadOptions, LoadRun
from pointsman.traffic.request import TrafficRequest

HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
    b"x-pointsman-node: n1\r\nx-request-id: r1\r\n\r\n"
)
EVENT = (
    b'data: {"id":"chatcmpl-8e6384c7ad578880","object":"chat.completion.chunk",'
    b'"created":1795993843,"model":"tiny","choices":[{"index":0,"delta":{"content":" token"},'
    b'"logprobs":null,"finish_reason":%b,"token_ids":null}]}\n\n'
)


def frame(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Server(asyncio.Protocol):
    """Answers each request with `chunks` events, one write each."""

    def __init__(self, chunks: int) -> None:
        self.body = [frame(EVENT % b"null")] * (chunks - 1) + [frame(EVENT % b'"stop"')]
        self.task: asyncio.Task[None] | None = None
        self.left = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        if data.endswith(b"}"):  # the end of the request's JSON
            self.task = asyncio.ensure_future(self.answer())

    async def answer(self) -> None:
        self.transport.write(HEAD)
        for piece in self.body:
            self.transport.write(piece)
            await asyncio.sleep(0)  # to the other streams: one chunk a read, as from an engine
        self.transport.write(b"0\r\n\r\n")


def serve(pipe: Pipe, chunks: int) -> None:
    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(
            lambda: Server(chunks), "127.0.0.1", 0
        )
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    uvloop.run(main())


async def load(port: int, requests: int, concurrency: int) -> tuple[float, int]:
    """CPU seconds of the run and the number of chunks read."""
    client = LoadClient(parse_target(f"http://127.0.0.1:{port}"))
    traffic = [TrafficRequest(at_s=0, input_tokens=1000, output_tokens=1) for _ in range(requests)]
    run = LoadRun(client, traffic, LoadOptions(model="m", concurrency=concurrency))
    before_s = time.process_time()
    records = await run.run()
    cpu_s = time.process_time() - before_s
    client.close()
    assert not any(record.failed for record in records), records[0]
    return cpu_s, sum(record.chunks for record in records)


def measure(chunks: int, requests: int, concurrency: int) -> tuple[float, int]:
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(theirs, chunks), daemon=True)
    server.start()
    try:
        return uvloop.run(load(ours.recv(), requests, concurrency))
    finally:
        server.terminate()
        server.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--chunks", type=int, default=200)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--concurrency", type=int, default=16)
    options = parser.parse_args()
    single_s, _ = measure(1, options.requests, options.concurrency)
    many_s, chunks = measure(options.chunks, options.requests, options.concurrency)
    per_request_us = single_s / options.requests * 1e6
    per_chunk_us = (many_s - single_s) / (chunks - options.requests) * 1e6
    print(f"load client: {per_request_us:.0f} us a request, {per_chunk_us:.1f} us a chunk")


if __name__ == "__main__":
    main()
