"""The options of an agent."""

import msgspec

from pointsman.agent.front import FrontOptions
from pointsman.agent.supervisor import SupervisorOptions
from pointsman.collectors.cadence import Cadence
from pointsman.core.events import NodeSpec
from pointsman.wire.control import ControlAddress


class LocalEngine(msgspec.Struct, frozen=True, kw_only=True):
    """An engine beside the agent. `url` is how the agent reaches it. `spec` is announced, with the
    address by which the gateway reaches it; with a `front`, its port becomes the front's.
    `kv_events` is auto, off or a ZMQ endpoint. `api_key` is what the engine asks for, empty for
    nothing: it goes with the agent's own questions and with what passes a `front`. If there is a
    `command`, the agent runs and supervises it."""

    url: str
    spec: NodeSpec
    kv_events: str = "auto"
    api_key: str = ""
    front: FrontOptions | None = None
    command: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Without the key."""
        return f"<LocalEngine of {self.spec.name} at {self.url}>"


LOCAL_CADENCE = Cadence(probe_s=2.0, scrape_idle_s=2.0)
"""How often engines are looked at: questions on the same machine are cheap, and nobody tells the
agent of placements."""


class AgentOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A whole agent.

    heartbeat_s     between heartbeats while nothing else calls for one
    heartbeat_s_max between heartbeats when they are not acknowledged in time
    delta_blocks    changes of an engine's cache that are told at once, without waiting for the
                    next heartbeat
    delta_s_min     between such early heartbeats: an engine may change at every step
    gpus            indices of the engines' GPUs, as nvidia-smi counts them; none is all
    drain_s         for requests to finish before a supervised engine is ended
    """

    name: str
    scheduler: ControlAddress
    secret: bytes | None = None
    engines: tuple[LocalEngine, ...] = ()
    heartbeat_s: float = 0.5
    heartbeat_s_max: float = 2.0
    delta_blocks: int = 16
    delta_s_min: float = 0.1
    cadence: Cadence = LOCAL_CADENCE
    gpus: tuple[int, ...] = ()
    supervisor: SupervisorOptions = SupervisorOptions()
    drain_s: float = 30.0

    def __repr__(self) -> str:
        """Without the secret: it must not get into a log."""
        return f"<AgentOptions of {self.name}, scheduler at {self.scheduler}>"
