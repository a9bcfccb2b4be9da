"""Can a server's data-parallel ranks be told apart, so that each may be a node?"""

from pointsman.collectors.client import EngineClient
from pointsman.engines.adapters import Description

RANKS_MIN = 2
"""Of a server that is taken apart."""

TIMEOUT_S = 5.0
"""For an answer of one line, of a server that may be starting."""


async def ranks_apart(client: EngineClient, known: Description) -> int:
    """How many ranks there are of which a request may name each, and the metrics tell each by
    the same number. Fewer than two are none. Raises EngineTrouble.

    One that balances over a part of the ranks only (--data-parallel-hybrid-lb) counts them
    otherwise in metrics than in requests; an old one does not read what a request says.
    """
    count = len(known.ranks)
    if count < RANKS_MIN or known.ranks != tuple(range(count)):
        return 0
    named = await client.ranks_named(known.facts.models[0].name, timeout_s=TIMEOUT_S)
    return count if named == count else 0
