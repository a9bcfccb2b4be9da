"""What the retry guard remembers, of each request that was turned away and of its sender."""

from typing import Final

from pointsman.core import faded
from pointsman.core.faded import Faded, left

STRIKES_MAX: Final = 6.0
"""The most strikes that count. Each doubles the wait, and more of them would pass any bound on
it."""

_STRIKE_GAP_S: Final = 1.0
"""The least time between strikes: a burst of equal requests that were refused together is one
mistake."""

_HASTY_MIN: Final = 2.0
"""Requests that must have come too early before a client counts as hasty."""

_RATE_MIN: Final = 10.0
"""Requests a second that any client may send while it is told to wait."""

_BURST: Final = 50.0
"""Requests that it may send at once then."""

_RATE_MEMORY_S: Final = faded.memory_s(30.0)


class TurnedAway:
    """A request that was refused, or given up by its client. Before `until_s` it is early.

    owed     how often it was turned away and has not come again
    ran      how often an engine had worked for it, and it was not placed again
    running  how many that came again are not over
    gave_up  whether its client gave up, the last time
    """

    __slots__ = (
        "_strikes",
        "_struck_s",
        "gave_up",
        "noted_s",
        "owed",
        "ran",
        "running",
        "times_given_up",
        "until_s",
        "was_early",
    )

    def __init__(self) -> None:
        self.owed = 0
        self.ran = 0
        self.running = 0
        self.gave_up = False
        self.times_given_up = 0
        self.was_early = False
        self.noted_s = 0.0
        self.until_s = float("-inf")
        self._strikes = Faded()
        self._struck_s = float("-inf")

    @property
    def is_given_up_again(self) -> bool:
        """Whether the one that runs is most likely given up as well, if another comes now. A new
        connection may be seen before the end of the old one, and a proxy may keep the old one
        open."""
        return self.running > 0 and self.times_given_up > 0

    def strikes(self, now_s: float, memory_s: float) -> float:
        """The strikes that are left at this time."""
        return self._strikes.at(now_s, memory_s)

    def strike(self, now_s: float, memory_s: float) -> None:
        """Add a strike, unless the last one was just now."""
        if now_s - self._struck_s < _STRIKE_GAP_S:
            return
        room = STRIKES_MAX - self._strikes.at(now_s, memory_s)
        self._strikes.add(min(1.0, room), now_s, memory_s)
        self._struck_s = now_s


class Sender:
    """A client. Kept of it are its rate in calm times, what it may send while any request of its
    own has been told to wait (`until_s`), and how many of its requests did not wait."""

    __slots__ = (
        "_allowance",
        "_at_s",
        "_calm",
        "_early",
        "_turned_away",
        "noted_s",
        "until_s",
    )

    def __init__(self, now_s: float) -> None:
        self.noted_s = float("-inf")
        self.until_s = float("-inf")
        self._calm = 0.0
        self._allowance = _BURST
        self._at_s = now_s
        self._turned_away = Faded()
        self._early = Faded()

    # --- its rate -----------------------------------------------------------------------

    def came_in_calm(self, now_s: float) -> None:
        """Learn its rate from a request that came in calm times."""
        self._calm = self._calm * left(now_s - self._at_s, _RATE_MEMORY_S) + 1.0
        self._allowance = _BURST
        self._at_s = now_s

    def may_send(self, now_s: float, growth: float) -> bool:
        """Whether this request is within `growth` of what it sent before."""
        rate = max(_RATE_MIN, growth * self._calm / _RATE_MEMORY_S)
        self._allowance = min(_BURST, self._allowance + rate * (now_s - self._at_s))
        self._at_s = now_s
        if self._allowance < 1.0:
            return False
        self._allowance -= 1.0
        return True

    # --- its haste ----------------------------------------------------------------------

    def turned_away(self, now_s: float, memory_s: float) -> None:
        """Count one more of its requests as turned away."""
        self._turned_away.add(1.0, now_s, memory_s)

    def came_early(self, now_s: float, memory_s: float) -> None:
        """Count one of those as back too early; each counts once."""
        self._early.add(1.0, now_s, memory_s)

    def is_hasty(self, now_s: float, memory_s: float, share: float) -> bool:
        """Whether nearly all of what is turned away comes back too early, once there is enough of
        it to tell."""
        early = self._early.at(now_s, memory_s)
        turned_away = self._turned_away.at(now_s, memory_s)
        return early >= max(_HASTY_MIN, share * turned_away)
