"""Does a chat template write each message by itself? Then one that it has written need not be
written again: a conversation that grows costs its new messages.

What a template writes of a message may depend on any other, on how many there are, or on what it
has set meanwhile. `itemwise` says no wherever its tree leaves that open. Else the template is made
to pass over messages that are `KNOWN`, and to put a mark before each message and behind the last.
What it may depend on beside the message is the same for a whole conversation: tools, variables,
and some `leading` messages. And should it look at a known message all the same, it is told so.

Imports jinja2, of the extra `tokenizer`: only `template` may import this module.
"""

import secrets
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from jinja2 import Environment, Template, nodes

LEADING_MAX = 8
"""Messages that a template looks at by their number: the system prompt, and one or two more."""

_MOODS = frozenset({"strftime_now", "lipsum", "cycler", "joiner"})
"""Functions whose answer is another each time."""

_ELSEWHERE = (nodes.Block, nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)


_TEST = "known message"
"""A test of a name that no template can write."""


class Looked(Exception):  # noqa: N818 - names what happened
    """The template has looked at a message that is known: it is not itemwise after all."""


class _Known:
    """In the place of a message of which is known what the template writes."""

    def _look(self, *_: object) -> NoReturn:
        raise Looked

    __getattr__ = __getitem__ = __eq__ = __contains__ = _look
    __bool__ = __len__ = __iter__ = __str__ = __repr__ = __hash__ = _look


KNOWN: Any = _Known()


class Itemwise:
    """A template that has been rewritten. `leading` messages and the last are never to be known."""

    def __init__(self, template: Template, mark: str, leading: int) -> None:
        self.leading = leading
        self._template = template
        self._mark = mark

    def render(self, **variables: Any) -> Sequence[str]:
        """What stands before the messages, each message, and what stands behind; of known messages
        nothing. Raises Looked, and what the template raises."""
        return self._template.render(**variables).split(self._mark)


def itemwise(environment: Environment, source: str) -> Itemwise | None:
    """The template, if it is one that writes each message by itself."""
    tree = environment.parse(source)
    reading = _Reading(tree)
    loop = reading.main_loop()
    if loop is None or not reading.is_local(loop):
        return None
    mark = f"\x00{secrets.token_hex(8)}\x00"
    _rewrite(tree, loop, mark)
    tree.set_environment(environment)
    environment.tests[_TEST] = _is_known
    return Itemwise(environment.from_string(tree), mark, reading.leading)


def _is_known(message: object) -> bool:
    return message is KNOWN


def _rewrite(tree: nodes.Template, loop: nodes.For, mark: str) -> None:
    assert isinstance(loop.target, nodes.Name), loop.target
    line = loop.lineno
    message = nodes.Name(loop.target.name, "load", lineno=line)
    known = nodes.Test(message, _TEST, [], [], None, None, lineno=line)
    unknown = nodes.If(nodes.Not(known, lineno=line), loop.body, [], [], lineno=line)
    loop.body = [_output(mark, line), unknown]
    at = next(n for n, top in enumerate(tree.body) if loop in (top, *top.find_all(nodes.For)))
    tree.body.insert(at + 1, _output(mark, line))


def _output(text: str, line: int) -> nodes.Output:
    return nodes.Output([nodes.TemplateData(text, lineno=line)], lineno=line)


class _Reading:
    """A template's tree up to and with the loop over the messages. What follows may look at what
    it likes: it is written anew each time, and known messages cannot be looked at."""

    def __init__(self, tree: nodes.Template) -> None:
        self.leading = 0
        self._parents: dict[int, nodes.Node] = {}
        self._all: list[nodes.Node] = []
        self._aliases = {"messages"}
        for top in tree.body:
            self._take(top, tree)
            if self._loops():
                break

    def _take(self, node: nodes.Node, parent: nodes.Node) -> None:
        self._parents[id(node)] = parent
        self._all.append(node)
        if isinstance(node, nodes.Assign) and self._is_cut(node.node):
            self._aliases |= {node.target.name} if isinstance(node.target, nodes.Name) else set()
        for child in node.iter_child_nodes():
            self._take(child, node)

    def _is_cut(self, node: nodes.Node) -> bool:
        """`messages`, or `messages[1:]`."""
        match node:
            case nodes.Name(name=name):
                return name in self._aliases
            case nodes.Getitem(
                node=nodes.Name(name=name),
                arg=nodes.Slice(start=nodes.Const(value=int(start)), stop=None, step=None),
            ):
                return name in self._aliases and 0 <= start < LEADING_MAX
        return False

    def _loops(self) -> list[nodes.For]:
        fors = [node for node in self._all if isinstance(node, nodes.For)]
        return [loop for loop in fors if self._is_messages(loop.iter)]

    def _is_messages(self, node: nodes.Node) -> bool:
        return isinstance(node, nodes.Name) and node.name in self._aliases

    # --- the loop -----------------------------------------------------------------------

    def main_loop(self) -> nodes.For | None:
        """The one loop over all messages, if there is just one, of the plain kind."""
        loops = self._loops()
        if len(loops) != 1 or any(isinstance(node, _ELSEWHERE) for node in self._all):
            return None
        [loop] = loops
        around = self._around(loop)
        plain = not (loop.test or loop.else_ or loop.recursive)
        ok = plain and isinstance(loop.target, nodes.Name) and loop.target.name not in self._aliases
        nested = any(isinstance(each, nodes.For | nodes.Macro | nodes.CallBlock) for each in around)
        return loop if ok and not nested else None

    def _around(self, node: nodes.Node) -> Iterator[nodes.Node]:
        while (parent := self._parents.get(id(node))) is not None:
            yield parent
            node = parent

    def is_local(self, loop: nodes.For) -> bool:
        """Whether what it writes of a message depends on that one and on what stays the same."""
        return (
            all(self._is_used_locally(name) for name in self._names(self._aliases))
            and all(self._knows_place_only_as_end(name) for name in self._names({"loop"}))
            and self.leading <= LEADING_MAX
            and not self._keeps_state(loop)
            and not self._is_moody(loop)
        )

    def _names(self, names: set[str]) -> list[nodes.Name]:
        return [n for n in self._all if isinstance(n, nodes.Name) and n.name in names]

    def _is_used_locally(self, name: nodes.Name) -> bool:
        """As what is looped over, or as one of the leading messages."""
        parent = self._parents[id(name)]
        match parent:
            case nodes.For():
                return parent.iter is name
            case nodes.Assign():
                return self._is_cut(parent.node)
            case nodes.Test(name="defined"):
                return True
            case nodes.Getitem(arg=nodes.Const(value=int(number))) if number >= 0:
                self.leading += number + 1
                return True
            case nodes.Getitem(arg=nodes.Slice(start=nodes.Const(value=int(start)))):
                self.leading += start
                return isinstance(self._parents[id(parent)], nodes.Assign) and self._is_cut(parent)
        return False

    def _knows_place_only_as_end(self, name: nodes.Name) -> bool:
        """Of a message's place only whether it is the first or the last: a known one is neither."""
        counts = self._loop_of(name)
        if counts is not None and not self._is_messages(counts.iter):
            return True  # a loop over something else, within a message
        match self._parents[id(name)]:
            case nodes.Getattr(attr="first") | nodes.Getitem(arg=nodes.Const(value="first")):
                self.leading += 1
                return True
            case nodes.Getattr(attr="last") | nodes.Getitem(arg=nodes.Const(value="last")):
                return True
        return False

    def _loop_of(self, node: nodes.Node) -> nodes.For | None:
        """The innermost loop whose body it is in."""
        for parent in self._around(node):
            if isinstance(parent, nodes.For) and node is not parent.iter:
                return parent
            node = parent
        return None

    def _keeps_state(self, loop: nodes.For) -> bool:
        """Whether it sets what outlives a message, or ends before the last one."""
        kept = [node for node in self._all if isinstance(node, nodes.NSRef | nodes.Break)]
        ours = [node for node in kept if loop in self._around(node)]
        macros = [n for n in kept if any(isinstance(m, nodes.Macro) for m in self._around(n))]
        return bool(ours or macros)

    def _is_moody(self, loop: nodes.For) -> bool:
        """Whether it depends on what is another at another time."""
        if any(node.name == "random" for node in self._all if isinstance(node, nodes.Filter)):
            return True
        moods = self._names(set(_MOODS))
        if any(loop in self._around(name) for name in moods):
            return True
        read = {n.name for n in loop.find_all(nodes.Name) if n.ctx == "load"}
        return bool(moods) and bool(read & self._set_before(loop))

    def _set_before(self, loop: nodes.For) -> set[str]:
        """Names that are set outside of the loop, without those of the messages themselves."""
        stored = [n for n in self._all if isinstance(n, nodes.Name) and n.ctx == "store"]
        macros = {node.name for node in self._all if isinstance(node, nodes.Macro)}
        names = {n.name for n in stored if loop not in self._around(n)}
        return (macros | names) - self._aliases
