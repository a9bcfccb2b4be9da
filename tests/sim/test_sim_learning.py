"""What the scheduler learns of engines, against what they are."""

from pointsman.core.calibration import Speeds
from pointsman.core.options import SchedulerOptions
from pointsman.engines.compute_model import PROFILES, Profile
from pointsman.sim.scenario import NodeGroup, Scenario
from pointsman.sim.world import _World
from pointsman.traffic.source import Source, stream

PROFILE = PROFILES["8b-h100"]
BATCH, RESIDENT = 8, 32_000


def test_a_cold_start_in_a_burst_of_long_prompts_does_not_make_decoding_seem_slow() -> None:
    requests = stream(
        Source(workload="long-tail", rate_rps=8, limit=120, parameters={"input_tokens_p50": 4_096}),
        seed=1,
        trace=None,
    )
    fleet = (NodeGroup(count=2, profile=PROFILE, block_tokens=128),)
    world = _World(
        Scenario(name="cold", fleet=fleet),
        requests,
        options=SchedulerOptions(),
        seed=1,
        stopwatch=None,
    )
    learned: list[Speeds] = []

    def look() -> None:
        (gateway,) = world._gateways
        learned.extend(view.speeds for view in gateway.scheduler.nodes(world._clock.now_s))
        world._clock.after(1.0, look)

    world._clock.at(1.0, look)
    world.run(None)
    ratios = [step_s(speeds) / true_step_s(PROFILE) for speeds in learned]
    assert len(ratios) > 40
    assert 0.5 < min(ratios) < max(ratios) < 3.0


def step_s(speeds: Speeds) -> float:
    return speeds.step_s + BATCH * speeds.sequence_s + RESIDENT * speeds.kv_token_s


def true_step_s(profile: Profile) -> float:
    return profile.base_s + BATCH * profile.sequence_s + RESIDENT * profile.kv_token_s
