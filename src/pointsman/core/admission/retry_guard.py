"""Refuses retry storms: while there is no room, who comes back sooner than told is turned away.

Clients that retry at once turn a moment's trouble into a lasting one: each refusal and each
time-out brings the request back, until engines work for clients that have left. So the guard
remembers what was turned away, by client and fingerprint, with the time from which it may come
again: the Retry-After that it was told, or a moment after its client gave up by itself.

- The same request, back too early, gets a strike and a longer Retry-After, and is refused
  without being routed. Another request of the same client is let in, and so are the same words of
  another tenant: a key or an address may be many people.
- A client is refused as a whole only where nearly all of what was turned away came back too early,
  or, where its requests all differ, what exceeds the rate that it had before by a half. A crowd,
  like an address without a key, never is: nobody there answers for the others.
- Strikes halve over time. Who waits as told is served like anybody else. Once there has been room
  for a moment everybody is served, so that no capacity is lost to a penalty. A gap that has only
  just opened is for who waits, or has not been here before: there are many more repeats than gaps.

Memory is bounded: the oldest is forgotten, which is mercy and no harm.
"""

from collections import OrderedDict
from collections.abc import Callable
from math import exp2
from random import Random
from typing import Final

from pointsman.core.admission.amplification import Amplification
from pointsman.core.admission.pressure import Pressure, spread_s
from pointsman.core.admission.remembered import Sender, TurnedAway
from pointsman.core.errors import ANSWERS, EndCause, Reason
from pointsman.core.faded import memory_s
from pointsman.core.ids import ModelName
from pointsman.core.limits import CLIENTS_REMEMBERED_MAX, REFUSALS_REMEMBERED_MAX
from pointsman.core.placement import Refusal
from pointsman.core.request import Outcome, Request
from pointsman.core.rules import GuardRules

_EARLY_SHARE: Final = 0.9
"""The share of the wait that was told after which a request counts as in time: clocks differ, and
some clients' jitter takes a little off."""

_GAVE_UP_WAIT_S: Final = 1.0
"""Least wait of who gave up by itself, before pressure adds to it: as long as a refusal would have
said. Retrying at once takes 0.3 s from another continent; openai's client pauses for 0.5 s, and
heeds what it is told then."""

_NEVER_S: Final = float("-inf")
_CLIENT_GONE: Final = EndCause.CLIENT_GONE
_TIMEOUT: Final = EndCause.TIMEOUT

_Key = tuple[str, str, int]
"""Client, tenant and prompt."""

_Place = tuple[ModelName, str | None]
"""A model and the pool that was asked for. Both exist, or there would be no room to be short of:
so there are no more of them than are configured."""


class RetryGuard:
    """Remembers what was turned away lately and who sent it, and refuses what comes back too early.

    `is_contended` tells whether a request could only wait now. A request without a client is
    nobody's. The generator is the guard's own, so that jitter changes no choice of a policy.
    """

    def __init__(
        self, rules: GuardRules, is_contended: Callable[[Request, float], bool], seed: int
    ) -> None:
        self.amplification = Amplification()
        self.repeats_after_refusal = 0
        self.repeats_after_giving_up = 0
        self.penalties = 0
        self.apply(rules)
        self._is_contended = is_contended
        self._rng = Random(f"retry guard {seed}")
        self._pressure = Pressure()
        self._full_s: dict[_Place, float] = {}  # when there was last seen to be no room
        # A plain dict looks for its first key through all that were taken out before it.
        self._turned: OrderedDict[_Key, TurnedAway] = OrderedDict()  # in order of `noted_s`
        self._clients: OrderedDict[str, Sender] = OrderedDict()  # in order of last arrival

    def apply(self, rules: GuardRules) -> None:
        """Go by these rules from here on. Strikes stay."""
        self.rules = rules
        self._strike_memory_s = memory_s(rules.strike_half_life_s)

    # --- what the scheduler tells -------------------------------------------------------

    def arrived(self, request: Request, now_s: float) -> Refusal | None:
        """Why the request is to be refused before anything else; None lets it in."""
        self.amplification.arrived(now_s)
        if not request.client:
            return None
        client = self._client(request.client, now_s)
        if now_s - client.noted_s > self.rules.memory_s:
            client.came_in_calm(now_s)
            return None
        turned = self._repeated(request, now_s)
        if turned is None:
            return None if request.is_crowd else self._too_many(request, client, now_s)
        early = self._early(request, turned, client, now_s)
        if early is None:
            turned.running += 1
        return early

    def placed(self, request: Request, now_s: float, *, again: bool) -> None:
        """Note that the request goes to an engine; `again` if the gateway has tried it before."""
        self._pressure.placed(now_s)
        turned = self._known(request)
        if turned is not None and turned.ran:
            turned.ran -= 1
            again = True
        self.amplification.placed(again=again)

    def refused(
        self, request: Request, reason: Reason, wait_s: float | None, now_s: float, *, ran: bool
    ) -> float | None:
        """Note that the request is refused; `ran` if an engine has worked for it. Returns how long
        its client is told to wait, where room is expected in `wait_s`; None to tell nothing."""
        is_penalty = reason is Reason.RETRY_EARLY or reason is Reason.RETRY_STORM
        if not is_penalty:
            self._over(request)
        least_s = ANSWERS[reason].retry_after_s
        if wait_s is None or least_s is None:
            return None
        turned = self._note(request, now_s, gave_up=False, ran=ran)
        client = self._clients.get(request.client)
        if not is_penalty:
            self._pressure.refused(now_s)
        wait_s = max(wait_s, self._pressure.wait_s(least_s, now_s))
        if turned is not None:
            grown_s = wait_s * exp2(turned.strikes(now_s, self._strike_memory_s))
            wait_s = max(wait_s, min(self.rules.penalty_s_max, grown_s))
        told_s = spread_s(wait_s, self._rng)
        # An engine that was asked may have told the client a wait of its own.
        from_s = now_s + _EARLY_SHARE * (least_s if ran else told_s)
        self._keep_away(turned, client, from_s)
        return told_s

    def settled(self, request: Request, outcome: Outcome, now_s: float, *, ran: bool) -> None:
        """Note that a request is over; `ran` if an engine has worked for it. If its client left, or
        it took too long, it may be back at once."""
        self._over(request)
        if outcome.end is _CLIENT_GONE or outcome.end is _TIMEOUT:
            self._gave_up(request, now_s, ran=ran)

    def _over(self, request: Request) -> None:
        """Note that a request that was let in does not run any more."""
        turned = self._known(request)
        if turned is not None and turned.running:
            turned.running -= 1

    def _gave_up(self, request: Request, now_s: float, *, ran: bool) -> None:
        turned = self._note(request, now_s, gave_up=True, ran=ran)
        if turned is None:
            return
        turned.times_given_up += 1
        memory_s = self._strike_memory_s
        if turned.times_given_up > 1:
            turned.strike(now_s, memory_s)
        wait_s = self._pressure.wait_s(_GAVE_UP_WAIT_S, now_s) * exp2(
            turned.strikes(now_s, memory_s)
        )
        client = self._clients.get(request.client)
        self._keep_away(turned, client, now_s + min(wait_s, self.rules.penalty_s_max))

    # --- verdicts -----------------------------------------------------------------------

    def _repeated(self, request: Request, now_s: float) -> TurnedAway | None:
        """What is remembered of the request if it comes again; each refusal explains one
        arrival, so that a prompt that is simply sent often is no repeat."""
        turned = self._known(request)
        if turned is None or now_s - turned.noted_s > self.rules.memory_s:
            return None
        if not turned.owed and not turned.is_given_up_again:
            return None
        turned.owed -= 1 if turned.owed else 0
        self.amplification.repeated()
        if turned.gave_up:
            self.repeats_after_giving_up += 1
        else:
            self.repeats_after_refusal += 1
        return turned

    def _early(
        self, request: Request, turned: TurnedAway, client: Sender, now_s: float
    ) -> Refusal | None:
        is_early = now_s < turned.until_s or turned.is_given_up_again
        if not is_early or not self._punishes(request, now_s):
            return None
        memory_s = self._strike_memory_s
        turned.strike(now_s, memory_s)
        if not turned.was_early:
            turned.was_early = True
            client.came_early(now_s, memory_s)
        self.penalties += 1
        return Refusal(Reason.RETRY_EARLY, ANSWERS[Reason.RETRY_EARLY].message)

    def _too_many(self, request: Request, client: Sender, now_s: float) -> Refusal | None:
        """Whether the client as a whole is in a hurry. Either it hardly ever waits, or it sends so
        much more than before that it must be retrying."""
        is_hasty = client.is_hasty(now_s, self._strike_memory_s, self.rules.hasty_share)
        if client.until_s <= now_s and not is_hasty:
            client.came_in_calm(now_s)
            return None
        exceeds = is_hasty or not client.may_send(now_s, self.rules.growth)
        if not exceeds or not self._punishes(request, now_s):
            return None
        self.penalties += 1
        return Refusal(Reason.RETRY_STORM, ANSWERS[Reason.RETRY_STORM].message)

    def _punishes(self, request: Request, now_s: float) -> bool:
        if not self.rules.enabled:
            return False
        place = request.model, request.pool
        if self._is_contended(request, now_s):
            self._full_s[place] = now_s
        return now_s - self._full_s.get(place, _NEVER_S) <= self.rules.room_s

    # --- memory -------------------------------------------------------------------------

    def _note(
        self, request: Request, now_s: float, *, gave_up: bool, ran: bool
    ) -> TurnedAway | None:
        """Remember that the request was turned away. None where nothing tells it apart."""
        if not request.client:
            return None
        client = self._client(request.client, now_s)
        client.noted_s = now_s
        key = _key(request)
        if not key[-1]:
            return None
        turned = self._turned.get(key)
        if turned is None:
            turned = self._turned[key] = TurnedAway()
            client.turned_away(now_s, self._strike_memory_s)
        else:
            self._turned.move_to_end(key)
        turned.owed += 1
        turned.ran += ran
        turned.gave_up = gave_up
        turned.noted_s = now_s
        self._forget_oldest(now_s)
        return turned

    def _known(self, request: Request) -> TurnedAway | None:
        """What is remembered of the request. Where nothing is remembered of the client, which is
        all of them in calm times, not even the prompt is hashed."""
        client = self._clients.get(request.client)
        if client is None or client.noted_s == _NEVER_S:
            return None
        return self._turned.get(_key(request))

    def _keep_away(self, turned: TurnedAway | None, client: Sender | None, until_s: float) -> None:
        """Set until when to keep away: the request by what it was told last, its client by the
        longest that any of its requests was told."""
        if turned is not None:
            turned.until_s = until_s
        if client is not None and client.until_s < until_s:
            client.until_s = until_s

    def _forget_oldest(self, now_s: float) -> None:
        """Forget two for each that comes in, so that the old are gone before the new are many."""
        for _ in range(2):
            oldest = next(iter(self._turned))
            age_s = now_s - self._turned[oldest].noted_s
            if age_s <= self.rules.memory_s and len(self._turned) <= REFUSALS_REMEMBERED_MAX:
                return
            del self._turned[oldest]

    def _client(self, name: str, now_s: float) -> Sender:
        client = self._clients.get(name)
        if client is not None:
            self._clients.move_to_end(name)
            return client
        if len(self._clients) >= CLIENTS_REMEMBERED_MAX:
            self._clients.popitem(last=False)
        client = self._clients[name] = Sender(now_s)
        return client

    # --- views --------------------------------------------------------------------------

    def check(self) -> None:
        """Assert that bounds and order hold."""
        assert len(self._turned) <= REFUSALS_REMEMBERED_MAX, len(self._turned)
        assert len(self._clients) <= CLIENTS_REMEMBERED_MAX, len(self._clients)
        noted_s = [turned.noted_s for turned in self._turned.values()]
        assert noted_s == sorted(noted_s), "the oldest is not first"
        assert all(turned.owed >= 0 and turned.ran >= 0 for turned in self._turned.values())
        assert all(turned.running >= 0 for turned in self._turned.values())

    def __repr__(self) -> str:
        return f"<RetryGuard {len(self._turned)} turned away, {len(self._clients)} clients>"


def _key(request: Request) -> _Key:
    return request.client, request.tenant, request.prompt.fingerprint()
