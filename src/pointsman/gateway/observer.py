"""What the gateway tells whoever counts and logs: one record for each exchange, at its end."""

from enum import StrEnum
from typing import Protocol

from pointsman.core.errors import Reason
from pointsman.core.exchange_record import ExchangeRecord


class ReplayResult(StrEnum):
    """What came of a request that was replayed to warm a node up."""

    COMPUTED = "computed"
    REFUSED = "refused"
    """The engine has answered, and not with 200."""
    LOST = "lost"
    """It is not reached, or its answer broke off."""
    LATE = "late"
    """The warm-up's time has passed."""


class GatewayObserver(Protocol):
    """Called on the loop's thread, between two events: quick, bounded, and never raising."""

    def exchange_ended(self, record: ExchangeRecord) -> None:
        """A request on an engine's route is over, served or refused."""
        ...

    def client_refused(self, reason: Reason) -> None:
        """A client was turned away before its request became an exchange."""
        ...

    def replayed(self, result: ReplayResult) -> None:
        """A replay is over."""
        ...
