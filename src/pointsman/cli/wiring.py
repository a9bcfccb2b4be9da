"""From a configuration to what each part goes by."""

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from pointsman.cli.config import Config, Engine, Key
from pointsman.cli.config_checks import HASH_PREFIX
from pointsman.cli.config_file import engine_name
from pointsman.cli.control_address import control_address, read_secret
from pointsman.collectors.cadence import Cadence
from pointsman.control.agents import ListenerOptions
from pointsman.core.admission.key_rules import KeyLimits, KeyRules
from pointsman.core.admission_rules import AdmissionRules, QueueOrder
from pointsman.core.events import NodeSpec
from pointsman.core.ids import ModelName, NodeName
from pointsman.core.options import SchedulerOptions
from pointsman.core.rules import (
    CostWeights,
    GuardRules,
    HealthRules,
    HotPrefixRules,
    Preemption,
    RetryRules,
    Timeouts,
    WarmUpRules,
)
from pointsman.gateway import ApiKey, key_digest
from pointsman.gateway.options import GatewayOptions
from pointsman.wire.priority import named_priority

Fields = TypeVar("Fields", bound=msgspec.Struct)


def scheduler_options(config: Config) -> SchedulerOptions:
    return SchedulerOptions(
        policy=config.policy,
        queue_length_max=config.limits.queue_length_max,
        hold_s=config.timeouts.queue_s,
        reservation_s=config.timeouts.reservation_s,
        health=_taken_from(config.health, HealthRules),
        retries=_taken_from(config.retries, RetryRules),
        retry_guard=_taken_from(config.retry_guard, GuardRules),
        warm_up=_taken_from(config.warm_up, WarmUpRules),
        admission=_admission_rules(config),
        hot_prefixes=_taken_from(config.hot_prefixes, HotPrefixRules),
        marginal_cost=_taken_from(config.marginal_cost, CostWeights),
        preemption=Preemption(config.retries.preemption),
        index_bytes_max=config.limits.index_bytes_max,
    )


def _taken_from(section: msgspec.Struct, kind: type[Fields]) -> Fields:
    """The rules that have the names and the meaning of a section's fields, or of some of them."""
    return kind(**{field: getattr(section, field) for field in kind.__struct_fields__})


def _admission_rules(config: Config) -> AdmissionRules:
    fields = msgspec.structs.asdict(config.admission)
    return AdmissionRules(**{**fields, "order": QueueOrder(config.admission.order)})


def cadence(config: Config) -> Cadence:
    """How often engines are looked at."""
    health = config.health
    return Cadence(
        probe_s=health.probe_s,
        probe_retry_s=health.probe_retry_s,
        probe_timeout_s=health.probe_timeout_s,
        requests=health.probe_requests,
        recovery_probes=health.probe_successes_min,
        scrape_s=health.scrape_s,
        scrape_idle_s=health.scrape_idle_s,
        describe_s=health.describe_s,
    )


def agent_listener_options(config: Config) -> ListenerOptions | None:
    """Where agents connect; None if nowhere. Raises UnusableControl."""
    if not config.agents.listen:
        return None
    return ListenerOptions(
        address=control_address(config.agents.listen),
        secret=read_secret(config.agents.secret_file),
        forget_s=config.agents.forget_s,
    )


def gateway_options(config: Config) -> GatewayOptions:
    listen, timeouts, limits = config.listen, config.timeouts, config.limits
    return GatewayOptions(
        connections_max=limits.connections_max,
        body_bytes_max=limits.body_bytes_max,
        bodies_bytes_max=limits.bodies_bytes_max,
        head_bytes_max=limits.head_bytes_max,
        headers_max=limits.headers_max,
        write_buffer_bytes=limits.write_buffer_bytes,
        head_s=timeouts.head_s,
        body_gap_s=timeouts.body_gap_s,
        body_s=timeouts.body_s,
        keep_alive_s=timeouts.keep_alive_s,
        idle_s=timeouts.engine_idle_s,
        idle_max=limits.engine_connections_idle_max,
        retries=_taken_from(config.retries, RetryRules),
        timeouts=_taken_from(timeouts, Timeouts),
        cors_origins=listen.cors_origins,
        keys=api_keys(config),
        trusted_proxies=listen.trusted_proxies,
        forward_authorization=listen.forward_authorization,
        reply_headers=listen.reply_headers,
        sse_comment_s=listen.keep_alive_comments_s or None,
        drain_s=timeouts.drain_s,
        warm_up_prefixes=config.warm_up.prefixes,
        warm_up_bytes_max=config.warm_up.bytes_max,
    )


def api_keys(config: Config) -> tuple[ApiKey, ...]:
    """The keys by their digests: those with rules, and those that are only let in."""
    plain = (ApiKey(key_digest(key.encode())) for key in config.listen.api_keys)
    return (*map(_api_key, config.keys), *plain)


def _api_key(key: Key) -> ApiKey:
    limits = KeyLimits(
        requests_per_minute=key.requests_per_minute,
        tokens_per_minute=key.tokens_per_minute,
        concurrency_max=key.concurrency_max,
    )
    rules = KeyRules(
        name=key.name,
        models=key.models,
        priority_max=named_priority(key.priority_max),
        names_tenants=key.names_tenants,
        limits=limits,
    )
    return ApiKey(bytes.fromhex(key.hash.removeprefix(HASH_PREFIX)), rules)


def engine_keys(engines: Iterable[Engine]) -> dict[str, str]:
    """What engines ask for, by their addresses."""
    return {engine.url: engine.api_key for engine in engines}


def node_spec(engine: Engine, index: int) -> NodeSpec:
    return NodeSpec(
        name=NodeName(engine_name(engine, index)),
        url=engine.url,
        models=tuple(map(ModelName, engine.models)),
        pool=engine.pool,
        zone=engine.zone,
        labels=tuple(sorted(engine.labels.items())),
        concurrency_max=engine.concurrency_max,
    )
