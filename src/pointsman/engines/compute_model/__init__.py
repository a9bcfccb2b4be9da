"""A continuous-batching inference engine as pure arithmetic: no clock, no I/O, no randomness.

Purpose: one model of an engine's compute for two drivers, the simulated engine over HTTP
(engines/simulated) and a discrete-event simulation on virtual time. The driver asks for the next
step (`plan`), lets its duration pass on a clock of its own, and completes it.

Reading order: `batch` (the engine: admission, steps, preemption), `steps` (what a step takes and
brings), `blocks` (the paged KV cache with its prefix cache), `profiles` (what a GPU and a model
cost in seconds), `jobs` (the values).

Ownership: `ComputeModel` owns every block and every sequence; a driver holds `EngineSequence`s only
to read them. Must not import anything of pointsman outside this package.
"""

from pointsman.engines.compute_model.batch import ComputeModel
from pointsman.engines.compute_model.blocks import BlockPool
from pointsman.engines.compute_model.jobs import (
    CacheCleared,
    CacheEvent,
    EngineSequence,
    Job,
    Removed,
    Stored,
    chain_hashes,
    root_hash,
)
from pointsman.engines.compute_model.profiles import PROFILE_DEFAULT, PROFILES, Profile
from pointsman.engines.compute_model.steps import Step, StepOutcome, Stretch

__all__ = [
    "PROFILES",
    "PROFILE_DEFAULT",
    "BlockPool",
    "CacheCleared",
    "CacheEvent",
    "ComputeModel",
    "EngineSequence",
    "Job",
    "Profile",
    "Removed",
    "Step",
    "StepOutcome",
    "Stored",
    "Stretch",
    "chain_hashes",
    "root_hash",
]
