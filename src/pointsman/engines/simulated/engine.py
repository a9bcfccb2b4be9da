"""One engine behind its sockets: takes requests, plans their jobs, answers them.

A generating request's way: `handle` finds the route; `generate` reads the body, lets a fault
answer, decodes (`bodies`), makes one job per choice (`author`), queues them in the driver, and
answers by `streams`. Its jobs are aborted on every way out: for a finished one that does nothing.
"""

import asyncio
import os
import time
from array import array
from collections.abc import Awaitable, Callable, Sequence
from itertools import zip_longest
from typing import Protocol, TypeVar

import msgspec
from aiohttp import HttpVersion11, web

from pointsman.engines.adapters.address import RANK_HEADER
from pointsman.engines.compute_model import EngineSequence, Job
from pointsman.engines.simulated.answers import ApiError, Dialect, Script
from pointsman.engines.simulated.author import Author
from pointsman.engines.simulated.bodies import Ask
from pointsman.engines.simulated.driver import EngineDriver
from pointsman.engines.simulated.faults import Faults, FaultsPatch
from pointsman.engines.simulated.kv_events import EventPublisher
from pointsman.engines.simulated.options import EngineOptions
from pointsman.engines.simulated.rank import Rank
from pointsman.engines.simulated.streams import EventStream, StreamFaults, WholeAnswer
from pointsman.wire.priority import ENGINES_HEADER, read_engines_priority

QUEUED_REQUESTS_MAX = 100_000  # whatever the options say: a bound on memory
CLIENT_GONE = 499  # nginx's number for it
GUARDED = ("/v1", "/v2", "/inference")  # by a key: vLLM's prefixes
_STREAM_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8"}
_BUSY = (
    "The engine is currently busy and cannot accept new requests. "
    "Please try again later or on a different instance."
)

Route = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
T = TypeVar("T")


class GeneratingBody(Protocol):
    """The body of a generating route."""

    def ask(self, default_model: str) -> Ask:
        """The request in the common form. Raises ApiError."""


class SimulatedEngine:
    """The engine. Owns its ranks, faults and the adapters' table."""

    def __init__(
        self, options: EngineOptions, *, port: int, publishers: Sequence[EventPublisher] = ()
    ) -> None:
        self.options = options
        self.port = port
        self.profile = options.compute_profile()
        self.loras = {name: index for index, name in enumerate(options.loras, 1)}
        self.faults = Faults(idle_close_s=options.idle_close_s)
        self.started_s = time.time()
        self.restarts = 0
        self.load = 0  # inference requests being served
        self.ranks = [
            Rank(number, options, loras=self.loras, publisher=publisher)
            for number, publisher in zip_longest(range(options.data_parallel_size), publishers)
        ]
        self._author = Author(
            model=options.model, loras=self.loras, profile=self.profile, seed=options.seed
        )
        self._routes: dict[tuple[str, str], Route] = {}
        self._under: dict[str, Callable[[str, str], Route | None]] = {}
        self._thawed = asyncio.Event()
        self._thawed.set()

    @property
    def driver(self) -> EngineDriver:
        """The first rank's: most engines have no other."""
        return self.ranks[0].driver

    @property
    def publisher(self) -> EventPublisher | None:
        """The first rank's."""
        return self.ranks[0].publisher

    def add_routes(self, routes: dict[tuple[str, str], Route]) -> None:
        """Serve these; (method, path) -> handler."""
        self._routes.update(routes)

    def add_routes_under(self, prefix: str, find: Callable[[str, str], Route | None]) -> None:
        """Serve what is found by method and path, of paths that begin so."""
        self._under[prefix] = find

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one HTTP request."""
        route = self._route(request.method, request.path)
        if request.headers.get("Expect", "").lower() == "100-continue" and request.transport:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        try:
            if route is None:
                known = any(path == request.path for _method, path in self._routes)
                status, text = (405, "Method Not Allowed") if known else (404, "Not Found")
                raise ApiError(status, text, text)
            self._check_key(request)
            return await route(request)
        except SimulatedStatusError as error:
            retry = error.retry_after_s
            headers = {} if retry is None else {"Retry-After": f"{retry:g}"}
            return json_answer(error.body(), error.status, headers)
        except ApiError as error:
            return json_answer(error.body(), error.status)
        except msgspec.ValidationError as error:  # in a part that is decoded on its own
            refused = ApiError(400, f"1 validation error:\n  {error}", "Bad Request")
            return json_answer(refused.body(), refused.status)
        except ConnectionResetError:  # before its head was out: nobody is left to tell
            return web.Response(status=CLIENT_GONE)

    def _check_key(self, request: web.BaseRequest) -> None:
        """As vLLM guards its routes. Raises ApiError."""
        key = self.options.api_key
        if not key or not request.path.startswith(GUARDED):
            return
        if request.headers.get("Authorization") != f"Bearer {key}":
            raise ApiError(401, "Unauthorized", "Unauthorized")

    def _route(self, method: str, path: str) -> Route | None:
        for prefix, find in self._under.items():
            if path.startswith(prefix):
                return find(method, path)
        return self._routes.get((method, path))

    def simulate(self, patch: FaultsPatch) -> None:
        """Change what goes wrong; `crash` does not return."""
        if patch.crash:
            os._exit(1)
        self.faults.apply(patch, idle_close_s=self.options.idle_close_s)
        for rank in self.ranks:
            rank.driver.set_pace(slow=self.faults.slow, hang=self.faults.hang)
        if self.faults.hang:
            self._thawed.clear()
        else:
            self._thawed.set()
        if patch.restart:
            self._restart()

    def close(self) -> None:
        """Fail every request in progress, as vLLM does at SIGTERM."""
        self._thawed.set()
        for rank in self.ranks:
            rank.driver.close()

    async def generate(
        self,
        request: web.BaseRequest,
        body_type: type[GeneratingBody],
        dialect_type: Callable[[Script], Dialect],
        id_prefix: str,
    ) -> web.StreamResponse:
        """Serve one generating request. Raises ApiError."""
        self.load += 1
        try:
            ask = decode(await self.admit(request), body_type).ask(self.options.model)
            script = self._author.write(
                ask,
                answer_id=self.answer_id(request, id_prefix),
                priority=_priority(request, ask.priority),
            )
            dialect = dialect_type(script)
            await self._thaw()
            rank = self._rank_for(request, len(script.choices))
            if ask.stream:
                return await self._answer_stream(request, dialect, rank)
            return await self._answer_whole(request, dialect, rank)
        finally:
            self.load -= 1

    async def admit(self, request: web.BaseRequest) -> bytes:
        """The body of an inference request, unless a fault answers it. Raises ApiError."""
        body = await request.read()
        status = self.faults.status.take()
        if status is not None:
            raise SimulatedStatusError(status, self.faults.retry_after)
        return body

    async def compute(
        self, request: web.BaseRequest, prompts: list["array[int]"], model: str
    ) -> None:
        """Spend the time that these prompts take, for routes whose answer is no text."""
        jobs = self._author.pooling_jobs(prompts, model)
        if not jobs:
            return
        await self._thaw()
        rank = self._rank_for(request, len(jobs))
        self.load += 1
        try:
            await self._wait_for(request, rank, jobs, {})
        finally:
            self.load -= 1

    def answer_id(self, request: web.BaseRequest, prefix: str) -> str:
        """vLLM's ids: the client's X-Request-Id, else a fresh one, behind a prefix."""
        return prefix + (request.headers.get("X-Request-Id") or self._author.fresh_id())

    async def _thaw(self) -> None:
        if self.faults.hang:
            await self._thawed.wait()

    def _restart(self) -> None:
        self.restarts += 1
        self.started_s = time.time()
        for rank in self.ranks:
            rank.restart()

    def _rank_for(self, request: web.BaseRequest, jobs: int) -> Rank:
        """The rank that the request names, as vLLM takes it, else the one with least to do.
        Raises ApiError where it does not exist, or is not to have so many jobs more."""
        named = request.headers.get(RANK_HEADER, "")
        if not named.isdecimal():
            rank = min(self.ranks, key=lambda rank: rank.driver.requests)
        elif int(named) < len(self.ranks):
            rank = self.ranks[int(named)]
        else:
            text = f"data_parallel_rank {named} is out of range [0, {len(self.ranks)})."
            raise ApiError(400, text)
        limit = self.options.max_num_queued_reqs or QUEUED_REQUESTS_MAX
        if rank.driver.requests + jobs > limit:
            rank.stats.rejections += 1
            raise ApiError(503, _BUSY, "Service Unavailable")
        return rank

    def _take_faults(self) -> StreamFaults:
        return StreamFaults(
            cut_at=self.faults.cut_at_token.take(),
            cut_reset=self.faults.cut_reset,
            error_at=self.faults.error_at_token.take(),
        )

    async def _answer_stream(
        self, request: web.BaseRequest, dialect: Dialect, rank: Rank
    ) -> web.StreamResponse:
        """The head goes out at once, before the first token, as from vLLM."""
        response = web.StreamResponse(headers=_STREAM_HEADERS)
        chunked = request.version >= HttpVersion11
        if chunked:
            response.enable_chunked_encoding()
        writer = await response.prepare(request)
        transport = request.transport
        if writer is None or transport is None:
            raise ConnectionResetError("the client is gone")
        stream = EventStream(
            dialect, transport, chunked=chunked, faults=self._take_faults(), stats=rank.stats
        )
        choices = dialect.script.choices
        try:
            for choice in choices:
                choice.sequence = rank.driver.submit(choice.job, stream.listener(choice))
            await stream.run(writer)
        finally:
            for choice in choices:
                rank.driver.abort(choice.job.id)
        await response.write_eof()
        return response

    async def _answer_whole(
        self, request: web.BaseRequest, dialect: Dialect, rank: Rank
    ) -> web.StreamResponse:
        choices = dialect.script.choices
        reasons = {choice.job.id: choice.finish_reason for choice in choices}
        jobs = [choice.job for choice in choices]
        sequences = await self._wait_for(request, rank, jobs, reasons)
        for choice, sequence in zip(choices, sequences, strict=True):
            choice.sequence = sequence
        return json_answer(dialect.whole(), headers=_load_header(request, rank))

    async def _wait_for(
        self,
        request: web.BaseRequest,
        rank: Rank,
        jobs: list[Job],
        reasons: dict[str, str],
    ) -> list[EngineSequence]:
        """Queue jobs and wait for all of them. Raises ApiError when the engine fails."""
        answer = WholeAnswer(
            len(jobs),
            request.transport,
            faults=self._take_faults(),
            stats=rank.stats,
            finish_reasons=reasons,
        )
        try:
            sequences = [rank.driver.submit(job, answer) for job in jobs]
            done = await answer.wait()
        finally:
            for job in jobs:
                rank.driver.abort(job.id)
        if not done:
            text = "EngineCore encountered an issue. See stack trace (above) for the root cause."
            raise ApiError(500, text, "InternalServerError")
        return sequences


class SimulatedStatusError(ApiError):
    """The answer that `POST /simulate {"status": ...}` ordered."""

    def __init__(self, status: int, retry_after_s: float | None) -> None:
        super().__init__(status, f"Simulated status {status}.", "SimulatedError")
        self.retry_after_s = retry_after_s


def decode(body: bytes, body_type: type[T]) -> T:
    """A JSON body. Raises ApiError for bad JSON, msgspec.ValidationError for a wrong type."""
    try:
        return msgspec.json.decode(body, type=body_type)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, RecursionError) as error:
        text = f"1 validation error:\n  {{'type': 'json_invalid', 'msg': '{error}'}}"
        raise ApiError(400, text, "Bad Request", "body") from error


def json_answer(
    body: bytes, status: int = 200, headers: dict[str, str] | None = None
) -> web.Response:
    """A JSON response of encoded bytes."""
    return web.Response(body=body, status=status, content_type="application/json", headers=headers)


def _load_header(request: web.BaseRequest, rank: Rank) -> dict[str, str]:
    """vLLM's ORCA report, on request."""
    wanted = request.headers.get("endpoint-load-metrics-format", "").upper()
    model = rank.driver.model
    values = {
        "num_requests_waiting": float(model.waiting),
        "kv_cache_usage_perc": model.kv_usage,
    }
    if wanted == "JSON":
        report = msgspec.json.encode({"named_metrics": values}).decode()
        return {"endpoint-load-metrics": f"JSON {report}"}
    if wanted == "TEXT":
        report = ", ".join(f"named_metrics.{name}={value}" for name, value in values.items())
        return {"endpoint-load-metrics": f"TEXT {report}"}
    return {}


def _priority(request: web.BaseRequest, of_body: int) -> int:
    """vLLM's header goes before the body, unless it is no integer."""
    of_head = read_engines_priority(request.headers.get(ENGINES_HEADER, ""))
    return of_body if of_head is None else of_head
