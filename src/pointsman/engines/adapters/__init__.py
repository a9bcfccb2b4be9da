"""Where real engines differ on the wire: who they are, what they serve, where their events are.

Reading order: describe (everything an engine says of itself), model_list, event_sources,
props (llama.cpp), signals (a metrics page as the core wants it), address (can that be an
engine's?), keys (what it asks for), reply (how to ask).

No sockets here: the caller brings a `Get`. Nothing is kept between calls but keys, which belong to
whoever made their `EngineKeys`.
"""

from pointsman.engines.adapters.describe import Description, NotReady, describe, refresh
from pointsman.engines.adapters.event_sources import EventSource
from pointsman.engines.adapters.keys import EngineKeys
from pointsman.engines.adapters.reply import EngineReply, EngineTrouble, Get
from pointsman.engines.adapters.signals import node_signals

__all__ = [
    "Description",
    "EngineKeys",
    "EngineReply",
    "EngineTrouble",
    "EventSource",
    "Get",
    "NotReady",
    "describe",
    "node_signals",
    "refresh",
]
