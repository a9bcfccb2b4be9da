"""Request bodies: canonical bytes that grow like a conversation, and errors that help."""

import json
from array import array
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.wire.endpoints import Endpoint, endpoint_of
from pointsman.wire.multipart import UnclearForm, read_multipart_model
from pointsman.wire.openai import BadRequest, error_body, read_request
from pointsman.wire.routing_fields import RoutingFields


def read(endpoint: Endpoint, **body: Any) -> RoutingFields:
    return read_request(endpoint, json.dumps(body).encode())


def chat_bytes(messages: list[Any], **more: Any) -> bytes:
    text = read(Endpoint.CHAT, messages=messages, **more).prompt_text
    assert text is not None
    return text


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


IMAGE_A = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
IMAGE_B = {"type": "image_url", "image_url": {"url": "data:image/png;base64,BBBB"}}

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
parts = st.one_of(
    texts.map(lambda text: {"type": "text", "text": text}), st.sampled_from([IMAGE_A, IMAGE_B])
)
tool_calls = st.lists(st.fixed_dictionaries({"id": texts, "type": st.just("function")}), max_size=2)
chat_messages = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["system", "user", "assistant", "tool"]),
        "content": st.one_of(st.none(), texts, st.lists(parts, max_size=3)),
    },
    optional={"tool_calls": tool_calls, "tool_call_id": texts, "name": texts},
)
conversations = st.lists(chat_messages, max_size=5)


@given(conversations, conversations, st.booleans())
def test_a_turns_bytes_are_a_prefix_of_the_next_turns(
    turn: list[Any], more: list[Any], with_tools: bool
) -> None:
    tools = {"tools": [{"type": "function", "function": {"name": "f"}}]} if with_tools else {}
    assert chat_bytes(turn + more, **tools).startswith(chat_bytes(turn, **tools))


@given(conversations, conversations)
def test_different_conversations_have_different_bytes(one: list[Any], other: list[Any]) -> None:
    def meaning(messages: list[Any]) -> list[Any]:
        return [_plain(message) for message in messages]

    assert (chat_bytes(one) == chat_bytes(other)) == (meaning(one) == meaning(other))


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    content = message["content"]
    if isinstance(content, list):
        pieces = [p["text"] if p["type"] == "text" else p for p in content]
        texts_only = all(isinstance(piece, str) for piece in pieces)
        content = "\n".join(pieces) if texts_only else _with_joined_texts(pieces)
    kept = {key: value for key, value in message.items() if value != []}
    return kept | {"content": content or ""}


def _with_joined_texts(pieces: list[Any]) -> str:
    return "\n".join(p if isinstance(p, str) else f"\udcff{p['image_url']['url']}" for p in pieces)


@given(texts)
def test_a_string_and_one_text_part_are_the_same(text: str) -> None:
    assert chat_bytes([user(text)]) == chat_bytes([user([{"type": "text", "text": text}])])


def test_the_spelling_of_a_string_does_not_matter() -> None:
    escaped = b'{"messages":[{"role":"user","content":"caf\\u00e9 \\ud83d\\ude00"}]}'
    plain = '{"messages": [{"content": "café 😀", "role": "user"}]}'.encode()
    assert read_request(Endpoint.CHAT, escaped) == read_request(Endpoint.CHAT, plain)


def test_two_images_never_look_alike() -> None:
    assert chat_bytes([user([IMAGE_A])]) != chat_bytes([user([IMAGE_B])])
    assert len(chat_bytes([user([IMAGE_A])])) < 64


def test_tools_come_first() -> None:
    tools = [{"type": "function", "function": {"name": "weather"}}]
    text = chat_bytes([user("hello")], tools=tools)
    assert text.index(b"weather") < text.index(b"hello")
    assert chat_bytes([user("hello")], tools=[]) == chat_bytes([user("hello")], tools=None)


def test_chat_fields() -> None:
    fields = read(
        Endpoint.CHAT,
        model="m",
        messages=[user("hi")],
        stream=True,
        max_tokens=5,
        max_completion_tokens=7,
        n=2,
        cache_salt="s",
        prompt_cache_key="k",
        service_tier="flex",
        priority=-3,
        user="u",
        safety_identifier="i",
        temperature=0.5,
    )
    assert fields == RoutingFields(
        model="m",
        stream=True,
        prompt_text=b"\xffuser\xfehi",
        max_output_tokens=7,
        n=2,
        cache_salt="s",
        prompt_cache_key="k",
        service_tier="flex",
        priority=-3,
        user="u",
        safety_identifier="i",
    )


def test_values_are_taken_as_the_engines_take_them() -> None:
    fields = read(Endpoint.CHAT, messages=[], stream="true", max_tokens="10", n=2.0, priority=None)
    assert (fields.stream, fields.max_output_tokens, fields.n) == (True, 10, 2)
    assert read(Endpoint.CHAT, messages=[], stream=None).stream is False
    assert read(Endpoint.COMPLETIONS, prompt="", n_predict=-1).max_output_tokens is None
    assert chat_bytes([user("null")]) != chat_bytes([user(None)])
    assert read(Endpoint.COMPLETIONS, prompt=["12", "x"]).prompt_text == b"12"


def test_the_last_of_duplicate_keys_wins() -> None:
    body = b'{"model":"a","messages":[],"mod\\u0065l":"b"}'
    assert read_request(Endpoint.CHAT, body).model == "b"


@pytest.mark.parametrize(
    ("prompt", "text", "tokens", "prompts"),
    [
        ("hello", b"hello", None, 1),
        (["a", "b", "c"], b"a", None, 3),
        ([1, 2, 70000], None, [1, 2, 70000], 1),
        ([[1, 2], [3]], None, [1, 2], 2),
        ([], None, None, 1),
        (None, None, None, 1),
    ],
)
@pytest.mark.parametrize(
    ("endpoint", "field"),
    [
        (Endpoint.COMPLETIONS, "prompt"),
        (Endpoint.EMBEDDINGS, "input"),
        (Endpoint.TOKENIZE, "prompt"),
        (Endpoint.TOKENIZE, "content"),
    ],
)
def test_every_shape_of_a_prompt(
    endpoint: Endpoint,
    field: str,
    prompt: Any,
    text: bytes | None,
    tokens: list[int] | None,
    prompts: int,
) -> None:
    fields = read(endpoint, **{field: prompt})
    assert fields.prompt_text == text
    assert fields.prompt_tokens == (None if tokens is None else array("q", tokens))
    assert fields.prompts == prompts
    assert fields.max_output_tokens == (None if endpoint is Endpoint.COMPLETIONS else 0)


def test_generate_takes_token_ids_of_both_engines() -> None:
    vllm = read(Endpoint.GENERATE, token_ids=[1, 2], sampling_params={"max_tokens": 4})
    sglang = read(Endpoint.GENERATE, input_ids=[1, 2], sampling_params={"max_new_tokens": 4})
    assert vllm == sglang
    assert vllm.prompt_tokens == array("q", [1, 2])
    assert vllm.max_output_tokens == 4
    assert read(Endpoint.GENERATE, text="hi").prompt_text == b"hi"


@pytest.mark.parametrize(
    ("sampling", "limit"),
    [([{"max_new_tokens": 4}, {"max_new_tokens": 9}], 4), ([], None), (None, None)],
)
def test_sglang_samples_each_prompt_of_a_batch_in_its_own_way(
    sampling: object, limit: int | None
) -> None:
    fields = read(Endpoint.GENERATE, text=["hi", "ho"], sampling_params=sampling)
    assert (fields.prompts, fields.max_output_tokens) == (2, limit)


def test_responses_items_extend_a_string_input() -> None:
    first = read(Endpoint.RESPONSES, instructions="be kind", input="hi", max_output_tokens=3)
    items = [
        user([{"type": "input_text", "text": "hi"}]),
        {"type": "reasoning", "id": "r1", "summary": []},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}", "status": "x"},
        {"type": "function_call_output", "call_id": "c1", "output": "4"},
    ]
    second = read(
        Endpoint.RESPONSES, instructions="be kind", input=items, previous_response_id="resp_1"
    )
    assert first.prompt_text is not None
    assert second.prompt_text is not None
    assert second.prompt_text.startswith(first.prompt_text)
    assert first.max_output_tokens == 3
    assert second.previous_response_id == "resp_1"


def test_what_a_tool_has_answered_is_part_of_the_prompt() -> None:
    def prompt(output: object) -> bytes | None:
        item = {"type": "function_call_output", "call_id": "c1", "output": output}
        return read(Endpoint.RESPONSES, input=[user("hi"), item]).prompt_text

    assert prompt("4") == prompt([{"type": "input_text", "text": "4"}]) != prompt("5")


def test_a_moved_cache_control_changes_nothing() -> None:
    def conversation(marked: int) -> bytes | None:
        image = {"type": "image", "source": {"type": "base64", "data": "AA"}}
        messages: list[Any] = [
            user([{"type": "text", "text": "look"}, image]),
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f"}]},
            user([{"type": "tool_result", "tool_use_id": "t", "content": "42"}]),
        ]
        messages[marked]["content"][-1]["cache_control"] = {"type": "ephemeral"}
        body = {"system": [{"type": "text", "text": "s"}], "messages": messages, "max_tokens": 9}
        return read(Endpoint.MESSAGES, **body).prompt_text

    assert conversation(0) == conversation(1) == conversation(2)


def test_anthropic_fields() -> None:
    body = {"messages": [user("q")], "max_tokens": 9, "metadata": {"user_id": "u7"}}
    string, blocks = (
        read(Endpoint.MESSAGES, system=system, **body)
        for system in ("be brief", [{"type": "text", "text": "be brief"}])
    )
    assert string == blocks
    assert (string.user, string.max_output_tokens) == ("u7", 9)
    counted = read(Endpoint.TOKENIZE, system="be brief", messages=[user("q")])
    assert counted.prompt_text == string.prompt_text


def test_pooling_takes_chats_and_parts() -> None:
    chat = read(Endpoint.EMBEDDINGS, messages=[user("q")])
    assert (chat.prompt_text, chat.max_output_tokens) == (b"\xffuser\xfeq", 0)
    one, other = (read(Endpoint.EMBEDDINGS, input=[part]) for part in (IMAGE_A, IMAGE_B))
    assert one.prompt_text != other.prompt_text


def test_what_is_not_understood_still_tells_prompts_apart() -> None:
    def responses(item: Any) -> bytes | None:
        return read(Endpoint.RESPONSES, input=[item]).prompt_text

    assert responses({"type": 7, "a": 1}) != responses({"type": 7, "a": 2})
    assert responses({"type": "item_reference", "id": "a"}) != responses({"type": "x", "id": "b"})
    assert chat_bytes([user([{"text": 1}])]) != chat_bytes([user([{"text": 2}])])
    assert chat_bytes([user(["plain"])]) == chat_bytes([user("plain")])


def test_rerank_and_score_count_their_pairs() -> None:
    rerank = read(Endpoint.RERANK, query="q", documents=["a", {"text": "b"}, "c"])
    assert rerank.prompts == 3
    assert rerank.prompt_text is not None
    assert rerank.prompt_text.startswith(b"\xfeq\xfea\xfe")
    score = read(Endpoint.SCORE, text_1="q", text_2=["a", "b"])
    assert (score.prompts, score.max_output_tokens) == (2, 0)
    assert read(Endpoint.RERANK, query="q").prompts == 1


@pytest.mark.parametrize(
    ("endpoint", "body", "param", "code", "words"),
    [
        (Endpoint.CHAT, b"", None, "invalid_json", "JSON"),
        (Endpoint.CHAT, b"[]", None, "invalid_type", "an object"),
        (Endpoint.CHAT, b'{"messages":[}', None, "invalid_json", "JSON"),
        (Endpoint.CHAT, b"{}", "messages", "missing_required_parameter", "'messages'"),
        (Endpoint.CHAT, b'{"messages":"x"}', "messages", "invalid_type", "an array"),
        (Endpoint.CHAT, b'{"messages":[{}]}', "messages[0].role", None, "role"),
        (
            Endpoint.CHAT,
            b'{"messages":[{"role":"u","content":7}]}',
            "messages[0].content",
            "invalid_type",
            "a string or an array",
        ),
        (Endpoint.CHAT, b'{"messages":[],"max_tokens":1.5}', "max_tokens", None, "an integer"),
        (Endpoint.CHAT, b'{"messages":[],"max_tokens":1e400}', "max_tokens", None, "range"),
        (Endpoint.CHAT, b'{"model":7,"messages":[]}', "model", "invalid_type", "a string"),
        (Endpoint.CHAT, b'{"model":"\\ud800","messages":[]}', None, "invalid_json", "JSON"),
        (Endpoint.CHAT, b'{"model":"\xff","messages":[]}', None, "invalid_json", "JSON"),
        (Endpoint.COMPLETIONS, b'{"prompt":"a\\ud83d"}', None, "invalid_json", "half a character"),
        (Endpoint.COMPLETIONS, b'{"prompt":"\\ude00"}', None, "invalid_json", "half a character"),
        (Endpoint.COMPLETIONS, b'{"prompt":"\\ud83d\\ude00"}x', None, "invalid_json", "trailing"),
        (
            Endpoint.CHAT,
            b'{"messages":[{"role":"u","content":[{"text":"\xff"}]}]}',
            None,
            "invalid_json",
            "UTF-8",
        ),
        (Endpoint.COMPLETIONS, b'{"prompt":[1,"a"]}', "prompt", "invalid_type", "integers"),
        (Endpoint.COMPLETIONS, b'{"prompt":[[1],[]]}x', None, "invalid_json", "JSON"),
        (Endpoint.EMBEDDINGS, b'{"input":[[9223372036854775808]]}', "input[0]", None, "2^63"),
    ],
)
def test_a_bad_body_names_field_and_remedy(
    endpoint: Endpoint, body: bytes, param: str | None, code: str | None, words: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        read_request(endpoint, body)
    assert caught.value.param == param
    assert code is None or caught.value.code == code
    assert words in caught.value.message
    assert "Send" in caught.value.message or "Add" in caught.value.message or code is None


@pytest.mark.parametrize("endpoint", Endpoint)
@pytest.mark.parametrize("field", ["messages", "x", "tools", "input", "prompt", "query", "data_1"])
def test_deep_nesting_is_a_bad_request(endpoint: Endpoint, field: str) -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    with pytest.raises(BadRequest):
        read_request(endpoint, b'{"%s":%s}' % (field.encode(), deep))


@given(st.sampled_from(list(Endpoint)), st.binary(max_size=50))
def test_no_bytes_raise_anything_else(endpoint: Endpoint, body: bytes) -> None:
    with suppress(BadRequest):
        read_request(endpoint, body)


keys = st.sampled_from(["role", "content", "type", "text", "name", "output", "input", "user_id"])
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=3)),
    max_leaves=6,
)
FIELDS = "messages input prompt content query documents text_1 tools system metadata max_tokens"


@given(
    st.sampled_from(list(Endpoint)),
    st.dictionaries(st.sampled_from(FIELDS.split()), json_values, max_size=4),
)
def test_no_json_raises_anything_else(endpoint: Endpoint, body: dict[str, Any]) -> None:
    with suppress(BadRequest):
        read_request(endpoint, json.dumps(body).encode())


def test_every_endpoint_has_a_path_and_others_have_none() -> None:
    assert endpoint_of("/v1/chat/completions") is Endpoint.CHAT
    assert endpoint_of("/v2/rerank") is Endpoint.RERANK
    assert endpoint_of("/v1/messages/count_tokens") is Endpoint.TOKENIZE
    assert endpoint_of("/v1/audio/speech") is Endpoint.AUDIO
    assert endpoint_of("/pooling") is Endpoint.EMBEDDINGS
    assert endpoint_of("/v1/models") is None
    assert endpoint_of("/v1/chat/completions/") is None


def form(*fields: tuple[str, bytes], boundary: str = "b0undary") -> tuple[str, bytes]:
    body = b"".join(
        b'--%s\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n%s\r\n'
        % (
            boundary.encode(),
            name.encode(),
            b'; filename="a.wav"\r\nContent-Type: audio/wav' if name == "file" else b"",
            value,
        )
        for name, value in fields
    )
    return f"multipart/form-data; boundary={boundary}", body + f"--{boundary}--\r\n".encode()


@pytest.mark.parametrize(
    ("fields", "model"),
    [
        ([("model", b"whisper-1"), ("file", b"RIFF" * 9)], "whisper-1"),
        ([("file", b'name="model"\r\n\r\nfake' * 9), ("model", b"w")], "w"),
        ([("file", b"x" * 1_000_000), ("model", b"w")], "w"),
        ([("language", b"en"), ("model_name", b"no")], None),
        ([("model", b"\xff")], None),
        ([("model", b"m" * 1000)], None),
    ],
)
def test_a_forms_model(fields: list[tuple[str, bytes]], model: str | None) -> None:
    assert read_multipart_model(*form(*fields)) == model


def test_a_forms_boundary_may_be_quoted_and_is_needed() -> None:
    content_type, body = form(("model", b"w"))
    quoted = content_type.replace("b0undary", '"b0undary"; charset=utf-8')
    assert read_multipart_model(quoted, body) == "w"
    assert read_multipart_model("multipart/form-data", body) is None
    assert read_multipart_model("application/json", body) is None
    assert read_multipart_model(content_type, body[:60]) is None
    assert read_multipart_model(content_type, b"") is None


OTHER_HEADS = [
    'Content-Disposition: form-data; name="model"',
    "content-disposition: form-data; name=model",
    'Content-Disposition: form-data; filename="; name=a; "; name="model"',
    'Content-Disposition: form-data; filename="; name=\\"a"; name="model"',
    "Content-Disposition: form-data; name*=utf-8''model",
    "Content-Disposition: form-data; name*0=mod; name*1=el",
    'Content-Disposition: form-data; name="mod\\el"',
    'Content-Disposition: form-data;\r\n name="model"',
    'Content-Disposition: form-data; name="a"\r\nContent-Disposition: form-data; name="model"',
    "X: " + "x" * 10_000 + '\r\nContent-Disposition: form-data; name="model"',
]


@pytest.mark.parametrize("other", OTHER_HEADS)
@pytest.mark.parametrize("between", [0, 300_000])
def test_a_form_in_which_engines_might_find_another_model_is_unclear(
    other: str, between: int
) -> None:
    content_type, plain = form(("model", b"let-in"), ("file", b"x" * between))
    hidden = f"--b0undary\r\n{other}\r\n\r\nforbidden\r\n".encode()
    tail = form(("file", b"x" * between))[1]
    for body in (hidden + plain, plain.removesuffix(b"--b0undary--\r\n") + hidden + tail):
        with pytest.raises(UnclearForm):
            read_multipart_model(content_type, body)


def test_a_form_of_too_many_parts_is_unclear() -> None:
    with pytest.raises(UnclearForm):
        read_multipart_model(*form(*[("a", b"")] * 100, ("model", b"w")))


@given(st.binary(max_size=300))
def test_no_form_raises_anything_else(body: bytes) -> None:
    with suppress(UnclearForm):
        read_multipart_model("multipart/form-data; boundary=-", b"---\r\n" + body)


def test_errors_have_openais_shape() -> None:
    assert json.loads(error_body("Say it.", "invalid_request_error", "c", None)) == {
        "error": {
            "message": "Say it.",
            "type": "invalid_request_error",
            "param": None,
            "code": "c",
        }
    }
