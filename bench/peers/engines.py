"""Mock engines with canned answers: `python -m bench.peers.engines CHUNKS INTERVAL_S PORT...`.

A chat completion is answered at once. With `"stream": true` the answer is CHUNKS events, each
written alone, INTERVAL_S apart, so that a gateway meets one chunk at a time, as with a real engine.
"""

import asyncio
import json
import sys
from typing import cast

import httptools
import uvloop

MODEL = "mock"


def main() -> None:
    chunks, interval_s, *ports = sys.argv[1:]
    uvloop.run(serve([int(port) for port in ports], int(chunks), float(interval_s)))


async def serve(ports: list[int], chunks: int, interval_s: float) -> None:
    """Serves on every port until the process is ended."""
    loop = asyncio.get_running_loop()
    for port in ports:
        await loop.create_server(lambda: Engine(chunks, interval_s), "127.0.0.1", port)
    await asyncio.Event().wait()


class Engine(asyncio.Protocol):
    """One connection of a gateway. Requests are not pipelined: each is answered before the next."""

    def __init__(self, chunks: int, interval_s: float) -> None:
        self._chunks = chunks
        self._interval_s = interval_s
        self._parser = httptools.HttpRequestParser(self)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._timer: asyncio.TimerHandle | None = None
        self._url = b""
        self._body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:  # some gateways first try HTTP/2
            self._transport.close()

    def on_message_begin(self) -> None:
        self._url = self._body = b""

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        path = self._url.partition(b"?")[0]
        if path != b"/v1/chat/completions":
            self._transport.write(CONTROL_ANSWERS.get(path, NOT_FOUND))
        elif json.loads(self._body).get("stream"):
            self._transport.write(STREAM_HEAD)
            self._due_s = self._loop.time()
            self._stream(self._chunks)
        else:
            self._transport.write(COMPLETION)

    def _stream(self, left: int) -> None:
        if left == 0:
            self._timer = None
            self._transport.write(STREAM_END)
            return
        self._transport.write(CHUNK)
        self._due_s += self._interval_s
        self._timer = self._loop.call_at(self._due_s, self._stream, left - 1)


def _answer(body: bytes, content_type: str = "application/json", status: str = "200 OK") -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _event(choice: dict[str, object]) -> bytes:
    body = {"object": "chat.completion.chunk", "choices": [{"index": 0, **choice}], **COMMON}
    return b"data: %b\n\n" % json.dumps(body).encode()


COMMON = {"id": "chatcmpl-0123456789abcdef", "created": 1_700_000_000, "model": MODEL}
USAGE = {"prompt_tokens": 220, "completion_tokens": 60, "total_tokens": 280}
MESSAGE = {"role": "assistant", "content": "All signals are set for the main line. " * 8}
CHOICE = {"index": 0, "message": MESSAGE, "finish_reason": "stop"}
COMPLETION = _answer(
    json.dumps(
        {"object": "chat.completion", "choices": [CHOICE], "usage": USAGE, **COMMON}
    ).encode()
)
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
CHUNK = _chunk(_event({"delta": {"content": " signal"}, "finish_reason": None}))
STREAM_END = (
    _chunk(_event({"delta": {}, "finish_reason": "stop"}) + b"data: [DONE]\n\n") + b"0\r\n\r\n"
)
EVENTS_AT_END = 2
NOT_FOUND = _answer(b"{}", status="404 Not Found")
METRICS = "".join(
    f'# TYPE vllm:{name} gauge\nvllm:{name}{{model_name="{MODEL}"}} 0.0\n'
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
)
MODELS = {"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": 32768}]}
INFO = {"model_path": MODEL, "served_model_name": MODEL, "is_generation": True}
CONTROL_ANSWERS = {
    b"/health": _answer(b""),
    b"/metrics": _answer(METRICS.encode(), "text/plain; version=0.0.4"),
    b"/v1/models": _answer(json.dumps(MODELS).encode()),
    b"/version": _answer(b'{"version": "0.11.0"}'),
    b"/get_model_info": _answer(json.dumps(INFO).encode()),
    b"/model_info": _answer(json.dumps(INFO).encode()),
    b"/get_server_info": _answer(json.dumps(INFO).encode()),
    b"/server_info": _answer(json.dumps(INFO).encode()),
}

if __name__ == "__main__":
    main()
