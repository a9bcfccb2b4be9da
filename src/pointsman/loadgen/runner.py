"""Open and closed loop: when each request is sent, and the record of what became of it.

Open loop: requests are due at their arrival times whatever the server does, and times count from
the moment due, so a queue that forms in the client is not hidden (no coordinated omission).
Closed loop: a number of conversations run at once; a turn comes when the previous one has ended
and its think time has passed.

Times are read from `perf_counter`: uvloop's own clock stands still within a turn of the loop.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from time import perf_counter
from urllib.parse import quote

import msgspec

from pointsman.loadgen.client import LoadClient
from pointsman.loadgen.completion import CompletionExchange
from pointsman.traffic.outcome import Outcome, RequestRecord
from pointsman.traffic.request import TrafficRequest, conversations
from pointsman.traffic.text import PromptWriter


class Endpoint(StrEnum):
    """The route that requests go to."""

    CHAT = "chat"
    COMPLETIONS = "completions"


class LoadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`concurrency` None means open loop. `salt` makes the run's prompts its own."""

    model: str
    endpoint: Endpoint = Endpoint.CHAT
    concurrency: int | None = None
    salt: str = ""
    run_id: str = "bench"


class LoadRun:
    """One run of a stream of requests against one server. Call `run` once.

    `records` fills up as requests end; `in_flight` is what is on its way. `stop` may be called at
    any time: nothing more is sent, what is in flight ends as interrupted, `run` returns.
    """

    def __init__(
        self,
        client: LoadClient,
        requests: Sequence[TrafficRequest],
        options: LoadOptions,
        *,
        on_record: Callable[[RequestRecord], None] | None = None,
    ) -> None:
        self.records: list[RequestRecord] = []
        self.in_flight = 0
        self.duration_s = 0.0
        self._client = client
        self._requests = requests
        self._options = options
        self._on_record = on_record
        self._writer = PromptWriter(salt=options.salt)
        self._stopped = asyncio.Event()
        self._started_s = 0.0

    async def run(self) -> list[RequestRecord]:
        """Send everything and return the records in order of their requests."""
        self._started_s = perf_counter()
        if self._options.concurrency is None:
            await self._open_loop()
        else:
            await self._closed_loop(self._options.concurrency)
        self.duration_s = perf_counter() - self._started_s
        self.records.sort(key=lambda record: record.index)
        return self.records

    def stop(self) -> None:
        """End the run early."""
        self._stopped.set()
        self._client.interrupt()

    async def _open_loop(self) -> None:
        """The next request is written while it is not due yet, so that rendering delays nothing.

        Without a free connection the loop waits; later requests are sent late, and say so.
        """
        async with asyncio.TaskGroup() as group:
            for index, request in enumerate(self._requests):
                payload = self._payload(index, request)
                if await self._stopped_before(self._started_s + request.at_s):
                    return
                await self._client.wait_for_slot()
                group.create_task(self._exchange(index, request, payload, due_s=request.at_s))

    async def _closed_loop(self, concurrency: int) -> None:
        indexes = {id(request): index for index, request in enumerate(self._requests)}
        waiting = iter(conversations(self._requests))

        async def converse() -> None:
            for turns in waiting:
                ended_s = perf_counter()
                for request in turns:
                    index = indexes[id(request)]
                    payload = self._payload(index, request)
                    if await self._stopped_before(ended_s + request.think_s):
                        return
                    await self._client.wait_for_slot()
                    due_s = perf_counter() - self._started_s
                    await self._exchange(index, request, payload, due_s=due_s)
                    ended_s = perf_counter()

        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(converse())

    async def _stopped_before(self, at_s: float) -> bool:
        """Sleep until `at_s`; True as soon as the run is stopped.

        uvloop counts timers in whole milliseconds and may fire early, hence the loop.
        """
        await asyncio.sleep(0)
        while not self._stopped.is_set() and (delay_s := at_s - perf_counter()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await self._stopped.wait()
        return self._stopped.is_set()

    async def _exchange(
        self, index: int, request: TrafficRequest, payload: bytes, *, due_s: float
    ) -> None:
        sent_s = perf_counter() - self._started_s
        self.in_flight += 1
        try:
            exchange = await self._client.complete(payload)
        finally:
            self.in_flight -= 1
        record = self._record(index, request, exchange, due_s=due_s, sent_s=sent_s)
        self.records.append(record)
        if self._on_record is not None:
            self._on_record(record)

    def _payload(self, index: int, request: TrafficRequest) -> bytes:
        text = self._writer.prompt(request, index=index)
        body: dict[str, object] = {"model": self._options.model}
        if self._options.endpoint is Endpoint.CHAT:
            path = "/v1/chat/completions"
            body["messages"] = [{"role": "user", "content": text}]
        else:
            path = "/v1/completions"
            body["prompt"] = text
        body |= {
            "max_tokens": max(1, request.output_tokens),
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
        }
        headers = {"x-request-id": f"{self._options.run_id}-{index}"}
        if request.session:
            headers["x-pointsman-session"] = quote(request.session)
        if request.tenant:
            headers["x-pointsman-tenant"] = quote(request.tenant)
        if request.priority:
            headers["x-pointsman-priority"] = str(request.priority)
        return self._client.request("POST", path, msgspec.json.encode(body), headers)

    def _record(
        self,
        index: int,
        request: TrafficRequest,
        exchange: CompletionExchange,
        *,
        due_s: float,
        sent_s: float,
    ) -> RequestRecord:
        due_at_s = self._started_s + due_s
        first_s = exchange.first_token_s
        return RequestRecord(
            index=index,
            due_s=due_s,
            sent_s=sent_s,
            outcome=exchange.failure or Outcome.OK,
            e2e_s=exchange.ended_s - due_at_s,
            ttft_s=None if first_s is None else first_s - due_at_s,
            tpot_s=exchange.tpot_s,
            chunks=exchange.chunks,
            input_tokens=request.input_tokens,
            output_tokens=request.output_tokens,
            prompt_tokens=exchange.prompt_tokens,
            completion_tokens=exchange.completion_tokens,
            cached_tokens=exchange.cached_tokens,
            http_status=exchange.status or None,
            cause=exchange.cause,
            detail=exchange.detail,
            node=exchange.headers.get("x-pointsman-node", ""),
            request_id=exchange.headers.get("x-request-id", ""),
            session=request.session,
            turn=request.turn,
            tenant=request.tenant,
            priority=request.priority,
            part=request.part,
        )
