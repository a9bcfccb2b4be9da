"""Reading what routing needs of a request body. Goal: under 15 us for a chat of 2 kB.

python -m bench.micro_openai
"""

import json
from typing import Any

from bench.timing import median_us
from pointsman.wire.endpoints import Endpoint
from pointsman.wire.openai import read_request

SENTENCE = "Pointsmen set the points of a railway, so that every train takes the right track.\n"


def chat(body_bytes: int, turns: int, *, as_parts: bool = False) -> bytes:
    """A chat of `turns` messages and about `body_bytes` bytes."""
    text = (SENTENCE * (body_bytes // turns // len(SENTENCE) + 1))[: body_bytes // turns - 50]
    content: Any = [{"type": "text", "text": text}] if as_parts else text
    roles = ["system", *["user", "assistant"] * turns]
    messages = [{"role": role, "content": content} for role in roles[:turns]]
    options = {"temperature": 0.2, "stream_options": {"include_usage": True}}
    return json.dumps(
        {"model": "m", "messages": messages, "max_tokens": 256, "stream": True, **options}
    ).encode()


def main() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 1_500_000}}
    picture = {"messages": [{"role": "user", "content": [{"type": "text", "text": "?"}, image]}]}
    bodies = {
        "chat, 2 kB, 2 messages": (Endpoint.CHAT, chat(2_000, 2)),
        "chat, 2 kB, 10 messages": (Endpoint.CHAT, chat(2_000, 10)),
        "chat, 52 kB, 10 messages": (Endpoint.CHAT, chat(52_000, 10)),
        "chat, 52 kB, 10 messages in parts": (Endpoint.CHAT, chat(52_000, 10, as_parts=True)),
        "chat, an image of 1.5 MB": (Endpoint.CHAT, json.dumps(picture).encode()),
        "completion, 8,000 token ids": (
            Endpoint.COMPLETIONS,
            json.dumps({"model": "m", "prompt": list(range(1000, 9000))}).encode(),
        ),
    }
    for name, (endpoint, body) in bodies.items():
        us = median_us(lambda endpoint=endpoint, body=body: read_request(endpoint, body))  # type: ignore[misc]  # mypy infers no lambda with defaults
        print(f"{name:36} {len(body):>9,} B {us:9.2f} us")


if __name__ == "__main__":
    main()
