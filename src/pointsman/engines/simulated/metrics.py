"""What vLLM exports at /metrics, from this engine's own exact counts (names of vLLM 0.32).

Only what is really measured is exported. Times are real seconds, as the engine's `speed` makes
them. Rendered by hand: a histogram costs one bisection per observation, in the path of each token.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pointsman.engines.compute_model import ComputeModel, EngineSequence, StepOutcome

_TTFT: tuple[float, ...] = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_TOKEN: tuple[float, ...] = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0),
)
_REQUEST: tuple[float, ...] = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0),
    *(240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_ITERATION = tuple(float(2**power) for power in (0, *range(3, 15)))
_PREEMPTIONS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)

_HISTOGRAMS: dict[str, tuple[str, tuple[float, ...]]] = {
    "time_to_first_token_seconds": ("Time to first token in seconds.", _TTFT),
    "inter_token_latency_seconds": ("Inter-token latency in seconds.", _TOKEN),
    "request_time_per_output_token_seconds": ("Time per output token of a request.", _TOKEN),
    "e2e_request_latency_seconds": ("End-to-end request latency in seconds.", _REQUEST),
    "request_queue_time_seconds": ("Time spent in WAITING phase.", _REQUEST),
    "request_inference_time_seconds": ("Time spent in RUNNING phase.", _REQUEST),
    "request_prefill_time_seconds": ("Time spent in PREFILL phase.", _REQUEST),
    "request_decode_time_seconds": ("Time spent in DECODE phase.", _REQUEST),
    "iteration_tokens_total": ("Tokens per engine step.", _ITERATION),
    "request_num_preemptions": ("Preemptions per request.", _PREEMPTIONS),
}
# vLLM builds these from the context length: 1, 2, 5, 10, 20, 50, ... up to max_model_len.
_TOKEN_HISTOGRAMS = {
    "request_prompt_tokens": "Number of prefill tokens processed.",
    "request_generation_tokens": "Number of generation tokens processed.",
    "request_prefill_kv_computed_tokens": "New KV tokens computed during prefill.",
}


class Histogram:
    """Cumulative buckets in Prometheus's sense, kept per bucket until rendered."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value; a bound belongs to its bucket (le)."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class RequestTimes:
    """When a request came, was admitted, had its first and its last token (loop time)."""

    __slots__ = ("admitted_s", "arrived_s", "first_s", "last_s")

    def __init__(self, arrived_s: float) -> None:
        self.arrived_s = arrived_s
        self.admitted_s: float | None = None
        self.first_s: float | None = None
        self.last_s = arrived_s

    def admitted(self, at_s: float) -> None:
        """The first admission counts: one after a preemption is no queueing."""
        if self.admitted_s is None:
            self.admitted_s = max(at_s, self.arrived_s)


class EngineStats:
    """Counters and histograms since the engine's (re)start."""

    def __init__(self, context_tokens: int) -> None:
        self._sizes = tuple(_one_two_five(context_tokens))
        self.reset()

    def reset(self) -> None:
        """Everything from 0, as in a new process."""
        self.histograms = {name: Histogram(b) for name, (_help, b) in _HISTOGRAMS.items()}
        self.histograms |= {name: Histogram(self._sizes) for name in _TOKEN_HISTOGRAMS}
        self._ttft = self.histograms["time_to_first_token_seconds"]
        self._itl = self.histograms["inter_token_latency_seconds"]
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.generation_tokens = 0
        self.successes = {"stop": 0, "length": 0}
        self.rejections = 0

    def step(self, outcome: StepOutcome) -> None:
        """Count a step."""
        step = outcome.step
        self.generation_tokens += len(outcome.advanced)
        self.histograms["iteration_tokens_total"].observe(step.prefill_tokens + step.decode_tokens)

    def token(self, times: RequestTimes, sequence: EngineSequence, now_s: float) -> None:
        """Count one token of a request, and with the first one its prompt."""
        if times.first_s is None:
            times.first_s = now_s
            self._ttft.observe(now_s - times.arrived_s)
            self.prompt_tokens += sequence.job.prompt_tokens
            self.cached_tokens += sequence.cached or 0
        else:
            self._itl.observe(now_s - times.last_s)
        times.last_s = now_s

    def success(self, finish_reason: str) -> None:
        """Count one answered choice."""
        self.successes[finish_reason] = self.successes.get(finish_reason, 0) + 1

    def finished(self, times: RequestTimes, sequence: EngineSequence, now_s: float) -> None:
        """Count a request whose last token is out."""
        job, cached = sequence.job, sequence.cached or 0
        first_s = now_s if times.first_s is None else times.first_s
        admitted_s = first_s if times.admitted_s is None else times.admitted_s
        decode_s = now_s - first_s
        values = {
            "e2e_request_latency_seconds": now_s - times.arrived_s,
            "request_queue_time_seconds": admitted_s - times.arrived_s,
            "request_inference_time_seconds": now_s - admitted_s,
            "request_prefill_time_seconds": first_s - admitted_s,
            "request_decode_time_seconds": decode_s,
            "request_time_per_output_token_seconds": decode_s / max(sequence.generated - 1, 1),
            "request_num_preemptions": sequence.preemptions,
            "request_prompt_tokens": job.prompt_tokens,
            "request_generation_tokens": sequence.generated,
            "request_prefill_kv_computed_tokens": job.prompt_tokens - cached,
        }
        for name, value in values.items():
            self.histograms[name].observe(value)


class RankMetrics(NamedTuple):
    """What one data-parallel rank has counted, and what it holds."""

    stats: EngineStats
    model: ComputeModel


def render(ranks: Sequence[RankMetrics], *, model_name: str, started_s: float, legacy: bool) -> str:
    """The Prometheus text. `legacy`: the names of vLLM before 0.10 beside the present ones."""
    page, name = _Page(), _escape(model_name)
    for number, (stats, model) in enumerate(ranks):
        labels = f'engine="{number}",model_name="{name}"'
        _gauges(page, model, labels)
        _counters(page, stats, model, labels)
        for series, histogram in stats.histograms.items():
            text = _HISTOGRAMS[series][0] if series in _HISTOGRAMS else _TOKEN_HISTOGRAMS[series]
            page.histogram(f"vllm:{series}", text, histogram, labels)
        _cache_config(page, model, number)
        if legacy:
            _legacy(page, stats, model, labels)
    rejected = {
        f'model_name="{name}",reason="max_num_queued_reqs"': sum(r.stats.rejections for r in ranks)
    }
    page.family("vllm:admission_rejections_total", "counter", "Rejected admissions.", rejected)
    start = {"": started_s}
    page.family("process_start_time_seconds", "gauge", "Start time since unix epoch.", start)
    return page.text()


class _Page:
    """Families of samples, each with all that belongs to it in one place."""

    def __init__(self) -> None:
        self._families: dict[str, list[str]] = {}

    def family(
        self, name: str, kind: str, text: str, values: dict[str, int] | dict[str, float]
    ) -> None:
        lines = self._lines(name, kind, text)
        for labels, value in values.items():
            lines.append(
                f"{name}{{{labels}}} {float(value)}" if labels else f"{name} {float(value)}"
            )

    def histogram(self, name: str, text: str, histogram: Histogram, labels: str) -> None:
        lines = self._lines(name, "histogram", text)
        running = 0
        for bound, count in zip((*histogram.bounds, "+Inf"), histogram.counts, strict=True):
            running += count
            lines.append(f'{name}_bucket{{{labels},le="{bound}"}} {float(running)}')
        lines.append(f"{name}_count{{{labels}}} {float(running)}")
        lines.append(f"{name}_sum{{{labels}}} {histogram.total}")

    def text(self) -> str:
        return "\n".join(line for lines in self._families.values() for line in lines) + "\n"

    def _lines(self, name: str, kind: str, text: str) -> list[str]:
        head = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        return self._families.setdefault(name, head)


def _gauges(page: _Page, model: ComputeModel, labels: str) -> None:
    reasons = {
        f'{labels},reason="capacity"': model.waiting,
        f'{labels},reason="deferred"': 0,
    }
    for name, text, values in (
        ("num_requests_running", "Requests in execution batches.", {labels: model.running}),
        ("num_requests_waiting", "Requests waiting.", {labels: model.waiting}),
        ("num_requests_waiting_by_reason", "Waiting requests by reason.", reasons),
        ("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent.", {labels: model.kv_usage}),
    ):
        page.family(f"vllm:{name}", "gauge", text, values)


def _counters(page: _Page, stats: EngineStats, model: ComputeModel, labels: str) -> None:
    by_source = {
        f'{labels},source="local_compute"': stats.prompt_tokens - stats.cached_tokens,
        f'{labels},source="local_cache_hit"': stats.cached_tokens,
        f'{labels},source="external_kv_transfer"': 0,
    }
    # vLLM does not count a disconnected client as an abort here.
    reasons = ("stop", "length", "abort", "error", "repetition")
    successes = {
        f'{labels},finished_reason="{reason}"': stats.successes.get(reason, 0) for reason in reasons
    }
    for name, text, values in (
        ("prefix_cache_queries", "Queried tokens.", {labels: model.prefix_queries_tokens}),
        ("prefix_cache_hits", "Cached tokens.", {labels: model.prefix_hits_tokens}),
        ("num_preemptions", "Preemptions.", {labels: model.preemptions}),
        ("prompt_tokens", "Prefill tokens processed.", {labels: stats.prompt_tokens}),
        ("prompt_tokens_by_source", "Prompt tokens by source.", by_source),
        ("prompt_tokens_cached", "Cached prompt tokens.", {labels: stats.cached_tokens}),
        ("generation_tokens", "Generation tokens processed.", {labels: stats.generation_tokens}),
        ("request_success", "Successfully processed requests.", successes),
    ):
        page.family(f"vllm:{name}_total", "counter", text, values)


def _cache_config(page: _Page, model: ComputeModel, number: int) -> None:
    profile = model.profile
    labels = {
        "block_size": profile.block_size,
        "cache_dtype": "auto",
        "enable_prefix_caching": True,
        "engine": number,
        "kv_cache_size_tokens": profile.kv_tokens,
        "num_gpu_blocks": profile.kv_blocks,
        # Not one of vLLM's: the chain is the simulated engine's own.
        "prefix_caching_hash_algo": "xxh3_64",
    }
    joined = ",".join(f'{key}="{value}"' for key, value in labels.items())
    text = "Information of the LLMEngine CacheConfig"
    page.family("vllm:cache_config_info", "gauge", text, {joined: 1})


def _legacy(page: _Page, stats: EngineStats, model: ComputeModel, labels: str) -> None:
    queries, hits = model.prefix_queries_tokens, model.prefix_hits_tokens
    page.family("vllm:gpu_cache_usage_perc", "gauge", "KV usage.", {labels: model.kv_usage})
    for name, value in (("queries", queries), ("hits", hits)):
        full = f"vllm:gpu_prefix_cache_{name}_total"
        page.family(full, "counter", f"GPU prefix cache {name}, in tokens.", {labels: value})
    rate = hits / queries if queries else 0.0
    full = "vllm:gpu_prefix_cache_hit_rate"
    page.family(full, "gauge", "GPU prefix cache hit rate.", {labels: rate})
    histogram = stats.histograms["inter_token_latency_seconds"]
    full = "vllm:time_per_output_token_seconds"
    page.histogram(full, "Time per output token.", histogram, labels)


def _one_two_five(limit: int) -> Iterable[float]:
    scale = 1
    while True:
        for mantissa in (1, 2, 5):
            if mantissa * scale > limit:
                return
            yield float(mantissa * scale)
        scale *= 10


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
