"""Keys with limits, as the official client meets them, in front of simulated engines."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from pointsman.cli.config import Config, Key, Listen
from tests.support.cluster import Cluster, quiet_config, running_cluster
from tests.support.engines import running_engine
from tests.support.processes import run, serving

QUESTION: Any = [{"role": "user", "content": "Where do trains go?"}]
SECRET = "pm-of-the-team"


def keyed(**rules: Any) -> Config:
    """A gateway that knows one key."""
    digest = hashlib.sha256(SECRET.encode()).hexdigest()
    key = Key(name="team", hash=f"sha256:{digest}", **rules)
    return quiet_config(listen=Listen(port=0, reply_headers=True), keys=(key,))


@asynccontextmanager
async def limited(
    *, api_key: str = SECRET, retries: int = 0, speed: float = 100.0, **rules: Any
) -> AsyncIterator[tuple[Cluster, AsyncOpenAI]]:
    async with (
        running_cluster(2, config=keyed(**rules), speed=speed) as cluster,
        AsyncOpenAI(
            base_url=f"{cluster.api}/v1", api_key=api_key, max_retries=retries, timeout=30
        ) as client,
    ):
        yield cluster, client


async def quota(cluster: Cluster) -> Any:
    (key,) = (await cluster.state())["keys"]
    return key["quota"]


async def ask(client: AsyncOpenAI, **fields: Any) -> Any:
    given = {"model": "sim", "messages": QUESTION, "max_tokens": 8, **fields}
    return await client.chat.completions.with_raw_response.create(**given)


async def test_a_wrong_key_is_an_authentication_error() -> None:
    async with limited(api_key="wrong") as (_, client):
        with pytest.raises(openai.AuthenticationError) as caught:
            await ask(client)
        assert caught.value.code == "invalid_api_key"


async def test_another_model_is_a_permission_error_and_is_not_listed() -> None:
    async with limited(models=("other",)) as (_, client):
        with pytest.raises(openai.PermissionDeniedError) as caught:
            await ask(client)
        assert caught.value.code == "model_not_allowed"
        assert [model.id async for model in client.models.list()] == []


async def test_limits_are_told_with_every_answer_and_reached_exactly() -> None:
    async with limited(requests_per_minute=10, tokens_per_minute=100_000) as (_, client):
        answers = await asyncio.gather(
            *(ask(client, stream=bool(n % 2)) for n in range(30)), return_exceptions=True
        )
        served = [answer for answer in answers if not isinstance(answer, BaseException)]
        refused = [answer for answer in answers if isinstance(answer, openai.RateLimitError)]
        assert (len(served), len(refused)) == (10, 20)
        assert all(error.code == "rate_limit_exceeded" for error in refused)
        for each in (*served, *(error.response for error in refused)):
            assert each.headers["x-ratelimit-limit-requests"] == "10"
            assert each.headers["x-ratelimit-limit-tokens"] == "100000"
        for stream in served:
            if "text/event-stream" in stream.headers["content-type"]:
                async for _ in stream.parse():
                    pass


async def test_tokens_are_counted_as_the_engine_counts_them() -> None:
    async with limited(tokens_per_minute=600) as (cluster, client):
        begun_s, used = asyncio.get_running_loop().time(), 0
        whole = (await ask(client, max_tokens=50)).parse()
        used += whole.usage.total_tokens
        usage = {"include_usage": True}
        stream = (await ask(client, max_tokens=50, stream=True, stream_options=usage)).parse()
        used += [chunk.usage async for chunk in stream][-1].total_tokens
        await cluster.at_rest()
        left = (await quota(cluster))["tokens"]["remaining"]
        refilled = (asyncio.get_running_loop().time() - begun_s) * 600 / 60
        assert 110 < used < 200
        assert 600 - used - 1 <= left <= 600 - used + refilled + 1


async def test_the_client_waits_as_told_and_is_served() -> None:
    """The SDK retries a 429 by its Retry-After, without code of the user's."""
    async with limited(requests_per_minute=60, retries=3) as (cluster, client):
        await asyncio.gather(*(ask(client) for _ in range(60)))
        answer = await ask(client)
        assert answer.status_code == 200
        state = await cluster.state()
        assert state["stats"]["arrived"] == 61, "who is refused by its key reaches no scheduler"


async def test_slots_come_back_from_streams_that_are_left() -> None:
    async with limited(concurrency_max=3, speed=1.0) as (cluster, client):
        for _ in range(2):
            streams = [await ask(client, stream=True, max_tokens=200) for _ in range(3)]
            with pytest.raises(openai.RateLimitError):
                await ask(client)
            assert (await quota(cluster))["inflight"] == 3
            for stream in streams:
                await stream.parse().response.aclose()
            await cluster.until_shown(lambda state: not state["keys"][0]["quota"]["inflight"])


async def test_a_key_without_limits_is_told_none() -> None:
    async with limited() as (cluster, client):
        answer = await ask(client)
        assert answer.status_code == 200
        assert not [name for name in answer.headers if name.startswith("x-ratelimit")]
        assert (await quota(cluster))["requests"] is None


async def test_a_key_as_a_user_makes_one(tmp_path: Path) -> None:
    """Made, pasted, served: and in no line that the process prints."""
    made = await run("keys", "new", "team")
    key, entry = made.out.split("\n", 1)
    async with running_engine() as engine:
        file, access = tmp_path / "pointsman.yaml", tmp_path / "access.log"
        file.write_text(f"log: {{level: debug, access: '{access}'}}\n{entry}")
        arguments = ("-c", str(file), "--engine", engine.url, "--host", "0.0.0.0")
        async with serving("serve", *arguments) as gateway:
            async with AsyncOpenAI(
                base_url=f"{gateway.api}/v1", api_key=key, max_retries=5, timeout=30
            ) as client:
                assert (await ask(client)).status_code == 200
                stranger = client.with_options(api_key=key + "x", max_retries=0)
                with pytest.raises(openai.AuthenticationError):
                    await ask(stranger)
            await gateway.until_said("1; who sends none of them gets 401")
            gateway.process.terminate()
            assert await gateway.code() == 0
            assert key not in gateway.said
        assert key not in access.read_text()
        assert '"key":"team"' in access.read_text(), "its name is"
