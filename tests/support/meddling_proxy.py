"""A proxy before an engine that changes what passes, as misconfigured engines and proxies do."""

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web

Alter = Callable[[str, bytes], bytes]
"""Path and body of an answer -> its body."""


def as_is(path: str, body: bytes) -> bytes:
    del path
    return body


@asynccontextmanager
async def meddling_proxy(
    *engines: str,
    alter: Alter = as_is,
    headers: Mapping[str, str] | None = None,
    statuses: Mapping[str, int] | None = None,
    instead: Mapping[str, Callable[[bytes], bytes]] | None = None,
    reuses: bool = True,
    buffers: bool = False,
) -> AsyncIterator[str]:
    """Its URL. Requests go to `engines` in turn.

    `statuses` answers paths with a status and nothing else, `instead` with what it makes of
    the request's body; `buffers` holds streams back to their end.
    """
    turns = itertools.cycle(engines)
    async with aiohttp.ClientSession() as session:

        async def serve(request: web.BaseRequest) -> web.StreamResponse:
            if request.path in (statuses or {}):
                return web.Response(status=(statuses or {})[request.path])
            sent = await request.read()
            if request.path in (instead or {}):
                made = (instead or {})[request.path](sent)
                return web.Response(body=made, content_type="application/json")
            url = next(turns) + request.path
            async with session.request(request.method, url, data=sent) as reply:
                kind = {"Content-Type": reply.headers.get("Content-Type", "text/plain")}
                if not buffers and "event-stream" in kind["Content-Type"]:
                    return await _relay(request, reply, kind)
                body = alter(request.path, await reply.read())
                answer = web.Response(
                    status=reply.status, body=body, headers={**kind, **(headers or {})}
                )
                if not reuses:
                    answer.force_close()
                return answer

        async with _listening(serve) as url:
            yield url


async def _relay(
    request: web.BaseRequest, reply: aiohttp.ClientResponse, headers: Mapping[str, str]
) -> web.StreamResponse:
    answer = web.StreamResponse(headers=headers)
    await answer.prepare(request)
    async for chunk in reply.content.iter_any():
        await answer.write(chunk)
    return answer


@asynccontextmanager
async def _listening(
    serve: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
) -> AsyncIterator[str]:
    runner = web.ServerRunner(web.Server(serve))
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        addresses: Sequence[tuple[str, int]] = runner.addresses
        yield f"http://127.0.0.1:{addresses[0][1]}"
    finally:
        await runner.cleanup()
