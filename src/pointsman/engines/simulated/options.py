"""What an engine is started with."""

from enum import StrEnum

import msgspec

from pointsman.engines.compute_model import PROFILE_DEFAULT, PROFILES, Profile


class EventEncoding(StrEnum):
    """How KV events look in msgpack: maps as of vLLM 0.24, arrays before."""

    MAP = "map"
    ARRAY = "array"


class HashKind(StrEnum):
    """How block hashes look in KV events: the low 64 bits as an integer, or 32 bytes."""

    INT = "int"
    BYTES = "bytes"


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of one simulated engine. A port of 0 takes any free one; None is a default.

    kv_events_topic  the topic of its KV events; None: kv@HOST:PORT@MODEL
    speed            engine seconds per real second
    max_num_queued_reqs  requests (waiting + running) beyond which it answers 503; 0: no such limit
    data_parallel_size   engines behind the port, each with a cache and KV events of its own
    idle_close_s     seconds after which an idle connection is closed without notice
    api_key          what routes under /v1 ask for, as a bearer token; empty: nothing
    """

    host: str = "127.0.0.1"
    port: int = 0
    model: str = "sim"
    profile: str = PROFILE_DEFAULT
    kv_blocks: int | None = None
    block_size: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    kv_events_port: int | None = None
    kv_events_topic: str | None = None
    kv_events_encoding: EventEncoding = EventEncoding.MAP
    kv_events_hashes: HashKind = HashKind.INT
    data_parallel_size: int = 1
    speed: float = 1.0
    seed: int = 0
    loras: tuple[str, ...] = ()
    max_num_queued_reqs: int = 0
    legacy_metrics: bool = False
    idle_close_s: float = 5.0
    api_key: str = ""

    def __post_init__(self) -> None:
        """Raise ValueError for an option that cannot work."""
        if self.profile not in PROFILES:
            raise ValueError(f"unknown profile {self.profile!r}; known: {', '.join(PROFILES)}")
        if not self.model.strip():
            raise ValueError("the model has no name")
        if not self.speed > 0:
            raise ValueError(f"speed must be above 0, not {self.speed}")
        if self.kv_events_port and self.port - self.kv_events_port in range(
            1, 2 * self.data_parallel_size
        ):
            raise ValueError("kv_events_port + 1 is the replay port: it must differ from port")
        self.compute_profile()

    def compute_profile(self) -> Profile:
        """The named profile with this engine's overrides."""
        overrides = {
            name: value
            for name in (
                "kv_blocks",
                "block_size",
                "max_num_seqs",
                "max_num_batched_tokens",
                "max_model_len",
            )
            if (value := getattr(self, name)) is not None
        }
        return msgspec.structs.replace(PROFILES[self.profile], **overrides)
