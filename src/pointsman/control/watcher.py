"""What the service tells those that follow the nodes, or what goes to them."""

from typing import Protocol

from pointsman.core.events import Admitted, Left, Turned, WarmUp
from pointsman.core.ids import NodeId


class NodeWatcher:
    """Follows the nodes; what it does not override, it ignores.

    Called during a step's delivery: quick, never raising.
    """

    def admitted(self, effect: Admitted) -> None:
        """An incarnation begins."""

    def turned(self, effect: Turned) -> None:
        """Its health has changed."""

    def cold(self, effect: WarmUp) -> None:
        """It is to be warmed up, before it gets requests."""

    def left(self, effect: Left) -> None:
        """An incarnation has ended."""


class TrafficWatcher(Protocol):
    """Follows each request. Called as above."""

    def placed(self, node_id: NodeId) -> None:
        """A request goes there."""
        ...

    def alive(self, node_id: NodeId) -> None:
        """An answer has begun to come from there."""
        ...

    def failed(self, node_id: NodeId) -> None:
        """An attempt there ended before its answer began."""
        ...
