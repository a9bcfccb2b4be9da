"""A cluster on virtual time: the real scheduler before simulated engines, without a clock.

Purpose: replay a trace in a fraction of its time, with any policy, fleet and fault, by the very
code that serves: `core.Scheduler` and `core.Exchange` decide, `engines.compute_model` computes.

Reading order: `scenario` (what is simulated) · `world` (put together and run) · `clients` (who
sends, and the records) · `answer` (what they get) · `gateway` (drives scheduler and exchanges) ·
`watch` (what a gateway is told of a node, how late) · `node` (a machine: serves, crashes, tells) ·
`engine` (the compute model on virtual time) · `prior` (what was learned before) · `prompts` (block
ids to hash chains) · `faults` · `sampler` (nodes over time) · `checkers` (what must hold in every
run) · `pooled` (the oracle) · `clock`.

Pure: no clock but the virtual one, no file, socket or global random; same scenario, requests,
policy and seed, same run. Must not import other shells.
"""

from pointsman.sim.pooled import pooled
from pointsman.sim.scenario import Scenario
from pointsman.sim.world import simulate

__all__ = ["Scenario", "pooled", "simulate"]
