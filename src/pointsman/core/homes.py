"""Which node made a response: a turn that goes on from it has to go there.

Engines keep the responses of the Responses API in their own memory, so every other one answers
404 to a `previous_response_id`. A response ends with the incarnation that made it; then any node
may say that it is gone.
"""

from collections import OrderedDict

import msgspec

from pointsman.core.cluster import Cluster
from pointsman.core.ids import NodeId
from pointsman.core.limits import SESSIONS_MAX
from pointsman.core.request import Request


class Homes:
    """Responses by their id, the latest `homes_max` of them."""

    def __init__(self, cluster: Cluster, homes_max: int = SESSIONS_MAX) -> None:
        self._cluster = cluster
        self._homes_max = homes_max
        self._homes: OrderedDict[str, NodeId] = OrderedDict()

    def answered(self, response_id: str, node_id: NodeId) -> None:
        """The node has answered, with this response if it is named."""
        if not response_id:
            return
        self._homes[response_id] = node_id
        self._homes.move_to_end(response_id)
        if len(self._homes) > self._homes_max:
            self._homes.popitem(last=False)

    def at_home(self, request: Request) -> Request:
        """The request, bound to the node of the response that it goes on from, if that is up
        or may come back."""
        if not request.continues:
            return request
        home = self._homes.get(request.continues)
        if home is None or self._cluster.get(home) is None:
            return request
        return msgspec.structs.replace(request, home=home)
