"""Which node made a response, and for whom: a turn that goes on from it has to go there.

Engines keep the responses of the Responses API in their own memory, so any other engine answers
404 to a `previous_response_id`. A response is gone with the incarnation that made it; after that
any node may say so.
"""

from collections import OrderedDict
from typing import NamedTuple

from pointsman.core.cluster import Cluster
from pointsman.core.ids import ModelName, NodeId, NodeName
from pointsman.core.limits import SESSIONS_MAX
from pointsman.core.recent import keep
from pointsman.core.request import Request


class Keeper(NamedTuple):
    """The node that keeps a response; its model, and who asked for it (`Request.client`)."""

    node_id: NodeId
    node: NodeName
    url: str
    model: ModelName
    client: str


class _Home(NamedTuple):
    node_id: NodeId
    model: ModelName
    client: str


class Homes:
    """Responses by their id, the latest `homes_max` of them."""

    def __init__(self, cluster: Cluster, homes_max: int = SESSIONS_MAX) -> None:
        self._cluster = cluster
        self._homes_max = homes_max
        self._homes: OrderedDict[str, _Home] = OrderedDict()

    def answered(self, response_id: str, node_id: NodeId, request: Request) -> None:
        """The node has answered the request, with this response if it is named."""
        if not response_id:
            return
        home = _Home(node_id, request.model, request.client)
        keep(self._homes, response_id, home, self._homes_max)

    def at_home(self, request: Request) -> Request:
        """The request, bound to the node of the response that it goes on from, if that is up
        or may come back."""
        if not request.continues:
            return request
        home = self._homes.get(request.continues)
        if home is None or self._cluster.get(home.node_id) is None:
            return request
        return request.but(home=home.node_id)

    def keeper(self, response_id: str) -> Keeper | None:
        """Who keeps the response, up or not; None where that is not known, or over."""
        home = self._homes.get(response_id)
        node = None if home is None else self._cluster.get(home.node_id)
        if home is None or node is None:
            return None
        return Keeper(node.id, node.name, node.spec.url, home.model, home.client)
