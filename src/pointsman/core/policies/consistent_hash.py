"""consistent_hash: one home for each key, bounded load (Mirrokni, Thorup, Zadimoghaddam 2018).

    key    session, else the prompt's first 1,024 bytes or 256 tokens, with the model
    score  1 - h(key, node) / 2^64, within the bound; one more above it
    bound  inflight + 1 <= max(4, ceil(1.25 * (all in flight + 1) / candidates))

Rendezvous hashing (Thaler, Ravishankar 1998) is a ring without a ring: a key's homes are all
nodes in the order of h, which depends on nothing but the key and the node's name. So nothing
has to be rebuilt, and a node that flaps has not lost its place. It leaves the candidates only
after so many failures in a row as `limits` say; meanwhile its keys, and no others, go to the
next in their order, and come home with it.

Below four in flight no home is overloaded: without that floor a quiet cluster's bound is one,
and the second request of a session that is not done with its first would leave home.
"""

from collections.abc import Sequence
from math import ceil
from operator import attrgetter
from random import Random

from xxhash import xxh3_64_intdigest

from pointsman.core.blocks import root_hash
from pointsman.core.placement import Choice, Hold
from pointsman.core.policies.base import PolicyBase
from pointsman.core.policies.pick import pick
from pointsman.core.request import Request
from pointsman.core.row import Row
from pointsman.core.scheme import TEXT_SCHEME, Scheme, Unit

LOAD_FACTOR = 1.25
LOAD_MIN = 4
KEY_BYTES = 1_024
KEY_TOKENS = 256


class ConsistentHash(PolicyBase):
    name = "consistent_hash"

    def choose(self, request: Request, rows: Sequence[Row], rng: Random) -> Choice | Hold:
        key = _key(request, min(row.block_tokens for row in rows))
        in_flight = sum(row.inflight for row in rows)
        bound = max(LOAD_MIN, ceil(LOAD_FACTOR * (in_flight + 1) / len(rows)))
        for row in rows:
            row.score = 1 - xxh3_64_intdigest(row.node.encode(), key) / 2**64
        home = min(rows, key=_score)
        for row in rows:
            row.score += row.inflight + 1 > bound
        if home.fits and home.score <= 1.0:
            return pick(rows, why="home of the key")
        return pick(rows, why="home of the key is full: next in its order")


_score = attrgetter("score")


def _key(request: Request, block_tokens: int) -> int:
    """Tokens are known by the hashes of their blocks: of the smallest in the fleet, so that
    the key is the same whichever engines of several sizes are up."""
    if request.session is not None:
        return xxh3_64_intdigest(request.session.encode())
    prompt = request.prompt
    seed = root_hash(prompt.namespace, TEXT_SCHEME)
    if prompt.text:
        return xxh3_64_intdigest(prompt.text[:KEY_BYTES], seed)
    blocks = prompt.chain(Scheme(Unit.TOKENS, block_tokens))
    if blocks := blocks[: max(1, KEY_TOKENS // block_tokens)]:
        return blocks[-1]
    return xxh3_64_intdigest(request.id.encode(), seed)
