"""A configuration becomes the options of the parts."""

import msgspec
import pytest

from pointsman.cli.config import Config, Engine, Health, Limits, Listen, Retries, Timeouts
from pointsman.cli.wiring import cadence, gateway_options, node_spec, scheduler_options
from pointsman.collectors.cadence import Cadence
from pointsman.core.options import SchedulerOptions
from pointsman.gateway import ApiKey, GatewayOptions, key_digest


def test_every_setting_reaches_its_part() -> None:
    config = Config(
        listen=Listen(
            api_keys=("k",),
            cors_origins=("https://a",),
            reply_headers=True,
            keep_alive_comments_s=5,
        ),
        policy="least_request",
        timeouts=Timeouts(connect_s=1, first_byte_s=2, idle_s=3, total_s=4, drain_s=5),
        limits=Limits(
            connections_max=7, body_bytes_max=2_048, queue_length_max=8, index_bytes_max=1 << 20
        ),
        health=Health(probe_failures_max=9, probe_successes_min=4, probe_s=77, scrape_idle_s=66),
        retries=Retries(attempts_max=1, budget_ratio=0.5),
    )
    gateway = gateway_options(config)
    assert (gateway.keys, gateway.cors_origins) == ((ApiKey(key_digest(b"k")),), ("https://a",))
    assert (gateway.reply_headers, gateway.sse_comment_s, gateway.drain_s) == (True, 5, 5)
    assert (gateway.connections_max, gateway.body_bytes_max) == (7, 2_048)
    stages = gateway.timeouts
    assert (stages.connect_s, stages.first_byte_s, stages.idle_s, stages.total_s) == (1, 2, 3, 4)
    scheduler = scheduler_options(config)
    assert (scheduler.policy, scheduler.queue_length_max) == ("least_request", 8)
    assert scheduler.index_bytes_max == 1 << 20
    assert scheduler.health.probe_failures_max == 9
    assert scheduler.retries == gateway.retries
    assert (gateway.retries.attempts_max, gateway.retries.budget_ratio) == (1, 0.5)
    looked = cadence(config)
    assert (looked.probe_s, looked.scrape_idle_s, looked.recovery_probes) == (77, 66, 4)


def test_defaults_are_those_of_the_parts() -> None:
    """What no file says is what each part would do by itself."""
    plain, config = GatewayOptions(cors_origins=()), Config()
    drain_s = config.timeouts.drain_s  # a supervisor's patience, not the gateway's
    assert gateway_options(config) == msgspec.structs.replace(plain, drain_s=drain_s)
    assert scheduler_options(config) == SchedulerOptions()
    assert cadence(config) == Cadence()


SECTIONS = ["timeouts", "limits", "retries", "health", "admission", "retry_guard"]
SECTIONS += ["hot_prefixes", "marginal_cost"]


@pytest.mark.parametrize("section", SECTIONS)
def test_every_field_changes_what_the_parts_go_by(section: str) -> None:
    """A field that nothing reads would be a knob that turns nothing."""
    plain = getattr(Config(), section)
    of_tokenizers = {"tokenizer_bytes_max"}
    for name, value in msgspec.structs.asdict(plain).items():
        other = msgspec.structs.replace(plain, **{name: _another(name, value)})
        config = msgspec.structs.replace(Config(), **{section: other})
        assert told(config) != told(Config()) or name in of_tokenizers, name


def told(config: Config) -> tuple[GatewayOptions, SchedulerOptions, Cadence]:
    """What is made of a configuration for the parts that change while they run."""
    return gateway_options(config), scheduler_options(config), cadence(config)


def _another(name: str, value: bool | float | str) -> bool | float | str:
    named = {"order": "utility", "probe_requests": "off", "long_context_pool": "long"}
    named["preemption"] = "off"
    if name in named:
        return named[name]
    assert not isinstance(value, str), name
    return not value if isinstance(value, bool) else value + 1


def test_comments_are_off_by_default_and_every_origin_is_refused() -> None:
    gateway = gateway_options(Config())
    assert gateway.sse_comment_s is None
    assert gateway.cors_origins == ()


def test_an_engine_s_address_never_becomes_its_name() -> None:
    spec = node_spec(Engine(url="http://10.0.0.7:8000/", labels={"b": "2", "a": "1"}), 2)
    assert (spec.name, spec.url) == ("engine-3", "http://10.0.0.7:8000")
    assert spec.labels == (("a", "1"), ("b", "2"))
