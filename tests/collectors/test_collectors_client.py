"""What an engine is asked, and whom else that must not reach."""

from aiohttp import web

from pointsman.collectors.client import EngineClient, new_session
from pointsman.engines.adapters import EngineKeys


async def test_a_question_for_a_token_follows_no_redirect() -> None:
    """What a page elsewhere answers, like one to log in at, says nothing of the engine."""
    seen: list[str] = []

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        seen.append(request.path)
        return web.Response(status=303, headers={"location": "/login"})

    runner = web.ServerRunner(web.Server(handle))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with new_session(EngineKeys()) as session:
        client = EngineClient(session, f"http://127.0.0.1:{runner.addresses[0][1]}")
        assert await client.ask("m", timeout_s=5.0) == 303
    await runner.cleanup()
    assert seen == ["/v1/completions"]
