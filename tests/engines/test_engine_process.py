"""`pointsman engine` as users start it, and the official client against it."""

import asyncio
import json
import socket

import aiohttp
import openai
import pytest
from click.testing import CliRunner

from pointsman.cli.engine import engine as command
from pointsman.engines.simulated import EngineOptions
from tests.support.engines import running_engine, spawned_engine


async def test_it_says_when_it_is_ready_and_stops_cleanly() -> None:
    async with spawned_engine("--speed", "100", "--kv-events-port", "0", "--model", "m") as spawned:
        assert "engine m (8b-h100) at http://127.0.0.1:" in spawned.ready_line
        assert "KV events on" in spawned.ready_line
        async with aiohttp.ClientSession(spawned.url) as http:
            body = {"model": "m", "prompt": "a"}
            async with http.post("/v1/completions", json=body) as response:
                assert response.status == 200
        spawned.process.terminate()
        async with asyncio.timeout(10):
            assert await spawned.process.wait() == 0


async def test_crash_is_sudden() -> None:
    async with spawned_engine() as spawned, aiohttp.ClientSession(spawned.url) as http:
        with pytest.raises(aiohttp.ClientError):
            await http.post("/simulate", json={"crash": True})
        async with asyncio.timeout(10):
            assert await spawned.process.wait() == 1


def test_a_port_in_use_is_told_with_exit_code_2() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for arguments in (["--port", str(port)], ["--port", "0", "--kv-events-port", str(port)]):
            result = CliRunner().invoke(command, arguments)
            assert result.exit_code == 2
            assert f"{port} on 127.0.0.1 is in use" in result.stderr


def test_an_address_that_is_not_here_is_told_in_words() -> None:
    result = CliRunner().invoke(command, ["--port", "0", "--host", "192.0.2.1"])
    assert result.exit_code == 2
    assert "port 0 of 192.0.2.1: Cannot assign requested address; choose" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "0", "--speed", "0"], "--speed"),
        (["--port", "0", "--max-num-seqs", "9000"], "max_num_batched_tokens"),
        (["--port", "0", "--profile", "x"], "8b-h100"),
        ([], "--port"),
    ],
)
def test_wrong_usage_is_explained(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_help_teaches() -> None:
    result = CliRunner().invoke(command, ["--help"])
    assert result.exit_code == 0
    assert "/simulate" in result.stdout


def test_options_refuse_a_replay_port_on_the_http_port() -> None:
    with pytest.raises(ValueError, match="replay port"):
        EngineOptions(port=5558, kv_events_port=5557)


def test_options_refuse_a_model_without_a_name() -> None:
    with pytest.raises(ValueError, match="no name"):
        EngineOptions(model=" ")


async def test_the_openai_client() -> None:
    async with (
        running_engine() as running,
        openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="x", max_retries=0) as client,
    ):
        assert [model.id async for model in client.models.list()] == ["sim"]
        chat = await client.chat.completions.create(
            model="sim", messages=[{"role": "user", "content": "hi"}], max_completion_tokens=4
        )
        text = chat.choices[0].message.content
        stream = await client.chat.completions.create(
            model="sim",
            messages=[{"role": "user", "content": "hi"}],
            max_completion_tokens=4,
            stream=True,
        )
        assert "".join([c.choices[0].delta.content or "" async for c in stream]) == text
        response = await client.responses.create(model="sim", input="hi")
        assert response.output_text
        events = [
            e async for e in await client.responses.create(model="sim", input="x", stream=True)
        ]
        assert events[-1].type == "response.completed"
        vectors = await client.embeddings.create(model="sim", input=["a", "b"])
        assert [len(item.embedding) for item in vectors.data] == [64, 64]
        words = await client.audio.transcriptions.create(model="sim", file=("a.wav", b"1" * 9000))
        assert words.text
        with pytest.raises(openai.NotFoundError):
            await client.completions.create(model="nope", prompt="a")
        with pytest.raises(openai.BadRequestError):
            await client.completions.create(model="sim", prompt="a", max_tokens=10**7)


async def test_the_openai_client_sees_tool_calls() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {}}}}}
    async with (
        running_engine() as running,
        openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="x") as client,
    ):
        chat = await client.chat.completions.create(
            model="sim",
            messages=[{"role": "user", "content": "hi"}],
            tools=[tool],  # type: ignore[list-item]  # a plain dict for a typed one
        )
    calls = chat.choices[0].message.tool_calls
    assert calls is not None
    (call,) = calls
    assert call.type == "function"
    assert list(json.loads(call.function.arguments)) == ["a"]
