"""Asks engines over HTTP, and says why it failed in words that lead to the cause."""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from types import MappingProxyType

import aiohttp
import msgspec
from aiohttp import hdrs

from pointsman.descriptors import is_for_want_of_descriptors
from pointsman.engines.adapters import EngineKeys, EngineReply, EngineTrouble
from pointsman.engines.adapters.address import RANK_HEADER, rank_headers, rank_of, server_of

BODY_BYTES_MAX = 8 * 1024 * 1024
"""The most bytes of an answer. A metrics page has 50 kB, a list of a thousand adapters 300 kB; what
says more is no engine."""

CONNECTIONS_MAX = 256
"""The most collector connections at once, over all nodes; more wait for one. The descriptors are
for clients."""

REFUSES_THE_KEY = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})

ASK_PATH = "/v1/completions"
"""Where an engine is asked for a token; one that has no such route says so, which is no verdict."""

RANK_BEYOND = 9_999
"""A rank that no server has: as large as a rank in an address may be."""

_RANKS = re.compile(rb"data_parallel_rank 9999 is out of range \[0, ([0-9]{1,4})\)")
"""As vLLM refuses it (vllm/v1/engine/input_processor.py)."""

IDLE_S_MAX = 2.0
"""Idle connections are closed before uvicorn does it (5 s), which would race with our GET."""

_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


def new_session(keys: EngineKeys, *, reuses: bool = True) -> aiohttp.ClientSession:
    """The one session that all collectors share, with engines' keys. The caller closes it. One that
    reuses nothing makes a connection for each request."""
    connector = aiohttp.TCPConnector(
        limit=CONNECTIONS_MAX,
        limit_per_host=4,
        force_close=not reuses,
        keepalive_timeout=IDLE_S_MAX if reuses else None,
    )
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),  # a balancer's would pin it to one of several engines
        headers={"User-Agent": "pointsman"},
        middlewares=(keys.authorize,),
        timeout=aiohttp.ClientTimeout(total=None),  # each call has its own
        auto_decompress=True,
    )


class EngineClient:
    """Asks one engine, or one rank of it: anything, and by the smallest of all requests."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.rank = rank_of(url)
        self._session = session
        self._base = server_of(url)
        self._headers = rank_headers(url)

    async def get(self, path: str, *, timeout_s: float) -> EngineReply:
        """The answer to a GET, of whatever status. Raises EngineTrouble."""
        async with self._answer("GET", path, timeout_s) as answer:
            return await _whole(answer)

    async def post(self, path: str, body: object, *, timeout_s: float) -> EngineReply:
        """The answer to JSON, of whatever status. Raises EngineTrouble."""
        async with self.streamed(path, body, timeout_s=timeout_s) as answer:
            return await _whole(answer)

    @asynccontextmanager
    async def streamed(
        self, path: str, body: object, *, timeout_s: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer to JSON as it comes, which is to have come by then. Raises EngineTrouble,
        also for what becomes of it while it is read."""
        async with self._answer("POST", path, timeout_s, body, self._headers) as answer:
            yield answer

    async def ask(self, model: str, *, timeout_s: float) -> int:
        """Ask for one token: the status of the answer. Raises EngineTrouble, also where the key
        that we have for the engine is refused, which no request would get past."""
        return (await self._ask(model, self._headers, timeout_s)).status

    async def ranks_named(self, model: str, *, timeout_s: float) -> int:
        """How many data-parallel ranks a request may name there. The server is asked for one that
        no server has, refuses it, and says which ones it has. 0 if it does not. Raises
        EngineTrouble."""
        reply = await self._ask(model, {RANK_HEADER: str(RANK_BEYOND)}, timeout_s)
        if reply.status in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS):
            raise EngineTrouble(f"POST {ASK_PATH} answers {reply.status}: it has no time")
        found = _RANKS.search(reply.body) if reply.status == HTTPStatus.BAD_REQUEST else None
        return int(found.group(1)) if found else 0

    async def _ask(self, model: str, headers: Mapping[str, str], timeout_s: float) -> EngineReply:
        asked = {"model": model, "prompt": "1", "max_tokens": 1}
        async with self._answer("POST", ASK_PATH, timeout_s, asked, headers) as answer:
            sent_key = hdrs.AUTHORIZATION in answer.request_info.headers
            if sent_key and answer.status in REFUSES_THE_KEY:
                raise EngineTrouble(
                    f"POST {ASK_PATH} answers {answer.status}: it refuses its configured key"
                )
            return await _whole(answer)

    @asynccontextmanager
    async def _answer(
        self,
        method: str,
        path: str,
        timeout_s: float,
        body: object = None,
        headers: Mapping[str, str] = _NO_HEADERS,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer of whatever status, and whatever goes wrong with it as EngineTrouble."""
        question = f"{method} {path}"
        data = None if body is None else msgspec.json.encode(body)
        kind = {} if body is None else {"Content-Type": "application/json"}
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._session.request(
                    method,
                    self._base + path,
                    data=data,
                    headers={**kind, **headers},
                    allow_redirects=False,
                ) as answer,
            ):
                yield answer
        except TimeoutError:
            detail = f"no answer to {question} within {timeout_s:g} s"
            raise EngineTrouble(detail, timed_out=True) from None
        except aiohttp.ClientError as error:
            is_ours = is_for_want_of_descriptors(error)
            raise EngineTrouble(_cause(error, question), is_ours=is_ours) from None
        except (OSError, ValueError) as error:
            raise EngineTrouble(f"{question}: {error}") from None


async def _whole(answer: aiohttp.ClientResponse) -> EngineReply:
    body = bytearray()
    async for piece in answer.content.iter_any():
        body += piece
        if len(body) > BODY_BYTES_MAX:
            question = f"{answer.method} {answer.url.path}"
            raise EngineTrouble(f"{question} answers more than {BODY_BYTES_MAX} bytes")
    return EngineReply(answer.status, bytes(body))


def _cause(error: aiohttp.ClientError, question: str) -> str:
    match error:
        case aiohttp.ClientConnectorDNSError():
            return "its host name cannot be resolved"
        case aiohttp.ClientConnectorError():
            return _connect_cause(error.os_error)
        case aiohttp.ServerDisconnectedError():
            return f"it closed the connection without answering {question}"
        case aiohttp.ClientResponseError():
            return f"it does not speak HTTP ({question}): is this its HTTP port?"
        case aiohttp.ClientOSError():
            return f"the connection broke: {error.strerror or error}"
        case _:
            return f"{question}: {error or type(error).__name__}"


def _connect_cause(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused: is it running, and is this its HTTP port?"
    return f"cannot connect: {error.strerror or error}"
