"""Equal tokens that share no cache: another salt, another adapter. vLLM and the index agree."""

from collections.abc import Sequence
from pathlib import Path
from random import Random

from tests.support.live_cluster import LiveCluster, live_cluster
from tests.support.live_engines import LiveEngine, VllmServers
from tests.support.ports import free_ports

NAMES = ("--served-model-name", "tiny", "small")
ADAPTER = ("--enable-lora", "--max-lora-rank", "8", "--lora-modules")


async def test_a_salt_keeps_prompts_apart(vllms: Sequence[LiveEngine]) -> None:
    prompt = Random(106).choices(range(3, 2000), k=200)
    async with live_cluster(vllms[0]) as cluster:
        for salt, expected in (("a", 0), ("b", 0), ("a", 192), ("b", 192), (None, 0)):
            fields = {} if salt is None else {"cache_salt": salt}
            answer = await cluster.complete(prompt, **fields)
            predicted = await cluster.predicted_tokens(answer)
            assert predicted == answer.cached_tokens == expected, salt
            await cluster.events_are_in()


async def test_an_adapter_keeps_prompts_apart_and_a_second_name_does_not(
    vllms: Sequence[LiveEngine], launcher: VllmServers, model: Path
) -> None:
    prompt = Random(107).choices(range(3, 2000), k=200)
    adapted = launcher.start(*NAMES, *ADAPTER, f"sql={model / 'adapter'}", events=free_ports(2))
    adapted.until_healthy()
    config = [{}, {"pool": "adapted"}]
    async with live_cluster(vllms[0], adapted, engine_config=config) as cluster:
        answer = await cluster.complete(prompt, model="sql")
        assert answer.node == "engine-2", "only there it is loaded"
        await cluster.events_are_in()
        first = await hit(cluster, prompt, "sql", 192)
        assert await hit(cluster, prompt, "sql", 192) == first
        (base,) = {await hit(cluster, prompt, "tiny", cached) for cached in (0, 192)}
        assert base != first, "the adapter must change what is said"
        assert await hit(cluster, prompt, "small", 192) == base, "another name, the same model"
        assert await hit(cluster, prompt, "sql", 192) == first
        async with cluster.session.get(f"{cluster.api}/v1/models") as reply:
            cards = {card["id"]: card["parent"] for card in (await reply.json())["data"]}
        assert cards == {"tiny": None, "small": None, "sql": "tiny"}
    adapted.kill()


async def hit(cluster: LiveCluster, prompt: list[int], model: str, cached: int) -> str:
    """The text of the adapted engine's answer, which must have had so much cached, as foretold."""
    body = {"model": model, "prompt": prompt, "max_tokens": 4, "temperature": 0}
    answer = await cluster.post("/v1/completions", body, {"x-pointsman-pool": "adapted"})
    assert answer.status == 200, answer
    assert answer.node == "engine-2"
    assert await cluster.predicted_tokens(answer) == answer.cached_tokens == cached, model
    await cluster.events_are_in()
    text: str = answer.json["choices"][0]["text"]
    return text
