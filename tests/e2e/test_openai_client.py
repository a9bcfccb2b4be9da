"""The official `openai` client, used as its documentation says."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from pointsman.engines.simulated import RunningEngine
from tests.support.cluster import Cluster, running_cluster
from tests.support.waiting import eventually

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "find_train",
        "parameters": {"type": "object", "properties": {"station": {"type": "string"}}},
    },
}
QUESTION: Any = [{"role": "user", "content": "Where do trains go?"}]
ABORT_S_MAX = 2.0


@asynccontextmanager
async def openai_client(cluster: Cluster) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(
        base_url=f"{cluster.api}/v1", api_key="any", max_retries=0, timeout=30
    ) as client:
        yield client


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with running_cluster(2) as cluster:
        yield cluster


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[AsyncOpenAI]:
    async with openai_client(cluster) as client:
        yield client


# --- answers ------------------------------------------------------------------------------


async def test_chat(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="sim", messages=QUESTION, max_tokens=8)
    assert answer.object == "chat.completion"
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8
    assert answer.usage.prompt_tokens_details is not None


async def test_a_chat_stream_with_usage_says_the_same_as_the_whole_answer(
    client: AsyncOpenAI,
) -> None:
    stream = await client.chat.completions.create(
        model="sim",
        messages=QUESTION,
        max_tokens=8,
        stream=True,
        stream_options={"include_usage": True},
    )
    text, usage, finish = "", None, None
    async for chunk in stream:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
        usage = chunk.usage or usage
    assert finish == "length"
    assert usage is not None
    assert usage.completion_tokens == 8
    assert len(text.split()) == 8


async def test_a_tool_is_called(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="sim", messages=QUESTION, tools=[TOOL])
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.type == "function"
    assert call.function.name == "find_train"
    assert list(json.loads(call.function.arguments)) == ["station"]


async def test_a_tool_is_called_in_a_stream(client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="sim", messages=QUESTION, tools=[TOOL], stream=True
    )
    name, arguments, finish = "", "", None
    async for chunk in stream:
        for call in chunk.choices[0].delta.tool_calls or ():
            assert call.function is not None
            name += call.function.name or ""
            arguments += call.function.arguments or ""
        finish = chunk.choices[0].finish_reason or finish
    assert (name, finish) == ("find_train", "tool_calls")
    assert list(json.loads(arguments)) == ["station"]


@pytest.mark.parametrize(
    ("prompt", "choices"),
    [
        ("Where do trains go?", 1),
        (["Where do trains go?", "And ships?"], 2),
        ([1, 2, 3, 4], 1),
        ([[1, 2, 3], [4, 5, 6]], 2),
    ],
)
async def test_completions(client: AsyncOpenAI, prompt: Any, choices: int) -> None:
    answer = await client.completions.create(model="sim", prompt=prompt, max_tokens=4)
    assert len(answer.choices) == choices
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4 * choices


async def test_a_completion_stream(client: AsyncOpenAI) -> None:
    stream = await client.completions.create(
        model="sim", prompt="Where do trains go?", max_tokens=6, stream=True
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(choice.text for chunk in chunks for choice in chunk.choices)
    assert len(text.split()) == 6


async def test_embeddings(client: AsyncOpenAI) -> None:
    answer = await client.embeddings.create(model="sim", input=["a train", "a ship"])
    first, second = answer.data
    assert len(first.embedding) == len(second.embedding) > 1
    assert first.embedding != second.embedding


async def test_models(client: AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == ["sim"]
    assert (await client.models.retrieve("sim")).id == "sim"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("unknown")


async def test_responses(client: AsyncOpenAI) -> None:
    answer = await client.responses.create(
        model="sim", input="Where do trains go?", instructions="Be brief.", max_output_tokens=8
    )
    assert len(answer.output_text.split()) == 8
    kinds = []
    text = ""
    stream = await client.responses.create(model="sim", input="Where do trains go?", stream=True)
    async for event in stream:
        kinds.append(event.type)
        if event.type == "response.output_text.delta":
            text += event.delta
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert len(text.split()) == 16, "the simulated engine's own end"


async def test_a_raw_answer_names_its_request(client: AsyncOpenAI, cluster: Cluster) -> None:
    raw = await client.chat.completions.with_raw_response.create(
        model="sim", messages=QUESTION, max_tokens=2, extra_headers={"x-request-id": "mine-1"}
    )
    assert raw.headers["x-request-id"] == "mine-1"
    assert raw.headers["x-pointsman-node"] in ("engine-1", "engine-2")
    raw = await client.chat.completions.with_raw_response.create(
        model="sim", messages=QUESTION, max_tokens=2
    )
    made = raw.headers["x-request-id"]
    found = await cluster.admin_json("GET", f"/decisions/{made}")
    assert found["decisions"][0]["node"] == raw.headers["x-pointsman-node"]


# --- errors, by class ---------------------------------------------------------------------


async def test_an_unknown_model_is_not_found(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        await client.chat.completions.create(model="gpt-unknown", messages=QUESTION)
    assert caught.value.code == "model_not_found"
    assert caught.value.request_id
    assert caught.value.response.headers["x-pointsman-reason"] == "model_not_found"


async def test_a_wrong_type_is_a_bad_request(client: AsyncOpenAI) -> None:
    """One that routing does not read: the engine's own words are passed on."""
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(
            model="sim", messages=QUESTION, extra_body={"stop": {"not": "a stop"}}
        )
    assert "stop" in str(caught.value)


async def test_a_wrong_type_that_routing_reads_is_a_bad_request(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(
            model="sim", messages=QUESTION, extra_body={"max_tokens": "many"}
        )
    assert "max_tokens" in str(caught.value)


async def test_a_prompt_that_is_too_long_is_the_engines_to_refuse(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.completions.create(model="sim", prompt="x", max_tokens=10_000_000)
    assert "maximum context length" in str(caught.value)


async def test_engines_that_are_all_busy_are_a_rate_limit(
    client: AsyncOpenAI, cluster: Cluster
) -> None:
    for engine in cluster.engines:
        await cluster.simulate(engine, status=429, retry_after=7)
    with pytest.raises(openai.RateLimitError) as caught:
        await client.chat.completions.create(model="sim", messages=QUESTION)
    assert caught.value.response.headers["retry-after"] == "7"


async def test_the_clients_own_retries_come_through_a_busy_moment(cluster: Cluster) -> None:
    for engine in cluster.engines:
        await cluster.simulate(engine, status=429, retry_after=0.05, count=1)
    async with AsyncOpenAI(base_url=f"{cluster.api}/v1", api_key="any", max_retries=2) as client:
        answer = await client.chat.completions.create(model="sim", messages=QUESTION)
    assert answer.choices


async def test_no_engine_is_a_server_error(client: AsyncOpenAI, cluster: Cluster) -> None:
    for name in ("engine-1", "engine-2"):
        await cluster.admin_json("POST", f"/nodes/{name}/drain")
    with pytest.raises(openai.InternalServerError) as caught:
        await client.chat.completions.create(model="sim", messages=QUESTION)
    assert caught.value.status_code == 503
    assert int(caught.value.response.headers["retry-after"]) >= 1


async def test_an_engine_that_dies_in_a_stream_raises_in_the_stream(
    client: AsyncOpenAI, cluster: Cluster
) -> None:
    for engine in cluster.engines:
        await cluster.simulate(engine, cut_at_token=3, cut_reset=True)
    stream = await client.chat.completions.create(
        model="sim", messages=QUESTION, max_tokens=64, stream=True
    )
    with pytest.raises(openai.APIError):
        async for _ in stream:
            pass


# --- cancellation -------------------------------------------------------------------------


@pytest.fixture
async def slow() -> AsyncIterator[Cluster]:
    """Tokens come at a human's pace, so that there is something to cancel."""
    async with running_cluster(2, speed=1.0) as cluster:
        yield cluster


def running(cluster: Cluster) -> list[RunningEngine]:
    return [engine for engine in cluster.engines if engine.engine.driver.requests]


async def until_idle(cluster: Cluster) -> None:
    await eventually(lambda: not running(cluster), ABORT_S_MAX)


async def test_a_stream_that_is_closed_is_aborted_in_the_engine(slow: Cluster) -> None:
    async with openai_client(slow) as client:
        stream = await client.chat.completions.create(
            model="sim", messages=QUESTION, max_tokens=4_000, stream=True
        )
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        assert len(running(slow)) == 1
        await stream.close()
        await until_idle(slow)


async def test_a_request_that_is_cancelled_is_aborted_in_the_engine(slow: Cluster) -> None:
    async with openai_client(slow) as client:
        asking = asyncio.create_task(
            client.chat.completions.create(model="sim", messages=QUESTION, max_tokens=4_000)
        )
        await eventually(lambda: running(slow))
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await until_idle(slow)


async def test_a_request_that_times_out_is_aborted_in_the_engine(slow: Cluster) -> None:
    async with openai_client(slow) as client:
        impatient = client.with_options(timeout=0.3)
        with pytest.raises(openai.APITimeoutError):
            await impatient.chat.completions.create(
                model="sim", messages=QUESTION, max_tokens=4_000
            )
        await until_idle(slow)
