"""A conversation of which only what is new is looked at has the ids of the whole."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pointsman.engines.tokenizer import ModelTokenizer, Pieces, growing, load
from pointsman.engines.tokenizer.chat import Values, read_message
from pointsman.engines.tokenizer.fallback import Inexact
from pointsman.engines.tokenizer.model import Templates
from pointsman.engines.tokenizer.template import ChatTemplate
from pointsman.wire.endpoints import Endpoint
from tests.support.tokenizers import CHATML, INST, write_folder

SYSTEM = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou answer.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""Of SmolLM2's kind."""

CUT = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set said = messages[0]['content'] %}"
    "{% set messages = messages[1:] %}{% else %}{% set said = '' %}{% endif %}"
    "<|im_start|>system\n{{ strftime_now('%Y') }} {{ said }}<|im_end|>"
    "{% for m in messages %}{% if m.tool_calls is defined %}{% for call in m.tool_calls %}"
    "<|im_start|>call\n{{ call.function | tojson }}{% if not loop.last %},{% endif %}{% endfor %}"
    "{% elif loop.first %}<|im_start|>first\n{{ m.content | trim }}"
    "{% else %}<|im_start|>{{ m['role'] }}\n{{ m['content'] | trim }}{% endif %}<|im_end|>"
    "{% endfor %}{% if messages[-1].role != 'assistant' %}<|im_start|>assistant\n{% endif %}"
)
"""Of Llama 3's kind."""

LAST = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\n' + message['content'] -}}"
    "{%- if (loop.last and add_generation_prompt) or not loop.last -%}"
    "{{- '<|im_end|>' + '\n' -}}{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt and messages[-1]['role'] != 'assistant' -%}"
    "{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
)
"""vLLM's own."""

SILENT = (
    "{% set loop_messages = messages %}{% for m in loop_messages %}{% if m.role == 'tool' %}"
    "{% continue %}{% endif %}<|im_start|>{{ m.content }}{% endfor %}"
)

ITEMWISE = {"chatml": CHATML, "system": SYSTEM, "cut": CUT, "last": LAST, "silent": SILENT}

NOT_ITEMWISE = {
    "next": "{% for m in messages %}{{ loop.nextitem.role }}{% endfor %}",
    "place": "{% for m in messages %}{{ loop.index0 % 2 }}{{ m.content }}{% endfor %}",
    "place in a loop": "{% for m in messages %}{% for i in range(loop.index) %}-{% endfor %}"
    "{% endfor %}",
    "count": "{% set n = messages | length %}{% for m in messages %}{{ n }}{% endfor %}",
    "end": "{% set end = messages[-1] %}{% for m in messages %}{{ end.role }}{% endfor %}",
    "neighbour": "{% for m in messages %}{{ messages[loop.index0 - 1].role }}{% endfor %}",
    "state": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
    "{{ ns.n }}{% endfor %}",
    "state in a macro": "{% set ns = namespace(n=0) %}{% macro f() %}{% set ns.n = 1 %}"
    "{% endmacro %}{% for m in messages %}{{ f() }}{{ ns.n }}{% endfor %}",
    "break": "{% for m in messages %}{% if m.role == 'tool' %}{% break %}{% endif %}{% endfor %}",
    "filtered": "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}",
    "reversed": "{% for m in messages[::-1] %}{{ m.content }}{% endfor %}",
    "front": "{% for m in messages[:-1] %}{{ m.content }}{% endfor %}",
    "other": "{% set messages = messages | list %}{% for m in messages %}{{ m }}{% endfor %}",
    "two loops": "{% if true %}{% for m in messages %}{% endfor %}{% for m in messages %}"
    "{{ m.content }}{% endfor %}{% endif %}",
    "time": "{% for m in messages %}{{ strftime_now('%s') }}{% endfor %}",
    "time before": "{% set t = strftime_now('%s') %}{% for m in messages %}{{ t }}{% endfor %}",
    "chance": "{% for m in messages %}{{ [1, 2] | random }}{% endfor %}",
    "cycle": "{% set c = cycler(1, 2) %}{% for m in messages %}{{ c.next() }}{% endfor %}",
    "handed on": "{% macro f(x) %}{{ x }}{% endmacro %}{{ f(messages) }}"
    "{% for m in messages %}{% endfor %}",
    "in a macro": "{% macro f() %}{% for m in messages %}{% endfor %}{% endmacro %}{{ f() }}",
    "none": "{{ messages[0].content }}",
}

CONTENTS = st.sampled_from(["a", "The train leaves.", " <|im_end|>", "<s>", "", "é 🚂\n", "b"])
CALLS = [{"type": "function", "function": {"name": "f", "arguments": "{}"}}] * 2
MESSAGES = st.one_of(
    st.builds(
        lambda role, content: {"role": role, "content": content},
        st.sampled_from(["user", "assistant", "tool", "system"]),
        CONTENTS,
    ),
    st.just({"role": "assistant", "content": "", "tool_calls": CALLS}),
)
FIELDS = st.sampled_from(
    [
        {},
        {},
        {"add_generation_prompt": False},
        {"add_special_tokens": True},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
    ]
)


def made(folder: Path, template: str) -> tuple[ModelTokenizer, ModelTokenizer]:
    """One that remembers, and one that takes each chat as a whole."""
    write_folder(folder, template=template)
    remembers, whole = load(folder, Pieces(100_000)), load(folder, Pieces(0))
    templates = whole._templates
    assert templates is not None
    whole._templates = Templates(templates.default, templates.tools, {})
    return remembers, whole


def body(messages: list[Any], **fields: Any) -> bytes:
    return json.dumps({"messages": messages, **fields}).encode()


def ids(tokenizer: ModelTokenizer, data: bytes) -> list[int] | str:
    try:
        return tokenizer.tokens(Endpoint.CHAT, data).tokens.tolist()
    except Inexact as inexact:
        return str(inexact.cause)


@pytest.fixture(scope="module", params=[*ITEMWISE, "inst"])
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[ModelTokenizer, ModelTokenizer]:
    template = ITEMWISE.get(request.param, INST)
    return made(tmp_path_factory.mktemp("model"), template)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    start=st.lists(MESSAGES, min_size=1, max_size=6),
    turns=st.lists(st.lists(MESSAGES, min_size=1, max_size=3), max_size=5),
    fields=FIELDS,
)
def test_a_growing_conversation_has_the_ids_of_the_whole(
    pair: tuple[ModelTokenizer, ModelTokenizer],
    start: list[Any],
    turns: list[list[Any]],
    fields: dict[str, Any],
) -> None:
    remembers, whole = pair
    messages = list(start)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(growing, "MESSAGES_MIN", 2)
        patch.setattr(growing, "FAILURES_MAX", 1_000_000)
        for turn in [[], *turns]:
            messages += turn
            data = body(messages, **fields)
            assert ids(remembers, data) == ids(whole, data)


@pytest.mark.parametrize("name", ITEMWISE)
def test_templates_that_write_each_message_by_itself(name: str) -> None:
    assert ChatTemplate(ITEMWISE[name], {}).leading is not None


@pytest.mark.parametrize("name", NOT_ITEMWISE)
def test_templates_that_may_not(name: str) -> None:
    assert ChatTemplate(NOT_ITEMWISE[name], {}).leading is None


def test_a_turn_reads_and_encodes_only_what_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remembers, _ = made(tmp_path, SYSTEM)
    messages = [{"role": "user", "content": f"message {n}"} for n in range(growing.MESSAGES_MIN)]
    first = remembers.tokens(Endpoint.CHAT, body(messages))
    read: list[bytes] = []

    def counted(raw: bytes, *, parts_stay: bool) -> Values:
        read.append(bytes(raw))
        return read_message(raw, parts_stay=parts_stay)

    monkeypatch.setattr(growing, "read_message", counted)
    messages.append({"role": "assistant", "content": "new"})
    second = remembers.tokens(Endpoint.CHAT, body(messages))
    assert len(read) == 4, "two that lead, the one that was last, and the new one"
    assert second.remembered >= len(first.tokens) - 4, "the generation prompt stood behind"


@pytest.mark.parametrize(
    "tail",
    [
        "{% for m in messages %}{{ m.role[0] }}{% endfor %}",
        "{{ messages }}",
        "{{ messages | tojson }}",
    ],
)
def test_a_tail_that_looks_back_is_rendered_as_a_whole(tmp_path: Path, tail: str) -> None:
    remembers, whole = made(tmp_path, CHATML + tail)
    messages = [{"role": "user", "content": "a"} for _ in range(growing.MESSAGES_MIN)]
    for _ in range(3):
        data = body(messages)
        assert ids(remembers, data) == ids(whole, data)
        messages.append({"role": "assistant", "content": "b"})


def test_another_context_is_another_conversation(tmp_path: Path) -> None:
    remembers, whole = made(
        tmp_path, "{% for m in messages %}<|im_start|>{{ mood }}{{ m.content }}{% endfor %}"
    )
    messages = [{"role": "user", "content": "a"} for _ in range(growing.MESSAGES_MIN)]
    for mood in ("glad", "sad", "glad"):
        data = body(messages, chat_template_kwargs={"mood": mood})
        assert ids(remembers, data) == ids(whole, data)


def test_what_does_not_stand_apart_is_given_up(tmp_path: Path) -> None:
    remembers, _ = made(tmp_path, INST)
    assert remembers._templates is not None
    [chats] = remembers._templates.growing.values()
    data = body([{"role": "user", "content": "a"}] * growing.MESSAGES_MIN)
    for _ in range(growing.FAILURES_MAX):
        assert not chats._is_futile
        remembers.tokens(Endpoint.CHAT, data)
    assert chats._is_futile
