"""Every route of the simulated engine, over real sockets."""

import base64
import json
import struct
from collections.abc import AsyncIterator

import aiohttp
import pytest

from pointsman.engines.simulated import RunningEngine, count_tokens
from tests.support.engines import running_engine

CHAT = {"model": "sim", "messages": [{"role": "user", "content": "abc " * 40}], "max_tokens": 5}
TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"properties": {"city": {"type": "string"}}}},
}


@pytest.fixture
async def engine() -> AsyncIterator[RunningEngine]:
    async with running_engine(loras=["adapter"], max_model_len=1000) as running:
        yield running


@pytest.fixture
async def http(engine: RunningEngine) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(engine.url) as session:
        yield session


async def post(
    http: aiohttp.ClientSession, path: str, body: object, status: int = 200, **headers: str
) -> dict:  # type: ignore[type-arg]  # any JSON
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with http.post(path, json=body, headers=named) as response:
        assert response.status == status, await response.text()
        answer = await response.json()
        assert isinstance(answer, dict)
        return answer


async def events(http: aiohttp.ClientSession, path: str, body: dict) -> list[str]:  # type: ignore[type-arg]  # any JSON
    async with http.post(path, json={**body, "stream": True}) as response:
        assert response.status == 200
        assert response.headers["Content-Type"].startswith("text/event-stream")
        text = await response.text()
    assert text.endswith("\n\n")
    return text[:-2].split("\n\n")


def data(frames: list[str]) -> list[dict]:  # type: ignore[type-arg]  # any JSON
    lines = [line for frame in frames for line in frame.split("\n") if line.startswith("data: ")]
    return [json.loads(line[6:]) for line in lines if line != "data: [DONE]"]


async def test_chat(http: aiohttp.ClientSession) -> None:
    answer = await post(http, "/v1/chat/completions", CHAT, X_Request_Id="abc")
    assert answer["id"] == "chatcmpl-abc"
    assert answer["object"] == "chat.completion"
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"] is None
    assert count_tokens(choice["message"]["content"]) == 5
    assert answer["usage"] == {
        "prompt_tokens": 44,
        "completion_tokens": 5,
        "total_tokens": 49,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


async def test_chat_reports_what_was_cached(http: aiohttp.ClientSession) -> None:
    await post(http, "/v1/chat/completions", CHAT)
    answer = await post(http, "/v1/chat/completions", CHAT)
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 32}


async def test_the_next_turn_finds_prompt_and_answer_cached(http: aiohttp.ClientSession) -> None:
    first = await post(http, "/v1/chat/completions", {**CHAT, "max_tokens": 40})
    messages = [*CHAT["messages"], first["choices"][0]["message"]]  # type: ignore[misc]  # a list
    messages = [{"role": m["role"], "content": m["content"]} for m in messages]
    messages.append({"role": "user", "content": "go on"})
    second = await post(http, "/v1/chat/completions", {**CHAT, "messages": messages})
    # 44 + 40 tokens, of which the last one's KV was never computed: 5 full blocks of 16.
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == 80


async def test_chat_stream_is_one_chunk_per_token(http: aiohttp.ClientSession) -> None:
    whole = await post(http, "/v1/chat/completions", CHAT)
    options = {"stream_options": {"include_usage": True}}
    frames = await events(http, "/v1/chat/completions", {**CHAT, **options})
    assert frames[-1] == "data: [DONE]"
    role, *chunks, usage = data(frames)
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 4 + ["length"]
    text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks)
    assert text == whole["choices"][0]["message"]["content"]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 5
    assert usage["usage"]["prompt_tokens_details"]["cached_tokens"] == 32


async def test_no_usage_chunk_unless_asked_for(http: aiohttp.ClientSession) -> None:
    chunks = data(await events(http, "/v1/chat/completions", CHAT))
    assert not any("usage" in chunk for chunk in chunks)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_continuous_usage_counts_in_each_chunk(
    http: aiohttp.ClientSession, path: str
) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {**CHAT, "prompt": "abc " * 10, "stream_options": options}
    counts = [c["usage"]["completion_tokens"] for c in data(await events(http, path, body))]
    assert counts[-6:] == [1, 2, 3, 4, 5, 5]


async def test_tools_are_called(http: aiohttp.ClientSession) -> None:
    body = {**CHAT, "tools": [TOOL], "tool_choice": "auto"}
    (choice,) = (await post(http, "/v1/chat/completions", body))["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "weather"
    whole = json.loads(call["function"]["arguments"])
    assert list(whole) == ["city"]
    chunks = data(await events(http, "/v1/chat/completions", body))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    calls = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert calls[0]["function"]["name"] == "weather"
    assert json.loads("".join(c["function"]["arguments"] for c in calls)) == whole
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_tool_choice_picks_and_prevents(http: aiohttp.ClientSession) -> None:
    other = {"type": "function", "function": {"name": "other"}}
    body = {**CHAT, "tools": [TOOL, other], "tool_choice": other}
    answer = await post(http, "/v1/chat/completions", body)
    assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "other"
    answer = await post(http, "/v1/chat/completions", {**body, "tool_choice": "none"})
    assert answer["choices"][0]["message"]["content"]


async def test_n_gives_distinct_choices_that_share_the_prompt(http: aiohttp.ClientSession) -> None:
    body = {**CHAT, "n": 3}
    answer = await post(http, "/v1/chat/completions", body)
    texts = [choice["message"]["content"] for choice in answer["choices"]]
    assert len(set(texts)) == 3
    assert answer["usage"]["prompt_tokens"] == 44
    assert answer["usage"]["completion_tokens"] == 15
    chunks = data(await events(http, "/v1/chat/completions", body))
    for index, text in enumerate(texts):
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        assert "".join(c["delta"]["content"] for c in mine) == text


async def test_stop_and_absent_limit_end_with_stop(http: aiohttp.ClientSession) -> None:
    body = {"model": "sim", "prompt": "once"}
    whole = (await post(http, "/v1/completions", body))["choices"][0]
    assert (count_tokens(whole["text"]), whole["finish_reason"]) == (16, "stop")
    stop = whole["text"][9:13]
    cut = (await post(http, "/v1/completions", {**body, "stop": stop}))["choices"][0]
    assert (cut["text"], cut["finish_reason"]) == (whole["text"][:9], "stop")
    chunks = data(await events(http, "/v1/completions", {**body, "stop": [stop]}))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole["text"][:9]


async def test_text_depends_on_seed_and_prompt_only(http: aiohttp.ClientSession) -> None:
    body = {"model": "sim", "prompt": "once"}
    texts = [
        (await post(http, "/v1/completions", {**body, **more}))["choices"][0]["text"]
        for more in ({}, {"temperature": 0.3}, {"seed": 4}, {"seed": 4}, {"prompt": "twice"})
    ]
    assert texts[0] == texts[1]
    assert texts[2] == texts[3]
    assert len(set(texts)) == 3


@pytest.mark.parametrize(
    ("prompt", "choices", "tokens"),
    [("abcdefgh", 1, 2), (["abcd", "efghijkl"], 2, 3), ([1, 2, 3], 1, 3), ([[1, 2], [3]], 2, 3)],
)
async def test_completions_take_texts_and_token_ids(
    http: aiohttp.ClientSession, prompt: object, choices: int, tokens: int
) -> None:
    body = {"model": "sim", "prompt": prompt, "max_tokens": 2, "return_token_ids": True}
    answer = await post(http, "/v1/completions", body, X_Request_Id="x")
    assert answer["id"] == "cmpl-x"
    assert [choice["index"] for choice in answer["choices"]] == list(range(choices))
    assert answer["usage"]["prompt_tokens"] == tokens
    assert sum(len(choice["prompt_token_ids"]) for choice in answer["choices"]) == tokens
    assert [len(choice["token_ids"]) for choice in answer["choices"]] == [2] * choices


@pytest.mark.parametrize("prompt", [[], [1, "a"], [-1], ""])
async def test_impossible_prompts_are_refused(http: aiohttp.ClientSession, prompt: object) -> None:
    answer = await post(http, "/v1/completions", {"prompt": prompt}, status=400)
    assert answer["error"]["code"] == 400


async def test_responses(http: aiohttp.ClientSession) -> None:
    body = {"model": "sim", "input": "hello", "max_output_tokens": 4, "instructions": "be kind"}
    answer = await post(http, "/v1/responses", body)
    assert answer["status"] == "incomplete"
    text = answer["output"][0]["content"][0]["text"]
    assert count_tokens(text) == 4
    frames = await events(http, "/v1/responses", body)
    parts = data(frames)
    assert [part["sequence_number"] for part in parts] == list(range(len(parts)))
    assert [frame.split("\n")[0][7:] for frame in frames] == [part["type"] for part in parts]
    deltas = [part["delta"] for part in parts if part["type"] == "response.output_text.delta"]
    assert (len(deltas), "".join(deltas)) == (4, text)
    assert parts[-1]["response"]["usage"]["output_tokens"] == 4


async def test_responses_call_functions(http: aiohttp.ClientSession) -> None:
    tool = {"type": "function", "name": "f", "parameters": {"properties": {"a": {}}}}
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
        {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "1"},
        {"type": "function_call_output", "call_id": "1", "output": "12"},
    ]
    body = {"model": "sim", "input": items, "tools": [tool]}
    (item,) = (await post(http, "/v1/responses", body))["output"]
    assert (item["type"], item["name"]) == ("function_call", "f")
    parts = data(await events(http, "/v1/responses", body))
    deltas = [part["delta"] for part in parts if part["type"].endswith("arguments.delta")]
    assert json.loads("".join(deltas)) == json.loads(item["arguments"])
    assert parts[-1]["type"] == "response.completed"


async def test_messages(http: aiohttp.ClientSession) -> None:
    body = {
        "model": "sim",
        "system": "be kind",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 3,
    }
    answer = await post(http, "/v1/messages", body)
    assert (answer["type"], answer["stop_reason"]) == ("message", "max_tokens")
    text = answer["content"][0]["text"]
    assert answer["usage"]["output_tokens"] == count_tokens(text) == 3
    parts = data(await events(http, "/v1/messages", body))
    kinds = [part["type"] for part in parts]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    deltas = [part["delta"]["text"] for part in parts if part["type"] == "content_block_delta"]
    assert "".join(deltas) == text
    tool = {"name": "f", "input_schema": {"properties": {"a": {}}}}
    answer = await post(http, "/v1/messages", {**body, "tools": [tool]})
    assert answer["stop_reason"] == "tool_use"
    assert list(answer["content"][0]["input"]) == ["a"]


async def test_embeddings(http: aiohttp.ClientSession) -> None:
    body = {"model": "sim", "input": ["abcd", "efgh"], "dimensions": 8}
    floats = await post(http, "/v1/embeddings", body)
    assert floats["usage"]["prompt_tokens"] == 2
    vectors = [item["embedding"] for item in floats["data"]]
    assert [len(vector) for vector in vectors] == [8, 8]
    assert vectors[0] != vectors[1]
    packed = await post(http, "/v1/embeddings", {**body, "encoding_format": "base64"})
    raw = base64.b64decode(packed["data"][0]["embedding"])
    assert list(struct.unpack("<8f", raw)) == vectors[0]
    await post(http, "/v1/embeddings", {**body, "dimensions": 0}, status=400)


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank"])
async def test_rerank(http: aiohttp.ClientSession, path: str) -> None:
    body = {"model": "sim", "query": "q", "documents": ["a", "b", "c"], "top_n": 2}
    results = (await post(http, path, body))["results"]
    assert len(results) == 2
    assert results[0]["relevance_score"] >= results[1]["relevance_score"]
    assert results[0]["document"]["text"] == "abc"[results[0]["index"]]


@pytest.mark.parametrize("path", ["/v1/score", "/score"])
async def test_score(http: aiohttp.ClientSession, path: str) -> None:
    body = {"model": "sim", "text_1": "a", "text_2": ["b", "c"]}
    assert [item["index"] for item in (await post(http, path, body))["data"]] == [0, 1]
    await post(http, path, {"text_1": ["a", "b"], "text_2": ["c"]}, status=400)


async def test_transcription(http: aiohttp.ClientSession) -> None:
    texts = []
    for audio in (b"\1" * 64_000, b"\2" * 64_000, b"\1" * 64_000):
        form = aiohttp.FormData()
        form.add_field("file", audio, filename="a.wav", content_type="audio/wav")
        form.add_field("model", "sim")
        async with http.post("/v1/audio/transcriptions", data=form) as response:
            assert response.status == 200
            answer = await response.json()
        assert answer["usage"] == {"type": "duration", "seconds": 2}
        texts.append(answer["text"])
    assert texts[0] == texts[2] != texts[1]
    form = aiohttp.FormData({"model": "sim"}, default_to_multipart=True)
    async with http.post("/v1/audio/transcriptions", data=form) as response:
        assert response.status == 400
    headers = {"content-type": "multipart/form-data; boundary=x"}
    async with http.post("/v1/audio/transcriptions", data=b"--x", headers=headers) as response:
        assert response.status == 400


async def test_tokenize_agrees_with_usage_and_detokenize(http: aiohttp.ClientSession) -> None:
    tokens = await post(http, "/tokenize", {"messages": CHAT["messages"]})
    assert tokens["count"] == len(tokens["tokens"]) == 44
    assert tokens["max_model_len"] == 1000
    text = await post(http, "/detokenize", {"tokens": tokens["tokens"]})
    assert text["prompt"] == f"<|bos|><|user|>{'abc ' * 40}<|end|><|assistant|>"
    texts = await post(http, "/tokenize", {"prompt": "abcdef", "return_token_strs": True})
    assert texts["token_strs"] == ["abcd", "ef"]
    await post(http, "/tokenize", {}, status=400)


async def test_models_and_adapters(http: aiohttp.ClientSession) -> None:
    async with http.get("/v1/models") as response:
        listed = (await response.json())["data"]
    assert [(m["id"], m["parent"]) for m in listed] == [("sim", None), ("adapter", "sim")]
    assert listed[0]["max_model_len"] == 1000
    await post(http, "/v1/completions", {"model": "new", "prompt": "a"}, status=404)
    async with http.post("/v1/load_lora_adapter", json={"lora_name": "new"}) as response:
        assert response.status == 200
    answer = await post(http, "/v1/completions", {"model": "new", "prompt": "a"})
    assert answer["model"] == "new"
    await post(http, "/v1/load_lora_adapter", {"lora_name": "new"}, status=400)
    async with http.post("/v1/unload_lora_adapter", json={"lora_name": "new"}) as response:
        assert response.status == 200
    await post(http, "/v1/unload_lora_adapter", {"lora_name": "new"}, status=404)


async def test_adapters_and_salts_share_no_blocks(http: aiohttp.ClientSession) -> None:
    hits = []
    for more in ({}, {"model": "adapter"}, {"cache_salt": "x"}, {"cache_salt": "x"}):
        answer = await post(http, "/v1/chat/completions", {**CHAT, **more})
        hits.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert hits == [0, 0, 0, 32]


async def test_small_routes(http: aiohttp.ClientSession) -> None:
    for path in ("/health", "/ping"):
        async with http.get(path) as response:
            assert (response.status, await response.read()) == (200, b"")
    async with http.get("/version") as response:
        assert (await response.json())["version"].startswith("0.32.0")
    async with http.get("/load") as response:
        assert await response.json() == {"server_load": 0}
    async with http.get("/kv_event_sources") as response:
        assert await response.json() == {}
    async with http.get("/nowhere") as response:
        assert (response.status, (await response.json())["error"]["code"]) == (404, 404)
    async with http.get("/v1/completions") as response:
        assert response.status == 405


async def test_errors_have_vllm_shapes(http: aiohttp.ClientSession) -> None:
    unknown = await post(http, "/v1/completions", {"model": "nope", "prompt": "a"}, status=404)
    assert unknown["error"] == {
        "message": "The model `nope` does not exist. Valid aliases: sim, adapter.",
        "type": "NotFoundError",
        "param": "model",
        "code": 404,
    }
    long = await post(http, "/v1/completions", {"prompt": "abc " * 1101}, status=400)
    assert long["error"]["param"] == "input_tokens"
    assert "maximum context length is 1000 tokens" in long["error"]["message"]
    body = {"prompt": "abc " * 900, "max_tokens": 101}
    assert (await post(http, "/v1/completions", body, status=400))["error"]["param"] == "max_tokens"
    bodies: list[object] = [{"prompt": "a", "max_tokens": 0}, {"prompt": "a", "n": 0}, {}, []]
    for bad in bodies:
        await post(http, "/v1/completions", bad, status=400)
    await post(http, "/v1/completions", {"prompt": "a"}, X_Vllm_Priority="passed over")
    async with http.post("/v1/chat/completions", data=b"{bad") as response:
        assert response.status == 400
        assert (await response.json())["error"]["type"] == "Bad Request"


async def test_a_client_that_waits_for_100_continue_gets_it(http: aiohttp.ClientSession) -> None:
    async with http.post("/v1/completions", json={"prompt": "a"}, expect100=True) as response:
        assert response.status == 200


async def test_malformed_tools_are_refused(http: aiohttp.ClientSession) -> None:
    for tools in ([{"function": {"name": 3}}], [7]):
        await post(http, "/v1/chat/completions", {**CHAT, "tools": tools}, status=400)


async def test_nothing_to_rank_is_answered_at_once(http: aiohttp.ClientSession) -> None:
    assert (await post(http, "/rerank", {"query": "q", "documents": []}))["results"] == []
    assert (await post(http, "/score", {"text_1": [], "text_2": []}))["data"] == []
    await post(http, "/score", {"text_1": [], "text_2": ["a"]}, status=400)


async def test_load_report_on_request(http: aiohttp.ClientSession) -> None:
    header = {"endpoint-load-metrics-format": "JSON"}
    async with http.post("/v1/completions", json={"prompt": "a"}, headers=header) as response:
        kind, _, report = response.headers["endpoint-load-metrics"].partition(" ")
    assert kind == "JSON"
    assert set(json.loads(report)["named_metrics"]) == {
        "num_requests_waiting",
        "kv_cache_usage_perc",
    }


async def test_reset_prefix_cache(http: aiohttp.ClientSession) -> None:
    await post(http, "/v1/chat/completions", CHAT)
    async with http.post("/reset_prefix_cache") as response:
        assert response.status == 200
    answer = await post(http, "/v1/chat/completions", CHAT)
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
