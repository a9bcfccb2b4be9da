"""One engine, judged by itself."""

from collections.abc import Iterator

from pointsman.collectors.describer import NAMES_ITS_MODELS
from pointsman.collectors.identity import START_SLACK_S
from pointsman.control.doctor.connection import MARGIN_S
from pointsman.control.doctor.finding import Check, Finding, Severity
from pointsman.control.doctor.seen import EngineSeen, LinkSeen, ProbeSeen, StreamSeen, TokensSeen
from pointsman.core.events import NodeFacts
from pointsman.wire.engine_metrics import EngineKind, EngineSignals

LATENCY_S_MAX = 0.1
"""Of an idle engine's /health, on an open connection: beyond, every request pays for the way."""

CLOCK_S_MAX = 2.0
"""A Date header has whole seconds."""

BUFFERED_SHARE_MAX = 0.2
BUFFERED_S_MIN = 0.05
EVENTS_MIN = 8
"""A stream shows whether it was held back only if there was something to hold back."""


def engine_findings(engine: EngineSeen) -> Iterator[Finding]:
    """All that there is to say of one engine, but for its KV events."""
    name = engine.target.name
    if engine.described is None:
        yield Finding(Severity.PROBLEM, Check.REACHABLE, name, engine.trouble, _way_in(engine))
        return
    facts, page = engine.described.facts, engine.described.page
    if engine.trouble:
        text = "raise its limits or look at its log; other checks of it are missing"
        yield Finding(Severity.WARNING, Check.REACHABLE, name, engine.trouble, text)
    yield from _identity(engine)
    yield from _models(name, engine.target.models, facts)
    yield from _metrics(name, facts, page)
    yield from _kv_cache(name, facts, page)
    if engine.link is not None:
        yield from _link(name, engine.link)
    if engine.probe is not None:
        yield from _hits(name, facts, page, engine.probe)
        yield from stream_findings(name, engine.probe, engine.streams)
    for tokens in engine.tokens:
        yield from _tokens(name, tokens)


def _way_in(engine: EngineSeen) -> str:
    if "API key" in engine.trouble:
        return "give the key that it was started with: engines[].api_key, or POINTSMAN_ENGINE_KEY"
    return f"start it, or correct its address {engine.target.url}"


def _identity(engine: EngineSeen) -> Iterator[Finding]:
    starts = engine.started_s
    if starts and max(starts) - min(starts) > START_SLACK_S:
        yield Finding(
            Severity.PROBLEM,
            Check.IDENTITY,
            engine.target.name,
            f"several engines answer at {engine.target.url}: their start times differ",
            "name each engine's own address; a balancer between hides whose cache has what",
        )


def _models(name: str, configured: tuple[str, ...], facts: NodeFacts) -> Iterator[Finding]:
    served = [card.name for card in facts.models]
    missing = [model for model in configured if model not in served]
    if missing and facts.kind in NAMES_ITS_MODELS:
        yield Finding(
            Severity.PROBLEM,
            Check.MODELS,
            name,
            f"it is configured for {', '.join(missing)}, and serves {', '.join(served)}",
            "correct the configuration, or its --served-model-name",
        )


def _metrics(name: str, facts: NodeFacts, page: EngineSignals) -> Iterator[Finding]:
    if page.kind is EngineKind.UNKNOWN:
        flag = {
            EngineKind.LLAMACPP.value: "start it with --metrics",
            EngineKind.SGLANG.value: "start it with --enable-metrics",
        }
        text = "GET /metrics has none of vLLM's, SGLang's or llama.cpp's metrics: its load and KV"
        remedy = flag.get(facts.kind, "serve its metrics on the same port")
        yield Finding(Severity.WARNING, Check.METRICS, name, f"{text} use are not seen", remedy)
        return
    needed: dict[str, float | None] = {"running": page.running, "waiting": page.waiting}
    if page.kind is not EngineKind.LLAMACPP:
        needed |= {"KV usage": page.kv_usage, "prefix hits": page.prefix_hits}
    missing = [signal for signal, value in needed.items() if value is None]
    if missing:
        yield Finding(
            Severity.WARNING,
            Check.METRICS,
            name,
            f"its metrics do not tell {', '.join(missing)} under any name known here",
            f"is its version ({facts.version or 'unknown'}) newer than this Pointsman's?",
        )


def _kv_cache(name: str, facts: NodeFacts, page: EngineSignals) -> Iterator[Finding]:
    if page.prefix_caching is False:
        yield Finding(
            Severity.PROBLEM,
            Check.KV_CACHE,
            name,
            "prefix caching is off: no prompt is ever found there",
            "start it with --enable-prefix-caching",
        )
    if page.kind not in NAMES_ITS_MODELS:
        return  # llama.cpp has no blocks
    values = {"block size": facts.block_tokens, "KV capacity": facts.kv_blocks}
    missing = [what for what, value in values.items() if value is None]
    if missing:
        yield Finding(
            Severity.WARNING,
            Check.KV_CACHE,
            name,
            f"it does not tell its {' and '.join(missing)} (cache_config_info in its metrics)",
            "defaults are assumed, so admission and hits are guessed; update the engine",
        )


def _link(name: str, link: LinkSeen) -> Iterator[Finding]:
    if link.health_status >= 500:
        yield Finding(
            Severity.PROBLEM,
            Check.REACHABLE,
            name,
            f"GET /health answers {link.health_status}",
            "it is taken out of service until that ends; its log says why",
        )
    if link.latency_s > LATENCY_S_MAX:
        yield Finding(
            Severity.WARNING,
            Check.REACHABLE,
            name,
            f"GET /health takes {1000 * link.latency_s:.0f} ms on an open connection",
            "run the gateway near its engines; an engine under load may also answer late",
        )
    yield from _keep_alive(name, link)
    ahead_s = link.clock_ahead_s
    if ahead_s is not None and abs(ahead_s) > CLOCK_S_MAX:
        which = "ahead of" if ahead_s > 0 else "behind"
        text = f"its clock is {abs(ahead_s):.0f} s {which} this machine's"
        remedy = "run NTP on both, or logs and traces of one request will not fit together"
        yield Finding(Severity.WARNING, Check.CLOCK, name, text, remedy)


def _keep_alive(name: str, link: LinkSeen) -> Iterator[Finding]:
    if not link.reusable:
        yield Finding(
            Severity.WARNING,
            Check.KEEP_ALIVE,
            name,
            "it closes the connection after each answer",
            "each request pays for a new one; switch keep-alive on, also in a proxy between",
        )
    elif link.closed_after_s is not None:
        pool_s = link.watched_s - MARGIN_S
        yield Finding(
            Severity.WARNING,
            Check.KEEP_ALIVE,
            name,
            f"it closes idle connections after {link.closed_after_s:.1f} s, we keep them for "
            f"{pool_s:g} s: requests meet a closing connection",
            "raise it there (vLLM: VLLM_HTTP_TIMEOUT_KEEP_ALIVE), or lower timeouts.engine_idle_s",
        )


def _hits(name: str, facts: NodeFacts, page: EngineSignals, probe: ProbeSeen) -> Iterator[Finding]:
    if probe.trouble and len(probe.usages) < 2:
        text = f"a probe of {probe.model} failed: {probe.trouble}"
        remedy = "look at the engine's log; one that is busy, or serves no completions, may say so"
        severity = Severity.WARNING if probe.refused else Severity.PROBLEM
        yield Finding(severity, Check.PREFIX_HITS, name, text, remedy)
        return
    predicted, cached = probe.predicted(facts.block_tokens), probe.cached
    if cached is None:
        yield Finding(
            Severity.WARNING,
            Check.PREFIX_HITS,
            name,
            "its answers do not tell cached tokens: nobody sees when predictions are wrong",
            _TELLS_CACHED.get(facts.kind, "make it report usage.prompt_tokens_details"),
        )
    elif predicted and not cached and page.prefix_caching is not False:
        yield Finding(
            Severity.PROBLEM,
            Check.PREFIX_HITS,
            name,
            f"a prompt of {probe.usages[-1].prompt_tokens} tokens sent again found none cached, "
            f"{predicted} were predicted",
            "switch prefix caching on; give it memory if its cache is full",
        )
    elif cached and abs(predicted - cached) > (facts.block_tokens or predicted):
        yield Finding(
            Severity.WARNING,
            Check.PREFIX_HITS,
            name,
            f"a prompt sent again found {cached} tokens cached, {predicted} were predicted",
            "its blocks differ from what it tells; compare its --block-size",
        )


_TELLS_CACHED = {
    EngineKind.VLLM.value: "start it with --enable-prompt-tokens-details",
    EngineKind.SGLANG.value: "start it with --enable-cache-report",
}


def stream_findings(
    name: str, probe: ProbeSeen, streams: tuple[StreamSeen, ...]
) -> Iterator[Finding]:
    """Whether something holds a stream's chunks back; all of `streams` must look so."""
    broken = [stream.trouble for stream in streams if stream.trouble]
    if broken:
        text, remedy = f"a short stream failed: {broken[0]}", "look at the engine's log"
        yield Finding(Severity.WARNING, Check.STREAMING, name, text, remedy)
    elif streams and all(is_buffered(stream, probe.seconds_min) for stream in streams):
        last = streams[-1]
        yield Finding(
            Severity.PROBLEM,
            Check.STREAMING,
            name,
            f"{last.events} streamed tokens came at once after {last.last_s:.2f} s: a proxy "
            "between holds chunks back",
            "switch its buffering off (nginx: proxy_buffering off, proxy_http_version 1.1)",
        )


def is_buffered(stream: StreamSeen, one_token_s: float | None) -> bool:
    """One token takes `one_token_s` alone; the rest must have come after that, one by one."""
    if one_token_s is None or stream.events < EVENTS_MIN or stream.trouble:
        return False
    decode_s = stream.last_s - one_token_s
    spread_s = stream.last_s - stream.first_s
    return decode_s > BUFFERED_S_MIN and spread_s < BUFFERED_SHARE_MAX * decode_s


def _tokens(name: str, tokens: TokensSeen) -> Iterator[Finding]:
    what = f"{tokens.endpoint} prompts of {tokens.model}"
    if tokens.theirs is None:
        yield Finding(
            Severity.WARNING if tokens.ours is None else Severity.NOTE,
            Check.TOKENIZER,
            name,
            f"token ids of {what} cannot be compared: {tokens.trouble}",
            "its /tokenize is needed for tokenizer: engine"
            if tokens.ours is None
            else "watch predicted against reported hits instead",
        )
    elif tokens.ours is not None and tokens.ours != tokens.theirs:
        same = next(
            (i for i, (a, b) in enumerate(zip(tokens.ours, tokens.theirs, strict=False)) if a != b),
            min(len(tokens.ours), len(tokens.theirs)),
        )
        remedy = "give the folder that the engine loads; every hit beyond that token is lost"
        if tokens.endpoint == "chat":
            remedy = "give its chat template (models.chat_template), or tokenizer: engine"
        text = f"token ids of {what} differ from the engine's from token {same} on"
        yield Finding(Severity.PROBLEM, Check.TOKENIZER, name, text, remedy)
    elif tokens.trouble:
        text = f"{what} cannot be tokenised here: {tokens.trouble}"
        yield Finding(Severity.WARNING, Check.TOKENIZER, name, text, "see docs/CONFIGURATION.md")
