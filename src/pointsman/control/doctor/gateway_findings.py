"""A running gateway: its doors, what it thinks of its engines, and whether its index is true."""

from collections.abc import Iterator, Sequence

from pointsman.control.doctor.engine_findings import stream_findings
from pointsman.control.doctor.finding import Check, Finding, Severity
from pointsman.control.doctor.seen import GatewaySeen, NodeSeen, StateSeen, Target

PREDICTED_MIN = 10_000
"""Tokens predicted as hits before their truth is judged."""

TRUE_SHARE_MIN = 0.8
"""Of predicted tokens that engines reported: below, requests go where their prefix is not."""

GATEWAY, ADMIN = "gateway", "admin"


def gateway_findings(
    seen: GatewaySeen, targets: Sequence[Target], wanted: Sequence[str]
) -> Iterator[Finding]:
    """Of the gateway and its admin plane, whichever was asked for."""
    if seen.url:
        yield from _gateway(seen, wanted)
    if seen.admin_trouble:
        text = f"{seen.admin_url}: {seen.admin_trouble}"
        remedy = "is it running, and is this its admin port (admin.port)?"
        yield Finding(Severity.PROBLEM, Check.GATEWAY, ADMIN, text, remedy)
    if seen.state is not None:
        yield from _state(seen.state, targets)


def _gateway(seen: GatewaySeen, wanted: Sequence[str]) -> Iterator[Finding]:
    if seen.trouble:
        text, remedy = f"{seen.url}: {seen.trouble}", "is it running, and is this its port?"
        yield Finding(Severity.PROBLEM, Check.GATEWAY, GATEWAY, text, remedy)
        return
    if seen.ready_status == 404:
        text = f"{seen.url} answers, and has no /ready"
        remedy = "name the gateway's own address (listen.port), not an engine's"
        yield Finding(Severity.PROBLEM, Check.GATEWAY, GATEWAY, text, remedy)
    elif seen.ready_status != 200:
        text = f"GET /ready answers {seen.ready_status}: no engine can take a request"
        remedy = "its admin plane says why of each engine (--admin-url URL)"
        yield Finding(Severity.PROBLEM, Check.GATEWAY, GATEWAY, text, remedy)
    missing = [model for model in wanted if model not in seen.models]
    if missing and seen.models:
        text = f"it lists {', '.join(seen.models)}, and not {', '.join(missing)}"
        remedy = "its admin plane says why of each engine (--admin-url URL)"
        yield Finding(Severity.PROBLEM, Check.MODELS, GATEWAY, text, remedy)
    if seen.models_status == 401:
        text = "it wants an API key, so nothing was sent through it"
        remedy = "give one in the environment: POINTSMAN_API_KEY"
        yield Finding(Severity.NOTE, Check.GATEWAY, GATEWAY, text, remedy)
    if seen.probe is not None:
        if not seen.probe.usages:
            text = f"a tiny request through it failed: {seen.probe.trouble}"
            remedy = "pointsman explain shows where it would go"
            yield Finding(Severity.PROBLEM, Check.GATEWAY, GATEWAY, text, remedy)
        yield from stream_findings(GATEWAY, seen.probe, seen.streams)


def _state(state: StateSeen, targets: Sequence[Target]) -> Iterator[Finding]:
    if not state.ready:
        text, remedy = "the scheduler has no engine that is ready", "see its engines below"
        yield Finding(Severity.PROBLEM, Check.GATEWAY, ADMIN, text, remedy)
    for problem in state.configuration.problems:
        text = f"its last reload was refused: {problem}"
        remedy = "correct the file; the former configuration is in force"
        yield Finding(Severity.WARNING, Check.GATEWAY, ADMIN, text, remedy)
    failures = {name: count for name, count in state.failures.items() if count}
    if failures:
        text = ", ".join(f"{name} {count}" for name, count in failures.items())
        remedy = "these are bugs: its log has them, please report them"
        yield Finding(Severity.WARNING, Check.GATEWAY, ADMIN, f"failures: {text}", remedy)
    for node in state.nodes:
        yield from _node(node)
    yield from _membership(state, targets)


def _node(node: NodeSeen) -> Iterator[Finding]:
    if node.health != "ready":
        yield _unwell(node)
    elif node.draining:
        text = "it is drained: it takes nothing new"
        remedy = f"POST /pointsman/v1/nodes/{node.name}/undrain ends that"
        yield Finding(Severity.NOTE, Check.GATEWAY, node.name, text, remedy)
    if node.index_trust == "degraded":
        text = "the gateway's index of it is degraded: events were lost that no replay fills"
        remedy = "give its events a replay_endpoint and longer buffer_steps; a restart heals it"
        yield Finding(Severity.WARNING, Check.INDEX, node.name, text, remedy)
    predicted, reported = node.cached_tokens_predicted, node.cached_tokens_reported
    if predicted >= PREDICTED_MIN and reported < TRUE_SHARE_MIN * predicted:
        yield Finding(
            Severity.PROBLEM if 2 * reported < predicted else Severity.WARNING,
            Check.INDEX,
            node.name,
            f"of {predicted} tokens predicted as cached it reported {reported} "
            f"({reported / predicted:.0%})",
            "compare tokenizer, chat template and salts; a KV cache that is too small also "
            "forgets what was predicted",
        )


def _unwell(node: NodeSeen) -> Finding:
    why = node.problem or node.health_detail or node.health_cause or "no reason given"
    text = f"the gateway says {node.health}: {why}"
    match node.health:
        case "warming":
            severity, remedy = Severity.NOTE, "it comes to its full share of the work by itself"
        case "suspect" | "half_open":
            severity = Severity.WARNING
            remedy = "it gets less until it shows that it is well; docs/TROUBLESHOOTING.md has more"
        case _:
            severity, remedy = Severity.PROBLEM, "it gets no requests until then"
    return Finding(severity, Check.GATEWAY, node.name, text, remedy)


def _membership(state: StateSeen, targets: Sequence[Target]) -> Iterator[Finding]:
    """Engines that only one side knows."""
    known = {node.url.rstrip("/"): None for node in state.nodes}
    given = {target.url.rstrip("/"): None for target in targets}
    for target in targets:
        if target.url.rstrip("/") not in known:
            text = f"the gateway does not know {target.url}"
            remedy = "add it to its configuration, and reload"
            yield Finding(Severity.WARNING, Check.GATEWAY, target.name, text, remedy)
    for node in state.nodes:
        if node.url.rstrip("/") not in given:
            text = f"the gateway also uses {node.url}, which was not looked at"
            remedy = "name it, too, to have it examined"
            yield Finding(Severity.NOTE, Check.GATEWAY, node.name, text, remedy)
