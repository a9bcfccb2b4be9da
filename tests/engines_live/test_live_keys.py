"""vLLM with --api-key and --scheduling-policy priority: known, served, and told of priorities."""

from tests.support.live_cluster import live_cluster
from tests.support.live_engines import VllmServers
from tests.support.ports import free_ports

KEY = "engines-own-key"


async def test_an_engine_with_a_key_is_served_on_every_route(launcher: VllmServers) -> None:
    guarded = ("--api-key", KEY, "--scheduling-policy", "priority")
    engine = launcher.start(*guarded, events=free_ports(2))
    engine.until_healthy()
    async with live_cluster(engine, engine_config=[{"api_key": KEY}]) as cluster:
        for headers in (
            {},
            {"authorization": "Bearer client's"},
            {"x-pointsman-priority": "high"},
            {"x-vllm-priority": "soon"},
        ):
            short = {"model": "tiny", "prompt": "where to?", "max_tokens": 2}
            assert (await cluster.post("/v1/completions", short, headers)).status == 200
        said = [{"role": "user", "content": "where to?"}]
        bodies: dict[str, object] = {
            "/v1/chat/completions": {"model": "tiny", "messages": said, "service_tier": "flex"},
            "/v1/messages": {"model": "tiny", "messages": said, "max_tokens": 2},
            "/tokenize": {"model": "tiny", "prompt": "where to?"},
        }
        for path, body in bodies.items():
            assert (await cluster.post(path, body)).status == 200, path
    engine.kill()
