"""Asks engines by GET, and says why it failed in words that lead to the cause."""

import asyncio
import re
import socket
from http import HTTPStatus

import aiohttp
from aiohttp import hdrs

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


def new_session(keys: EngineKeys) -> aiohttp.ClientSession:
    """The one session that all collectors share, with engines' keys. The caller closes it."""
    connector = aiohttp.TCPConnector(
        limit=CONNECTIONS_MAX, limit_per_host=4, keepalive_timeout=IDLE_S_MAX
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
    """Asks one engine: by GET, and by the smallest of all requests."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.rank = rank_of(url)
        self._session = session
        self._base = server_of(url)
        self._headers = rank_headers(url)

    async def get(self, path: str, *, timeout_s: float) -> EngineReply:
        """The answer to a GET, of whatever status. Raises EngineTrouble."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._get(path)
        except TimeoutError:
            detail = f"no answer to GET {path} within {timeout_s:g} s"
            raise EngineTrouble(detail, timed_out=True) from None
        except aiohttp.ClientError as error:
            raise EngineTrouble(_cause(error, path)) from None
        except (OSError, ValueError) as error:
            raise EngineTrouble(f"GET {path}: {error}") from None

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

    async def _ask(self, model: str, headers: dict[str, str], timeout_s: float) -> EngineReply:
        """Ask for one token: the beginning of the answer."""
        asked = {"model": model, "prompt": "1", "max_tokens": 1}
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._session.post(
                    self._base + ASK_PATH, json=asked, headers=headers, allow_redirects=False
                ) as response,
            ):
                sent_key = hdrs.AUTHORIZATION in response.request_info.headers
                if sent_key and response.status in REFUSES_THE_KEY:
                    raise EngineTrouble(
                        f"POST {ASK_PATH} answers {response.status}: it refuses its configured key"
                    )
                return EngineReply(response.status, await response.content.readany())
        except TimeoutError:
            detail = f"no answer to POST {ASK_PATH} within {timeout_s:g} s"
            raise EngineTrouble(detail, timed_out=True) from None
        except (aiohttp.ClientError, OSError) as error:
            raise EngineTrouble(f"POST {ASK_PATH}: {error or type(error).__name__}") from None

    async def _get(self, path: str) -> EngineReply:
        async with self._session.get(self._base + path, allow_redirects=False) as response:
            body = bytearray()
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > BODY_BYTES_MAX:
                    raise EngineTrouble(f"GET {path} answers more than {BODY_BYTES_MAX} bytes")
            return EngineReply(response.status, bytes(body))


def _cause(error: aiohttp.ClientError, path: str) -> str:
    match error:
        case aiohttp.ClientConnectorDNSError():
            return "its host name cannot be resolved"
        case aiohttp.ClientConnectorError():
            return _connect_cause(error.os_error)
        case aiohttp.ServerDisconnectedError():
            return f"it closed the connection without answering GET {path}"
        case aiohttp.ClientResponseError():
            return f"it does not speak HTTP (GET {path}): is this its HTTP port?"
        case aiohttp.ClientOSError():
            return f"the connection broke: {error.strerror or error}"
        case _:
            return f"GET {path}: {error or type(error).__name__}"


def _connect_cause(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused: is it running, and is this its HTTP port?"
    if isinstance(error, socket.gaierror):
        return "its host name cannot be resolved"
    return f"cannot connect: {error.strerror or error}"
