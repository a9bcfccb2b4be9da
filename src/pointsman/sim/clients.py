"""The clients: they send what the trace says, try again if they are of that kind, and note what
came of each request."""

from collections.abc import Callable, Mapping, Sequence
from random import Random

from pointsman.core.errors import EndCause
from pointsman.core.ids import RequestId
from pointsman.sim.answer import Answer
from pointsman.sim.clock import Clock, Timer
from pointsman.sim.gateway import SimulatedGateway
from pointsman.sim.prompts import Prompts
from pointsman.sim.scenario import Backoff, Clients, Network
from pointsman.traffic.outcome import Outcome, RequestRecord
from pointsman.traffic.request import TrafficRequest
from pointsman.traffic.slo import Slo

BACKOFF_S = 0.5
BACKOFF_S_MAX = 60.0
_RETRIED = frozenset({408, 409, 429, 500, 502, 503, 504})
"""As the openai client does."""

_ERROR_STATUS_MIN = 400


class Population:
    """All clients, and what they share. `on_done` is called when the last request is over;
    `busy_until_s` is when something was last sent or answered, or will be sent."""

    def __init__(
        self,
        clock: Clock,
        gateways: Sequence[SimulatedGateway],
        requests: Sequence[TrafficRequest],
        prompts: Prompts,
        *,
        behaviour: Clients,
        by_part: Mapping[str, Clients],
        network: Network,
        slo: Slo,
        rng: Random,
        on_done: Callable[[], None],
    ) -> None:
        self.clock = clock
        self.gateways = gateways
        self.requests = requests
        self.prompts = prompts
        self.network = network
        self.slo = slo
        self.rng = rng
        self.records: list[RequestRecord | None] = [None] * len(requests)
        self.attempts = 0
        self.done = 0
        self.busy_until_s = 0.0
        self._behaviour = behaviour
        self._by_part = by_part
        self._on_done = on_done
        self._following: dict[int, int] = {}

    def begin(self) -> None:
        """Send what comes by the clock; in a closed loop only first turns do."""
        last_of: dict[str, int] = {}
        for index, request in enumerate(self.requests):
            closed_loop = self.behaviour(request).closed_loop
            before = last_of.get(request.session) if closed_loop else None
            if before is None:
                self._due(index, request.at_s)
            else:
                self._following[before] = index
            if request.session:
                last_of[request.session] = index

    def behaviour(self, request: TrafficRequest) -> Clients:
        """How the client behaves that sends it."""
        return self._by_part.get(request.part, self._behaviour)

    def _due(self, index: int, due_s: float) -> None:
        self.expect(due_s)
        self.clock.at(due_s, self._send, index, due_s)

    def _send(self, index: int, due_s: float) -> None:
        _Call(self, index, due_s).send()

    def expect(self, due_s: float) -> None:
        """Something will happen at that time, so silence until then is no standstill."""
        self.busy_until_s = max(self.busy_until_s, due_s)

    def ended(self, call: "_Call", record: RequestRecord) -> None:
        """A request has come to its end, after however many attempts."""
        assert self.records[record.index] is None, f"request {record.index} ended twice"
        self.records[record.index] = record
        self.done += 1
        self.expect(self.clock.now_s)
        following = self._following.get(record.index)
        if following is not None:
            due_s = self.clock.now_s + self.network.client_s
            due_s += self.requests[following].think_s
            self._due(following, due_s)
        if self.done == len(self.records):
            self._on_done()


class _Call:
    """One request, from when it is due to the last answer to it."""

    __slots__ = (
        "_attempt",
        "_behaviour",
        "_due_s",
        "_index",
        "_placements",
        "_population",
        "_request_id",
        "_timer",
    )

    def __init__(self, population: Population, index: int, due_s: float) -> None:
        self._population = population
        self._behaviour = population.behaviour(population.requests[index])
        self._index = index
        self._due_s = due_s
        self._placements = 0
        self._attempt = 0
        self._request_id = RequestId("")
        self._timer: Timer | None = None

    def send(self) -> None:
        population = self._population
        population.attempts += 1
        gateway = population.gateways[(self._index + self._attempt) % len(population.gateways)]
        self._request_id = RequestId(f"{self._index}.{self._attempt}")
        population.clock.after(population.network.client_s, self._arrive, gateway)
        timeout_s = self._behaviour.timeout_s
        if timeout_s is not None:
            self._timer = population.clock.after(timeout_s, self._give_up, gateway)

    def _arrive(self, gateway: SimulatedGateway) -> None:
        population = self._population
        asked, behaviour = population.requests[self._index], self._behaviour
        request = population.prompts.request(
            self._index,
            self._request_id,
            bounds_output=behaviour.bounds_output,
            stream=behaviour.streams,
            slo_ttft_s=population.slo.ttft_due_s(asked.input_tokens)
            if behaviour.tells_slo
            else None,
            address=behaviour.address,
        )
        gateway.arrive(request, asked.output_tokens, self)

    def _give_up(self, gateway: SimulatedGateway) -> None:
        delay_s = self._population.network.client_s
        self._population.clock.after(delay_s, gateway.client_gone, self._request_id)

    def answered(self, answer: Answer) -> None:
        if self._timer is not None:
            self._timer.cancel()
        population = self._population
        self._placements += answer.placements
        if self._tries_again(answer):
            wait_s = self._wait_s(answer)
            self._attempt += 1
            wait_s += population.network.client_s
            population.expect(population.clock.now_s + wait_s)
            population.clock.after(wait_s, self.send)
            return
        population.ended(self, self._record(answer))

    def _tries_again(self, answer: Answer) -> bool:
        if self._attempt >= self._behaviour.retries_max:
            return False
        timed_out = answer.end is EndCause.CLIENT_GONE
        return timed_out or answer.status in _RETRIED

    def _wait_s(self, answer: Answer) -> float:
        population = self._population
        if self._behaviour.backoff is Backoff.NONE:
            return 0.0
        wait_s = min(BACKOFF_S_MAX, BACKOFF_S * 2.0**self._attempt)
        jittered_s = wait_s * (1 - 0.25 * population.rng.random())
        return max(jittered_s, answer.retry_after_s or 0.0)

    def _record(self, answer: Answer) -> RequestRecord:
        request, client_s = (
            self._population.requests[self._index],
            self._population.network.client_s,
        )
        finished = answer.end is EndCause.FINISHED
        e2e_s = answer.ended_s + client_s - self._due_s
        ttft_s = None
        if answer.first_byte_s is not None and answer.status == 200:
            ttft_s = answer.first_byte_s + client_s - self._due_s
        steps = request.output_tokens - 1
        tpot_s = (e2e_s - ttft_s) / steps if finished and ttft_s is not None and steps > 0 else None
        return RequestRecord(
            index=self._index,
            due_s=self._due_s,
            sent_s=self._due_s,
            outcome=_outcome(answer),
            e2e_s=e2e_s,
            ttft_s=ttft_s,
            tpot_s=tpot_s,
            input_tokens=request.input_tokens,
            output_tokens=request.output_tokens,
            prompt_tokens=request.input_tokens if finished else None,
            completion_tokens=request.output_tokens if finished else None,
            cached_tokens=answer.cached_tokens,
            http_status=None if answer.silent else answer.status,
            cause=answer.reason,
            node=answer.node,
            session=request.session,
            turn=request.turn,
            tenant=request.tenant,
            priority=request.priority,
            part=request.part,
            tries=self._attempt + 1,
            placements=self._placements,
        )


def _outcome(answer: Answer) -> Outcome:
    """What became of it, as a client over HTTP would see it."""
    if answer.end is EndCause.FINISHED:
        return Outcome.OK
    if answer.end is EndCause.CLIENT_GONE:
        return Outcome.TIMEOUT
    return Outcome.HTTP_ERROR if answer.status >= _ERROR_STATUS_MIN else Outcome.TRUNCATED
