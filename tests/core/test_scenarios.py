"""Scenario files: commands, `----`, the full output. `pytest --rewrite` writes what is; read
the difference as code before it is committed.

    node NAME [kv=BLOCKS] [limit=N] [pool=P]    a node joins and describes itself
    down NAME | up NAME                         its probes fail, or succeed, past the threshold
    drain NAME | undrain NAME
    restart NAME | leave NAME
    policy NAME
    learned                                     every node's speeds are learned (the prior's)
    arrive ID [TEXT*N] [out=N] [prio=N] [hold=S] [pool=P] [session=S] [model=M]
    start ID | finish ID [cached=N] [prompt=N] | gone ID | fail ID KIND
    wait SECONDS
    explain ID TEXT*N                           every candidate's terms, in ms
    state                                       in flight, held, leases
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from pointsman.core.errors import EndCause, FailureKind
from pointsman.core.events import Effect, NodeDraining, NodeLeft, NodeProbed, PolicyChosen
from pointsman.core.limits import PROBE_FAILURES_MAX, PROBE_SUCCESSES_MIN
from tests.support.driver import Driver, request, teach, told

FILES = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario(path: Path, request: pytest.FixtureRequest) -> None:
    blocks = [_parse(block) for block in path.read_text().split("\n\n")]
    play = Play()
    played = "\n\n".join(_render(head, commands, play) for head, commands in blocks) + "\n"
    if request.config.getoption("--rewrite"):
        path.write_text(played)
    assert path.read_text() == played


def _parse(block: str) -> tuple[list[str], list[str]]:
    """Comment lines and command lines of a block; what was expected is made anew."""
    lines = block.strip().split("\n----")[0].split("\n")
    comments = [line for line in lines if line.startswith("#")]
    return comments, [line for line in lines if line and not line.startswith("#")]


def _render(comments: list[str], commands: list[str], play: "Play") -> str:
    if not commands:
        return "\n".join(comments)
    output = [line for command in commands for line in play.run(command)]
    return "\n".join([*comments, *commands, "----", *(output or ["-"])])


class Play:
    """One scenario being played."""

    def __init__(self) -> None:
        self.driver = Driver()

    def run(self, line: str) -> list[str]:
        verb, *words = line.split()
        options = dict(word.split("=", 1) for word in words if "=" in word)
        names = [word for word in words if "=" not in word]
        method: Callable[..., list[str]] = getattr(self, f"do_{verb}")
        lines: list[str] = method(*names, **options)
        return lines

    def told(self, effects: list[Effect]) -> list[str]:
        """What comes of it, recalls obeyed."""
        return told(self.driver.obey(effects))

    def do_node(
        self, name: str, kv: str = "10000", limit: str = "", pool: str = "default"
    ) -> list[str]:
        self.driver.join(name, pool=pool, concurrency_max=int(limit) if limit else None)
        return self.told(self.driver.describe(name, kv_blocks=int(kv)))

    def do_down(self, name: str) -> list[str]:
        return self._probe(name, healthy=False, times=PROBE_FAILURES_MAX)

    def do_up(self, name: str) -> list[str]:
        return self._probe(name, healthy=True, times=PROBE_SUCCESSES_MIN)

    def _probe(self, name: str, *, healthy: bool, times: int) -> list[str]:
        event = NodeProbed(self.driver.ids[name], healthy)
        return [line for _ in range(times) for line in self.told(self.driver.step(event))]

    def do_drain(self, name: str) -> list[str]:
        return self.told(self.driver.step(NodeDraining(self.driver.ids[name], True)))

    def do_undrain(self, name: str) -> list[str]:
        return self.told(self.driver.step(NodeDraining(self.driver.ids[name], False)))

    def do_leave(self, name: str) -> list[str]:
        return self.told(self.driver.step(NodeLeft(self.driver.ids[name])))

    def do_restart(self, name: str) -> list[str]:
        self.driver.join(name)
        return [f"{name} is #{self.driver.ids[name]}", *self.told(self.driver.describe(name))]

    def do_policy(self, name: str) -> list[str]:
        return self.told(self.driver.step(PolicyChosen(name)))

    def do_learned(self) -> list[str]:
        for node in self.driver.nodes:
            teach(node.calibration)
        return []

    def do_arrive(self, request_id: str, text: str = "hello", **options: str) -> list[str]:
        return self.told(self.driver.arrive(request_id, _text(text), **_fields(options)))

    def do_start(self, request_id: str) -> list[str]:
        return self.told(self.driver.start(request_id))

    def do_finish(self, request_id: str, cached: str = "", prompt: str = "") -> list[str]:
        usage = {"cached_tokens": int(cached)} if cached else {}
        usage |= {"prompt_tokens": int(prompt)} if prompt else {}
        return self.told(self.driver.settle(request_id, EndCause.FINISHED, **usage))

    def do_gone(self, request_id: str) -> list[str]:
        return self.told(self.driver.settle(request_id, EndCause.CLIENT_GONE))

    def do_fail(self, request_id: str, kind: str) -> list[str]:
        return self.told(self.driver.fail(request_id, FailureKind(kind)))

    def do_wait(self, seconds: str) -> list[str]:
        return self.told(self.driver.advance(float(seconds)))

    def do_explain(self, request_id: str, text: str, **options: str) -> list[str]:
        asked = request(request_id, _text(text), **_fields(options))
        decision = self.driver.scheduler.explain(asked, self.driver.now_s)
        lines = [f"{decision.ruling} {decision.node or '-'}: {decision.why}"]
        for c in decision.candidates:
            own = f"queue {_ms(c.queue_s)} prefill {_ms(c.prefill_s)} decode {_ms(c.decode_s)}"
            imposed = (
                f"stall {_ms(c.stall_s)} slowdown {_ms(c.slowdown_s)} room {_ms(c.room_wait_s)}"
            )
            lines.append(f"  {c.node}: hit {c.hit_tokens} {own} {imposed} score {c.score:.3f}")
        return lines + [f"  not {x.node}: {x.why}" for x in decision.excluded]

    def do_state(self) -> list[str]:
        scheduler = self.driver.scheduler
        lines = [
            f"{v.name}: {v.health}{' draining' if v.draining else ''}, {v.inflight} in flight, "
            f"{v.kv_blocks_leased} blocks leased, {v.index_blocks} indexed"
            for v in scheduler.nodes(self.driver.now_s)
        ]
        return [*lines, f"{scheduler.in_flight} in flight, {scheduler.held} held"]


def _text(spec: str) -> str:
    word, _, times = spec.partition("*")
    return word * int(times or 1)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f}"


def _fields(options: dict[str, str]) -> dict[str, object]:
    fields: dict[str, object] = {k: v for k, v in options.items() if k in _AS_THEY_ARE}
    for short, (name, kind) in _SHORT.items():
        if short in options:
            fields[name] = kind(options[short])
    return fields


_AS_THEY_ARE = {"pool", "session", "model", "tenant", "zone"}
_SHORT: dict[str, tuple[str, Callable[[str], object]]] = {
    "out": ("max_output_tokens", int),
    "prio": ("priority", int),
    "hold": ("hold_s", float),
    "stream": ("stream", lambda word: word == "yes"),
}
