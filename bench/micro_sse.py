"""Following a relayed stream. Goal: 1 to 2 us for each chunk of one token.

python -m bench.micro_sse
"""

from collections.abc import Callable

from bench.timing import median_us
from pointsman.wire.sse import SseScanner

TOKEN = (
    b'data: {"id":"chatcmpl-8e6384c7ad578880","object":"chat.completion.chunk",'
    b'"created":1795993843,"model":"tiny","choices":[{"index":0,"delta":{"content":"%b"},'
    b'"logprobs":null,"finish_reason":null,"token_ids":null}]%b}\n\n'
)
USAGE = b',"usage":{"prompt_tokens":4,"total_tokens":7,"completion_tokens":3}'
DELTA = (
    b"event: response.output_text.delta\n"
    b'data: {"type":"response.output_text.delta","delta":" token","sequence_number":%d}\n\n'
)


def feeder(*chunks: bytes) -> Callable[[], None]:
    """Feeds one chunk a call, in turn, to one stream."""
    scanner, turn = SseScanner(), 0

    def feed() -> None:
        nonlocal turn
        turn = (turn + 1) % len(chunks)
        scanner.feed(chunks[turn])

    return feed


def main() -> None:
    token = TOKEN % (b" token", b"")
    cases = {
        "nothing (an empty chunk)": feeder(b""),
        "a token": feeder(token),
        "a token with a quote in it": feeder(TOKEN % (b' \\"', b"")),
        "half an event": feeder(token[:100], token[100:]),
        "a numbered event (Responses)": feeder(*(DELTA % number for number in range(100))),
        "a token with usage": feeder(TOKEN % (b" token", USAGE)),
        "64 tokens at once": feeder(token * 64),
        "a token of 1.5 MB": feeder(TOKEN % (b"abc def " * 190_000, b"")),
    }
    for name, feed in cases.items():
        print(f"{name:36} {median_us(feed):9.3f} us")


if __name__ == "__main__":
    main()
