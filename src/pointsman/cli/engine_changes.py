"""The engines of one configuration become those of another, while requests go on."""

import asyncio
import logging
from collections.abc import Sequence
from typing import NamedTuple

from pointsman.cli.config import Engine
from pointsman.cli.wiring import node_spec
from pointsman.control.fleet import Fleet
from pointsman.control.listed import ListedEngine
from pointsman.core.ids import NodeName

REPLACED_S_MAX = 10.0
"""For all engines of one reload that take others' places to describe themselves: they mostly are
the same engines under other names, which takes milliseconds."""

log = logging.getLogger(__name__)


class _Exchange(NamedTuple):
    """Engines that leave, and those that take their names and addresses."""

    leaving: list[NodeName]
    joining: list[ListedEngine]


async def apply_engines(
    fleet: Fleet, before: Sequence[Engine], after: Sequence[Engine], *, drain_s: float
) -> None:
    """New ones join; then those that are gone retire: they take nothing new, finish what runs
    within `drain_s` and leave. What is configured otherwise at the same address stays as it
    is, with its cache and its requests; at another address, or under another name, it is replaced:
    in one step with those whose names or addresses it takes, and one such step after the other,
    so that requests have somewhere to go meanwhile.

    Nodes that were added over the admin plane are left alone. All engines are named.
    """
    known = {engine.name: engine for engine in before}
    joining: list[ListedEngine] = []
    for index, engine in enumerate(after):
        listed = ListedEngine(node_spec(engine, index), engine.kv_events, engine.ranks)
        if fleet.runs(listed):
            fleet.stay(listed.spec.name)
            fleet.respecify(listed.spec)
        elif known.get(engine.name) != engine:  # else an operator has removed it
            joining.append(listed)
    joined = await _let_in(fleet, joining)
    kept = {engine.name for engine in after}
    for engine in before:
        if engine.name is not None and engine.name not in kept:
            fleet.retire(NodeName(engine.name), within_s=drain_s, after=joined)


async def _let_in(fleet: Fleet, joining: Sequence[ListedEngine]) -> list[NodeName]:
    """One exchange after the other. Returns who has come in."""
    joined: list[NodeName] = []
    clock = asyncio.get_running_loop().time
    patience_s = clock() + REPLACED_S_MAX
    for leaving, comers in _exchanges(fleet, joining):
        refused = fleet.exchange(leaving, comers)
        for name, why in refused.items():  # another's, which has come meanwhile; or too many
            log.error("engine %s is not used: %s", name, why)
        names = [listed.spec.name for listed in comers if listed.spec.name not in refused]
        joined += names
        for name in names if leaving else ():
            await fleet.until_back(name, patience_s - clock())
    return joined


def _exchanges(fleet: Fleet, joining: Sequence[ListedEngine]) -> list[_Exchange]:
    """Who leaves for whom: together where one takes the name or the address that another has."""
    found: list[_Exchange] = []
    for listed in joining:
        mine = _Exchange(fleet.namesakes(listed.spec), [listed])
        for other in [each for each in found if set(each.leaving) & set(mine.leaving)]:
            found.remove(other)
            leaving = list(dict.fromkeys([*other.leaving, *mine.leaving]))
            mine = _Exchange(leaving, [*other.joining, *mine.joining])
        found.append(mine)
    return found


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
