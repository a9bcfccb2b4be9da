"""What an engine holds, by a plain reading of its own KV events: the index's slow twin.

Asks the engine to replay all its events, decodes them with nothing of the project's, and
keeps for each block the whole token prefix that it ends.
"""

from collections import Counter
from typing import Any

import msgspec
import zmq

from pointsman.core.blocks import Prompt
from pointsman.core.scheme import Namespace, Scheme, Unit

ANSWER_MS_MAX = 5_000
END_SEQ = b"\xff" * 8


class HeldBlocks:
    """Blocks by the engine's names, each with the tokens from its prompt's start to its end."""

    def __init__(self) -> None:
        self.prefixes: dict[object, tuple[int, ...]] = {}
        self.copies: Counter[object] = Counter()
        self.removals = 0

    def apply(self, event: dict[str, Any]) -> None:
        match event["type"]:
            case "BlockStored":
                self._store(event)
            case "BlockRemoved":
                for name in event["block_hashes"]:
                    self.removals += 1
                    self.copies[name] -= 1
            case "AllBlocksCleared":
                self.copies.clear()

    def _store(self, event: dict[str, Any]) -> None:
        parent, size = event["parent_block_hash"], event["block_size"]
        prefix = () if parent is None else self.prefixes[parent]
        for number, name in enumerate(event["block_hashes"]):
            prefix += tuple(event["token_ids"][number * size : (number + 1) * size])
            self.prefixes[name] = prefix
            self.copies[name] += 1

    def hashes(self, model: str, block_tokens: int) -> set[int]:
        """Our own hashes of what is held, each computed from the whole prefix."""
        scheme = Scheme(Unit.TOKENS, block_tokens)
        held = [self.prefixes[name] for name, count in self.copies.items() if count > 0]
        return {Prompt(Namespace(model), tokens=prefix).chain(scheme)[-1] for prefix in held}


def replayed(endpoint: str) -> HeldBlocks:
    """Everything that the engine remembers, from its start."""
    held = HeldBlocks()
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.connect(endpoint)
        dealer.send_multipart([b"", (0).to_bytes(8)])
        while True:
            assert dealer.poll(ANSWER_MS_MAX), f"{endpoint} does not end its replay"
            *_, seq, payload = dealer.recv_multipart()
            if seq == END_SEQ:
                return held
            for event in msgspec.msgpack.decode(payload)[1]:
                held.apply(event)
