"""The engines of one configuration become those of another, while requests go on."""

import asyncio
import logging
from collections.abc import Sequence

from pointsman.cli.config import Engine
from pointsman.cli.wiring import node_spec
from pointsman.control.fleet import Fleet, NodeRefused
from pointsman.core.events import NodeSpec
from pointsman.core.ids import NodeName

REPLACED_S_MAX = 10.0
"""For all engines of one reload that take others' places to describe themselves: they mostly are
the same engines under other names, which takes milliseconds."""

log = logging.getLogger(__name__)


async def apply_engines(
    fleet: Fleet, before: Sequence[Engine], after: Sequence[Engine], *, drain_s: float
) -> None:
    """New ones join; then those that are gone retire: they take nothing new, finish what runs
    within `drain_s` and leave. What is configured otherwise at the same address stays as it
    is, with its cache and its requests; at another address, or under another name, it is replaced,
    one after the other, so that requests have somewhere to go meanwhile.

    Nodes that were added over the admin plane are left alone. All engines are named.
    """
    known = {engine.name: engine for engine in before}
    joined: list[NodeName] = []
    until_s = asyncio.get_running_loop().time() + REPLACED_S_MAX
    for index, engine in enumerate(after):
        spec = node_spec(engine, index)
        if fleet.runs(spec, kv_events=engine.kv_events, ranks=engine.ranks):
            fleet.stay(spec.name)
            fleet.respecify(spec)
        elif known.get(engine.name) == engine:
            pass  # an operator has removed it
        elif await _join(fleet, engine, spec, until_s):
            joined.append(spec.name)
    kept = {engine.name for engine in after}
    for engine in before:
        if engine.name is not None and engine.name not in kept:
            fleet.retire(NodeName(engine.name), within_s=drain_s, after=joined)


async def _join(fleet: Fleet, engine: Engine, spec: NodeSpec, until_s: float) -> bool:
    """Add an engine; in the place of others it is waited for, until then at most. Whether it has
    come in."""
    replaced = fleet.namesakes(spec)
    for name in replaced:
        await fleet.remove(name)
    try:
        fleet.add(spec, kv_events=engine.kv_events, ranks=engine.ranks)
    except NodeRefused as refused:  # another's, which has come meanwhile; or too many
        log.error("engine %s is not used: %s", spec.name, refused)
        return False
    if replaced:
        await fleet.until_back(spec.name, until_s - asyncio.get_running_loop().time())
    return True


def engine_conflicts(fleet: Fleet, before: Sequence[Engine], after: Sequence[Engine]) -> list[str]:
    """Why an engine cannot join: a node of an operator or of an agent has its name or address."""
    ours = {engine.name for engine in before}
    places = {(engine.name, engine.url) for engine in before}
    return [
        f"engines[{index}]: node '{name}' was added over the admin plane, or by an agent, and "
        "has this name or address; DELETE it first"
        for index, engine in enumerate(after)
        if (engine.name, engine.url) not in places
        for name in fleet.namesakes(node_spec(engine, index))
        if name not in ours and not fleet.is_retiring(name)
    ]
