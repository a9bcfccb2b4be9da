"""A model's chat template, rendered as transformers renders it.

Sandboxed: the template comes with the model and may do nothing but make a string. Imports
jinja2, of the extra `tokenizer`: only `folder.load` may import this module.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn, TypeVar

from jinja2 import TemplateError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pointsman.engines.tokenizer.chat import Chat, Values
from pointsman.engines.tokenizer.fallback import Fallback, Inexact
from pointsman.engines.tokenizer.itemwise import Looked, itemwise

T = TypeVar("T")

_CONTINUED = "CONTINUE_FINAL_MESSAGE_TAG "
"""Put behind the message that is to be continued, and looked for in what is rendered: a
template may trim the message, or write more than once what it says."""


class ChatTemplate:
    """One template. `special_tokens` are variables for it: bos_token and the like.

    `parts_stay`: it takes contents as lists of parts. `reads`: the variables it uses. `leading`:
    of a template that writes each message by itself, how many are always read; else None.
    Raises ValueError if `source` is no template.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, object]) -> None:
        environment = _environment()
        try:
            tree = environment.parse(source)
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise ValueError(f"is no Jinja template: {error}") from None
        self.source = source
        self._itemwise = itemwise(environment, source)
        self.leading = None if self._itemwise is None else self._itemwise.leading
        self.reads = frozenset(meta.find_undeclared_variables(tree))
        self.parts_stay = _loops_over_contents(tree)
        self._special_tokens = dict(special_tokens)

    def render(self, chat: Chat) -> str:
        """The prompt's text. Raises Inexact where the template raises."""
        messages = _tagged(chat.messages) if chat.continues else chat.messages
        text = self._rendered(self._template.render, messages, chat)
        return _until_tag(text, chat.messages[-1]) if chat.continues else text

    def render_apart(self, chat: Chat) -> Sequence[str] | None:
        """The text in parts, as `Itemwise.render` tells it, of a template that has `leading`; None
        where it looks at a known message, or raises: as a whole it may not."""
        assert self._itemwise is not None, "not itemwise"
        try:
            return self._rendered(self._itemwise.render, chat.messages, chat)
        except (Looked, Inexact):
            return None

    def _rendered(self, render: Callable[..., T], messages: list[Values], chat: Chat) -> T:
        variables = self._special_tokens | chat.variables
        try:
            return render(messages=messages, tools=chat.tools, **variables)
        except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            # Messages that the template does not foresee end in any of these.
            raise Inexact(Fallback.REFUSED, str(error)) from None


def _environment() -> ImmutableSandboxedEnvironment:
    """As in transformers' `chat_template_utils._compile_jinja_template`."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class _Generation(Extension):
    """`{% generation %}` marks what an assistant says, for training: its body, here."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own way to say it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own escapes HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(layout: str) -> str:
    """The engine's clock and time zone are taken to be ours."""
    return datetime.now().strftime(layout)


# --- continuing the last message ----------------------------------------------------------


def _tagged(messages: list[Values]) -> list[Values]:
    if not messages:
        raise Inexact(Fallback.REFUSED, "no message to continue")
    *before, last = messages
    content = last["content"]
    if isinstance(content, str):
        return [*before, last | {"content": content + _CONTINUED}]
    if not content:
        raise Inexact(Fallback.REFUSED, "no text to continue")
    *parts, part = content
    return [*before, last | {"content": [*parts, part | {"text": part["text"] + _CONTINUED}]}]


def _until_tag(text: str, last: Values) -> str:
    content = last["content"]
    final = content if isinstance(content, str) else content[-1]["text"]
    at = text.rfind(_CONTINUED.strip())
    if at < 0 or final.strip() not in text:
        raise Inexact(Fallback.REFUSED, "the template drops the message to continue")
    if text.startswith(_CONTINUED, at):
        return text[:at]
    return text[:at].rstrip()  # the template trims, so the engine does, too


# --- does the template loop over a message's content? -------------------------------------
# vLLM and SGLang look for `for … in message['content']` and decide by that in which form
# contents are handed over (vllm/renderers/hf.py `_detect_content_format`).


def _loops_over_contents(tree: nodes.Template) -> bool:
    messages = _aliases(tree, "messages")
    loops = list(tree.find_all(nodes.For))
    each = [
        loop.target.name
        for loop in loops
        if isinstance(loop.target, nodes.Name) and any(_is(loop.iter, name) for name in messages)
    ]
    return any(_is(loop.iter, name, "content") for loop in loops for name in each)


def _aliases(tree: nodes.Template, name: str) -> list[str]:
    """`name`, and what is assigned from it or from a slice of it."""
    names = [name]
    for known in names:  # grows while it is walked
        names += [target for target in _assigned(tree, known) if target not in names]
    return names


def _assigned(tree: nodes.Template, name: str) -> Iterator[str]:
    for assignment in tree.find_all(nodes.Assign):
        if isinstance(assignment.target, nodes.Name) and _is(assignment.node, name):
            yield assignment.target.name


def _is(node: nodes.Node | None, name: str, key: str | None = None) -> bool:
    """Whether `node` reads `name`, or its `key`; as it is, filtered or sliced."""
    match node:
        case nodes.Filter() | nodes.Test():
            return _is(node.node, name, key)
        case nodes.Getitem(arg=nodes.Slice()):
            return _is(node.node, name, key)
        case nodes.Getitem(arg=nodes.Const(value=value)):
            return key is not None and value == key and _is_name(node.node, name)
        case nodes.Getattr():
            return key is not None and node.attr == key and _is_name(node.node, name)
    return key is None and _is_name(node, name)


def _is_name(node: nodes.Node | None, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name
