"""Bodies become what vLLM gives a template, and templates render as in transformers."""

import json
from typing import Any

import pytest

from pointsman.engines.tokenizer.chat import Chat, read_chat, read_text
from pointsman.engines.tokenizer.fallback import Fallback, Inexact
from pointsman.engines.tokenizer.template import ChatTemplate
from tests.support.tokenizers import CHATML, INST

SHOW = "{{ messages | tojson }}"


def chat(*messages: dict[str, Any], parts_stay: bool = False, reads: str = "", **body: Any) -> Chat:
    data = json.dumps({"model": "m", "messages": messages, **body}).encode()
    return read_chat(data, parts_stay=parts_stay, reads=frozenset(reads.split()))


def user(content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **fields}


def rendered(template: str, *messages: dict[str, Any], **body: Any) -> str:
    made = ChatTemplate(template, {"bos_token": "<s>", "eos_token": "</s>"})
    data = json.dumps({"messages": messages, **body}).encode()
    return made.render(read_chat(data, parts_stay=made.parts_stay, reads=made.reads))


def cause(*messages: Any, **body: Any) -> Fallback:
    with pytest.raises(Inexact) as caught:
        chat(*messages, **body)
    return caught.value.cause


# --- contents -----------------------------------------------------------------------------


def test_text_parts_are_joined_by_a_newline() -> None:
    parts = [{"type": "text", "text": "a"}, "b", {"type": "text", "text": ""}]
    parts += [{"type": "input_text", "text": "c"}, {"type": "refusal", "refusal": "d"}]
    assert chat(user(parts)).messages == [{"role": "user", "content": "a\nb\nc\nd"}]


def test_parts_stay_where_the_template_reads_parts() -> None:
    [message] = chat(user([{"type": "text", "text": "a"}, "b"]), parts_stay=True).messages
    assert message["content"] == [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    [message] = chat(user("a"), parts_stay=True).messages
    assert message["content"] == [{"type": "text", "text": "a"}]
    [message] = chat({"role": "assistant"}, parts_stay=True).messages
    assert message["content"] == []


def test_a_tools_answer_is_always_a_string() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    answer = {"role": "tool", "tool_call_id": "x", "content": parts}
    [message] = chat(answer, parts_stay=True).messages
    assert message == {"role": "tool", "content": "a\nb", "tool_call_id": "x"}


def test_no_content_is_empty_content() -> None:
    assert chat({"role": "assistant", "content": None}).messages[0]["content"] == ""


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
        {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}},
        {"type": "text", "text": "a", "uuid": "1"},
        {"image_url": "http://x/y.png"},
        {"type": "something_new"},
    ],
)
def test_what_is_no_text_is_not_exact(part: dict[str, Any]) -> None:
    assert cause(user([{"type": "text", "text": "a"}, part])) is Fallback.MEDIA


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"chat_template": "{{ messages }}"}, Fallback.OPTIONS),
        ({"chat_template_kwargs": {"tools": []}}, Fallback.OPTIONS),
        ({"truncate_prompt_tokens": 10}, Fallback.OPTIONS),
        ({"continue_final_message": True}, Fallback.REFUSED),
        ({"tools": [{"type": "function"}]}, Fallback.REFUSED),
        ({"tools": "none"}, Fallback.REFUSED),
    ],
)
def test_what_cannot_be_reproduced_is_not_exact(body: dict[str, Any], expected: Fallback) -> None:
    assert cause(user("a"), **body) is expected


def test_a_broken_body_is_the_engines_to_refuse() -> None:
    with pytest.raises(Inexact):
        read_chat(b'{"messages": 3}', parts_stay=False, reads=frozenset())


# --- messages and tools -------------------------------------------------------------------


def test_arguments_of_tool_calls_are_objects() -> None:
    calls = [
        {"type": "function", "id": "1", "function": {"name": "f", "arguments": '{"x": [1]}'}},
        {"type": "function", "id": "2", "function": {"name": "f", "arguments": "broken"}},
        {"type": "function", "id": "3", "function": {"name": "f"}},
    ]
    [message] = chat({"role": "assistant", "tool_calls": calls}).messages
    assert [call["function"]["arguments"] for call in message["tool_calls"]] == [{"x": [1]}, {}, {}]
    assert list(message["tool_calls"][0]) == ["id", "function", "type"]


def test_no_tool_calls_is_no_list() -> None:
    [message] = chat({"role": "assistant", "content": "a", "tool_calls": []}).messages
    assert "tool_calls" not in message


def test_reasoning_has_both_names() -> None:
    [message] = chat({"role": "assistant", "content": "a", "reasoning_content": "r"}).messages
    assert message["reasoning"] == message["reasoning_content"] == "r"


def test_tools_have_their_fields_in_the_engines_order() -> None:
    given = {"function": {"strict": True, "parameters": {"a": 1}, "name": "f"}, "type": "function"}
    [tool] = chat(user("a"), tools=[given]).tools or []
    assert json.dumps(tool) == (
        '{"type": "function", "function": {"name": "f", "description": null, '
        '"parameters": {"a": 1}, "strict": true}}'
    )


def test_variables_are_those_that_the_template_reads() -> None:
    made = chat(
        user("a"),
        reads="enable_thinking custom reasoning_effort",
        chat_template_kwargs={"custom": 1, "unread": 2, "add_generation_prompt": False},
        reasoning_effort="high",
    )
    assert made.variables == {
        "custom": 1,
        "enable_thinking": True,
        "reasoning_effort": "high",
        "add_generation_prompt": True,
        "documents": None,
    }


def test_an_absent_effort_is_undefined() -> None:
    assert "reasoning_effort" not in chat(user("a"), reads="reasoning_effort").variables


@pytest.mark.parametrize("prompt", ["a", ["a", "b"]])
def test_the_first_prompt_of_a_completion(prompt: Any) -> None:
    made = read_text(json.dumps({"prompt": prompt}).encode())
    assert (made.text, made.special_tokens) == ("a", True)


@pytest.mark.parametrize(
    "body", [{"prompt": [1, 2]}, {"prompt": "a", "truncate_prompt_tokens": 3}, {}]
)
def test_completions_without_text(body: dict[str, Any]) -> None:
    with pytest.raises(Inexact):
        read_text(json.dumps(body).encode())


# --- rendering ----------------------------------------------------------------------------


def test_a_chat_is_rendered() -> None:
    text = rendered(CHATML, {"role": "system", "content": "S"}, user("hi"))
    assert text == (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert rendered(CHATML, user("hi"), add_generation_prompt=False) == (
        "<|im_start|>user\nhi<|im_end|>\n"
    )


def test_templates_know_the_special_tokens() -> None:
    text = rendered(INST, user("hi"), {"role": "assistant", "content": "ho"})
    assert text == "<s>[INST] hi [/INST] ho </s>"


def test_blocks_are_trimmed_and_json_is_left_alone() -> None:
    template = (
        "{% for m in messages %}\n  {%- if true %}\n{{ m | tojson }}\n{% endif %}\n{% endfor %}"
    )
    assert rendered(template, user("<ä>&'")) == '{"role": "user", "content": "<ä>&\'"}\n'


def test_json_takes_transformers_options() -> None:
    template = "{{ messages[0] | tojson(indent=1, ensure_ascii=true, sort_keys=true) }}"
    assert rendered(template, user("ä")) == '{\n "content": "\\u00e4",\n "role": "user"\n}'


def test_helpers_of_templates() -> None:
    assert rendered("{{ strftime_now('%%') }}", user("a")) == "%"
    assert rendered("{% for m in messages %}{% break %}{% endfor %}x", user("a")) == "x"
    assert rendered("{% generation %}a{% endgeneration %}", user("a")) == "a"


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[7].content }}",
        "{{ messages[0].content + 1 }}",
        "{{ 1 / 0 }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{% for i in range(10000000) %}{% endfor %}",
    ],
)
def test_what_a_template_refuses_is_not_exact(template: str) -> None:
    with pytest.raises(Inexact) as caught:
        rendered(template, user("a"))
    assert caught.value.cause is Fallback.REFUSED


def test_what_is_no_template_is_refused() -> None:
    with pytest.raises(ValueError, match="no Jinja template"):
        ChatTemplate("{% for %}", {})


@pytest.mark.parametrize(
    ("loop", "stay"),
    [
        ("{% for m in messages %}{% for p in m['content'] %}{% endfor %}{% endfor %}", True),
        ("{% for m in messages %}{% for p in m.content %}{% endfor %}{% endfor %}", True),
        ("{% set l = messages[1:] %}{% for m in l %}{% for p in m.content %}{% endfor %}{% endfor %}", True),  # noqa: E501
        ("{% set l = messages %}{% set k = l %}{% for m in k | list %}{% for p in m.content %}{% endfor %}{% endfor %}", True),  # noqa: E501
        ("{% for m in messages %}{{ m.content }}{% endfor %}", False),
        ("{% for m in messages %}{% for p in m.parts %}{% endfor %}{% endfor %}", False),
        ("{% set messages = messages[1:] %}{% for m in messages %}{% endfor %}", False),
    ],
)  # fmt: skip
def test_contents_are_lists_where_the_template_loops_over_them(loop: str, stay: bool) -> None:
    assert ChatTemplate(loop, {}).parts_stay is stay


# --- continuing ---------------------------------------------------------------------------

CONTINUED = {"continue_final_message": True, "add_generation_prompt": False}


def test_the_last_message_is_continued() -> None:
    text = rendered(CHATML, user("hi"), {"role": "assistant", "content": "Well, "}, **CONTINUED)
    assert text.endswith("<|im_start|>assistant\nWell, ")


def test_a_template_that_trims_is_followed() -> None:
    trimming = "{% for m in messages %}[{{ m.content | trim }}]{% endfor %}"
    assert rendered(trimming, user("hi "), **CONTINUED) == "[hi"


@pytest.mark.parametrize("template", ["nothing", "{% for m in messages %}{% endfor %}"])
def test_a_template_that_drops_the_message_cannot_continue_it(template: str) -> None:
    with pytest.raises(Inexact):
        rendered(template, user("hi"), **CONTINUED)


def test_nothing_to_continue() -> None:
    with pytest.raises(Inexact):
        rendered(SHOW, **CONTINUED)
    loop = "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"
    with pytest.raises(Inexact):
        rendered(loop, user([]), **CONTINUED)
    assert rendered(loop, user("a"), user("b"), **CONTINUED) == "ab"
