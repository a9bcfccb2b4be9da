"""The nouns of a plan: servers, the service they share, stages and chains.

Memory may be in any unit, if it is one: the names say GB. Sizes are added and divided exactly: a
float stands for the decimal that it prints as, so that (2 - 1) / 0.1 is 10 and not 9.99.
"""

from fractions import Fraction
from math import floor, inf

import msgspec


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """A machine, or a group of GPUs that acts as one.

    `job_s` is what a job costs here whatever it computes (communication, the paper's tau^c);
    `layer_s` what each layer adds to it (tau^p). Both are means, for one whole job.
    """

    name: str
    memory_gb: float
    job_s: float
    layer_s: float

    def __post_init__(self) -> None:
        _expect(0 <= self.memory_gb < inf, "memory_gb", self.memory_gb)
        _expect(0 <= self.job_s < inf, "job_s", self.job_s)
        _expect(0 <= self.layer_s < inf, "layer_s", self.layer_s)
        _expect(self.job_s + self.layer_s > 0, "job_s + layer_s", 0)

    def stage_s(self, layers: int) -> float:
        """Seconds that a job spends here when `layers` layers are computed for it."""
        return self.job_s + self.layer_s * layers


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """A model: `layers` equal layers of `layer_gb`; each job needs `cache_gb` on each layer."""

    layers: int
    layer_gb: float
    cache_gb: float

    def __post_init__(self) -> None:
        _expect(self.layers > 0, "layers", self.layers)
        _expect(0 < self.layer_gb < inf, "layer_gb", self.layer_gb)
        _expect(0 < self.cache_gb < inf, "cache_gb", self.cache_gb)

    def layers_held(self, memory_gb: float, *, jobs: int) -> int:
        """Layers that fit together with the cache of `jobs` jobs on each (algorithm 1)."""
        each = exact(self.layer_gb) + exact(self.cache_gb) * jobs
        return min(floor(exact(memory_gb) / each), self.layers)

    def cache_slots(self, memory_gb: float, *, layers: int) -> int:
        """Jobs times layers whose cache fits beside `layers` layers (M~_j of equation 3)."""
        free = exact(memory_gb) - exact(self.layer_gb) * layers
        return floor(free / exact(self.cache_gb))


class Stage(msgspec.Struct, frozen=True):
    """Layers `start` to `stop - 1` on a server: held there, or computed there within a chain."""

    server: Server
    start: int
    stop: int

    @property
    def layers(self) -> int:
        return self.stop - self.start

    @property
    def service_s(self) -> float:
        return self.server.stage_s(self.layers)


class ServerChain(msgspec.Struct, frozen=True, kw_only=True):
    """Servers that compute all layers of a job between them, in order.

    `service_s` is the mean time of a job in it (T_k), `job_slots` how many jobs run at once (c_k)
    without slowing each other down. Both may as well be measured; `stages` is empty then.
    """

    service_s: float
    job_slots: int
    stages: tuple[Stage, ...] = ()

    def __post_init__(self) -> None:
        _expect(0 < self.service_s < inf, "service_s", self.service_s)
        _expect(self.job_slots > 0, "job_slots", self.job_slots)


def chain_of(stages: tuple[Stage, ...], *, job_slots: int) -> ServerChain:
    """The chain that computes `stages` one after the other (equation 2)."""
    service_s = sum(stage.service_s for stage in stages)
    return ServerChain(service_s=service_s, job_slots=job_slots, stages=stages)


def layer_time_s(
    *,
    input_tokens: float,
    output_tokens: float,
    layer_gflop_per_token: float,
    layer_gb: float,
    tflops: float,
    bandwidth_gb_per_s: float,
    overhead_s: float = 0.001,
) -> float:
    """`Server.layer_s` from data sheets: prefill is bound by arithmetic, decode by memory.

    tau^p = overhead + input tokens x FLOP / FLOPS + (output tokens - 1) x layer / bandwidth.
    """
    prefill_s = input_tokens * layer_gflop_per_token / (tflops * 1000.0)
    decode_s = (output_tokens - 1) * layer_gb / bandwidth_gb_per_s
    return overhead_s + prefill_s + decode_s


def exact(value: float) -> Fraction:
    """The decimal that `value` prints as."""
    return Fraction(str(value))


def _expect(holds: bool, field: str, value: object) -> None:
    if not holds:
        raise ValueError(f"{field} is out of range: {value}")
