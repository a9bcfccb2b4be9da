"""Answers whether a server's data-parallel ranks can be told apart, so that each may be a node."""

from pointsman.collectors.client import EngineClient
from pointsman.engines.adapters import Description

RANKS_MIN = 2
"""The fewest ranks for which a server is taken apart."""

RANKS_MAX = 256
"""The most, behind one port: several times what is run. Who claims more would only fill the
cluster with nodes."""

TIMEOUT_S = 5.0
"""How long an answer may take: it is one line, of a server that may be starting."""


async def ranks_apart(client: EngineClient, known: Description) -> int:
    """How many ranks there are, if a request may name each and the metrics tell each by the same
    number. Fewer than two are none, and so are more than any server has. Raises EngineTrouble.

    A server that balances over a part of the ranks only (--data-parallel-hybrid-lb) counts them
    otherwise in metrics than in requests. An old one does not read what a request says.
    """
    count = len(known.ranks)
    if not RANKS_MIN <= count <= RANKS_MAX or known.ranks != tuple(range(count)):
        return 0
    named = await client.ranks_named(known.facts.models[0].name, timeout_s=TIMEOUT_S)
    return count if named == count else 0
