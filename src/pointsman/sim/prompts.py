"""Requests of a trace as the scheduler and the engines see them: chains of block hashes.

A trace names blocks of its own size. Engines with smaller blocks get each of them in pieces,
whose hashes follow from the block's id; what no id covers is the request's own and equal to
nothing else. So prompts share exactly what they share when they are written out as text.
"""

from collections.abc import Sequence
from itertools import chain

from xxhash import xxh3_64_intdigest

from pointsman.core.blocks import Prompt
from pointsman.core.ids import HASH_MASK, BlockHash, ModelName, RequestId
from pointsman.core.node import BLOCK_TOKENS_DEFAULT
from pointsman.core.request import Request
from pointsman.core.scheme import Namespace, Scheme, Unit
from pointsman.traffic.request import TrafficRequest

MODEL = ModelName("simulated")


def block_tokens_of(requests: Sequence[TrafficRequest]) -> int:
    """The block size of the traffic; the default where it names no blocks. Raises ValueError if
    it has several."""
    sizes = {request.block_tokens for request in requests if request.block_ids}
    if len(sizes) > 1:
        raise ValueError(
            f"the traffic has blocks of {', '.join(map(str, sorted(sizes)))} tokens. "
            "Remedy: replay requests of one block size at a time."
        )
    return sizes.pop() if sizes else BLOCK_TOKENS_DEFAULT


class Prompts:
    """Chains for every block size of the fleet. Raises ValueError for a size that does not
    divide the traffic's."""

    def __init__(self, requests: Sequence[TrafficRequest], block_sizes: Sequence[int]) -> None:
        self._requests = requests
        self._whole = block_tokens_of(requests)
        any_size = not any(request.block_ids for request in requests)
        self._schemes = [Scheme(Unit.TOKENS, size) for size in sorted(set(block_sizes))]
        for size in block_sizes:
            if self._whole % size and not any_size:
                raise ValueError(
                    f"engine blocks of {size} tokens do not divide the trace's blocks of "
                    f"{self._whole}. Remedy: choose block_tokens that do, {self._whole} is best."
                )
        self._named = {size: _Named(max(1, self._whole // size), size) for size in block_sizes}

    def request(
        self,
        index: int,
        request_id: RequestId,
        *,
        bounds_output: bool,
        stream: bool = True,
        slo_ttft_s: float | None = None,
        address: str = "",
    ) -> Request:
        """Request `index` of the traffic for the scheduler, chains included. Its client is the
        `address` that it shares with others, or its session, or else its tenant; what comes again
        has its fingerprint."""
        asked = self._requests[index]
        chains = {scheme: self.chain(index, scheme.size) for scheme in self._schemes}
        return Request(
            id=request_id,
            model=MODEL,
            prompt=Prompt.chained(Namespace(MODEL), asked.input_tokens, chains, 1 + index),
            max_output_tokens=asked.output_tokens if bounds_output else None,
            stream=stream,
            priority=asked.priority,
            tenant="" if address else asked.tenant,
            session=asked.session or None,
            slo_ttft_s=slo_ttft_s,
            client=address or asked.session or asked.tenant or f"client-{index}",
            is_crowd=bool(address),
        )

    def chain(self, index: int, size: int) -> list[BlockHash]:
        """The hashes of the full blocks of `size` tokens of a prompt."""
        asked, named = self._requests[index], self._named[size]
        count = asked.input_tokens // size
        ids = asked.block_ids[: -(-count // named.pieces)]
        hashes = list(chain.from_iterable(map(named.__getitem__, ids)))
        if len(hashes) < count:
            own = -1 - index
            hashes += [_hash(own, number, size) for number in range(len(hashes), count)]
        del hashes[count:]
        return hashes


class _Named(dict[int, tuple[BlockHash, ...]]):
    """The hashes of the pieces of a block of the traffic, of which there are no more than the
    traffic itself names."""

    def __init__(self, pieces: int, size: int) -> None:
        super().__init__()
        self.pieces = pieces
        self._size = size

    def __missing__(self, block_id: int) -> tuple[BlockHash, ...]:
        made = tuple(_hash(block_id, number, self._size) for number in range(self.pieces))
        self[block_id] = made
        return made


def _hash(block_id: int, number: int, size: int) -> BlockHash:
    name = block_id.to_bytes(16, signed=True) + number.to_bytes(4)
    return BlockHash(xxh3_64_intdigest(name, size) & HASH_MASK)
