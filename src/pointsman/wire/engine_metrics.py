"""An engine's /metrics page (Prometheus text) -> the few signals that scheduling uses.

A page of 50 kB has 640 lines, of which a dozen matter; one compiled pattern with a literal
head finds them without looking at the others. Names have changed over versions, so each
signal has aliases. What a page does not say is None, never 0.

Several samples of one name are the engines or data-parallel ranks behind one port: counts
are added, the KV usage (a fraction) is averaged. vLLM names the rank in the label `engine`, so
the page can be read as one rank's.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType

import msgspec

PAGE_BYTES_MAX = 4 * 1024 * 1024
"""vLLM's page takes 50 kB, and about as much more per rank; beyond this it is cut."""


VALUE_MAX = 1 << 53
"""Of a sample: a double counts no further one by one, and nothing that is meant gets there."""


class EngineKind(StrEnum):
    """What answers behind a port, as far as its metrics tell."""

    VLLM = "vllm"
    SGLANG = "sglang"
    LLAMACPP = "llamacpp"
    UNKNOWN = "unknown"


class EngineSignals(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One page. Counters (`*_total`, `prefix_*`) count since the engine's start, in tokens
    unless the name says otherwise. None: the page does not say.

    `kv_usage` is the share (0..1) of blocks that requests hold; cached blocks that nobody
    holds are not in it. `prompt_tokens_total` includes tokens served from cache.
    `process_start_time_s` is Unix time; when it changes the engine has restarted.
    """

    kind: EngineKind
    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    kv_blocks_total: int | None = None
    block_size: int | None = None
    prefix_queries: int | None = None
    prefix_hits: int | None = None
    prompt_tokens_total: int | None = None
    generation_tokens_total: int | None = None
    preemptions_total: int | None = None
    prefix_caching: bool | None = None
    process_start_time_s: float | None = None
    malformed: int = 0


def read_metrics(page: bytes, rank: int | None = None) -> EngineSignals:
    """The signals of a page, or of one rank there. Never raises: lines that cannot be read are
    counted."""
    page = b"\n" + page[:PAGE_BYTES_MAX]
    kind = _kind_of(page)
    if kind is EngineKind.UNKNOWN:
        return EngineSignals(kind=kind, process_start_time_s=_start_time_s(page))
    samples = _Samples(_LINES[kind].findall(page), _SIGNALS[kind], rank)
    return _READERS[kind](samples, _start_time_s(page))


def ranks_on(page: bytes) -> tuple[int, ...]:
    """The data-parallel ranks that a page of vLLM's tells of, in order."""
    return tuple(sorted({int(number) for number in _RANK.findall(page[:PAGE_BYTES_MAX])}))


_RANK = re.compile(rb'\nvllm:num_requests_running\{(?:[^\n]*,)?engine="([0-9]{1,4})"')


def _kind_of(page: bytes) -> EngineKind:
    found = (kind for kind, mark in _KIND_MARKS.items() if mark in page)
    return next(found, EngineKind.UNKNOWN)


def _start_time_s(page: bytes) -> float | None:
    found = _START_TIME.search(page)
    return _number(found.group(1)) if found else None


_START_TIME = re.compile(rb"\nprocess_start_time_seconds ([^\s]+)")

# Signal -> its names, the engine's current one first. A page with both an old and a new name
# for one signal is read by the first that is there.
_SIGNALS: Mapping[EngineKind, Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        EngineKind.VLLM: {
            "running": ("num_requests_running",),
            "waiting": ("num_requests_waiting",),
            "kv_usage": ("kv_cache_usage_perc", "gpu_cache_usage_perc"),
            "queries": (
                "prefix_cache_queries_total",
                "prefix_cache_queries",
                "gpu_prefix_cache_queries_total",
                "gpu_prefix_cache_queries",
            ),
            "hits": (
                "prefix_cache_hits_total",
                "prefix_cache_hits",
                "gpu_prefix_cache_hits_total",
                "gpu_prefix_cache_hits",
            ),
            "prompt": ("prompt_tokens_total", "prompt_tokens"),
            "generation": ("generation_tokens_total", "generation_tokens"),
            "preemptions": ("num_preemptions_total", "num_preemptions"),
            "config": ("cache_config_info",),
        },
        EngineKind.SGLANG: {
            "running": ("num_running_reqs",),
            "waiting": ("num_queue_reqs",),
            "kv_usage": ("token_usage",),
            "hits": ("cached_tokens_total",),
            "prompt": ("prompt_tokens_total",),
            "generation": ("generation_tokens_total",),
            "preemptions": ("num_retracted_requests_total", "num_retractions_total"),
            "kv_tokens": ("max_total_num_tokens",),
            "config": ("cache_config_info",),
        },
        EngineKind.LLAMACPP: {
            "running": ("requests_processing",),
            "waiting": ("requests_deferred",),
            "kv_usage": ("kv_cache_usage_ratio",),
            "hits": ("prompt_tokens_cached_total",),
            "prompt": ("prompt_tokens_total",),
            "generation": ("tokens_predicted_total",),
        },
    }
)


_KIND_MARKS = MappingProxyType({kind: f"\n{kind}:".encode() for kind in _SIGNALS})


def _line_pattern(kind: EngineKind) -> re.Pattern[bytes]:
    names = [name for aliases in _SIGNALS[kind].values() for name in aliases]
    # The literal head lets the matcher skip from one engine line to the next.
    return re.compile(rf"\n{kind}:({'|'.join(names)})(?=[{{ \t])([^\n]*)".encode())


_LINES = MappingProxyType({kind: _line_pattern(kind) for kind in _SIGNALS})

# Labels, then value, then perhaps a timestamp. A label's value may contain braces.
_SAMPLE = re.compile(
    rb'(?:\{((?:[^"}\n]|"(?:[^"\\\n]|\\.)*")*)\})?[ \t]+(\S+)(?:[ \t]+-?\d+)?[ \t\r]*$'
)


class _Samples:
    """The wanted samples of one page, by signal."""

    def __init__(
        self,
        lines: Iterable[tuple[bytes, bytes]],
        signals: Mapping[str, tuple[str, ...]],
        rank: int | None,
    ) -> None:
        self.malformed = 0
        self._signals = signals
        self._by_name: dict[str, list[tuple[bytes, float]]] = {}
        for name, rest in lines:
            found = _SAMPLE.match(rest)
            value = _number(found.group(2)) if found else None
            if found is None or value is None:
                self.malformed += 1
            elif rank is None or _label(found.group(1) or b"", "engine") in (None, str(rank)):
                self._by_name.setdefault(name.decode(), []).append((found.group(1) or b"", value))

    def of(self, signal: str) -> list[tuple[bytes, float]]:
        """Labels and value of each sample, under the first alias that has any."""
        for name in self._signals.get(signal, ()):
            if samples := self._by_name.get(name):
                return samples
        return []

    def total(self, signal: str) -> int | None:
        samples = self.of(signal)
        return int(sum(value for _, value in samples)) if samples else None

    def share(self, signal: str) -> float | None:
        samples = self.of(signal)
        if not samples:
            return None
        return min(1.0, sum(value for _, value in samples) / len(samples))

    def labels(self, signal: str) -> list[bytes]:
        return [labels for labels, _ in self.of(signal)]


def _number(text: bytes) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0.0 <= value <= VALUE_MAX else None


def _label(labels: bytes, key: str) -> str | None:
    """One label's value as it is written. In a value a quote is escaped, so `,key="` begins
    only a label."""
    labels = b"," + labels
    mark = f',{key}="'.encode()
    start = labels.find(mark)
    found = _LABEL_VALUE.match(labels, start + len(mark)) if start >= 0 else None
    return None if found is None else found.group(1).decode(errors="replace")


_LABEL_VALUE = re.compile(rb'((?:[^"\\]|\\.)*)"')


def _read_vllm(samples: _Samples, start_time_s: float | None) -> EngineSignals:
    configs = samples.labels("config")
    return EngineSignals(
        kind=EngineKind.VLLM,
        running=samples.total("running"),
        waiting=samples.total("waiting"),
        kv_usage=samples.share("kv_usage"),
        kv_blocks_total=_sum_of(configs, "num_gpu_blocks"),
        block_size=_first_int(configs, "block_size"),
        prefix_queries=samples.total("queries"),
        prefix_hits=samples.total("hits"),
        prompt_tokens_total=samples.total("prompt"),
        generation_tokens_total=samples.total("generation"),
        preemptions_total=samples.total("preemptions"),
        prefix_caching=_BOOLEANS.get(_first(configs, "enable_prefix_caching") or ""),
        process_start_time_s=start_time_s,
        malformed=samples.malformed,
    )


def _read_sglang(samples: _Samples, start_time_s: float | None) -> EngineSignals:
    configs = samples.labels("config")
    page_size = _first_int(configs, "page_size")
    blocks, kv_tokens = _sum_of(configs, "num_pages"), samples.total("kv_tokens")
    if blocks is None and page_size and kv_tokens is not None:
        blocks = kv_tokens // page_size
    prompt, hits = samples.total("prompt"), samples.total("hits")
    return EngineSignals(
        kind=EngineKind.SGLANG,
        running=samples.total("running"),
        waiting=samples.total("waiting"),
        kv_usage=samples.share("kv_usage"),
        kv_blocks_total=blocks,
        block_size=page_size,
        prefix_queries=None if hits is None else prompt,
        prefix_hits=hits,
        prompt_tokens_total=prompt,
        generation_tokens_total=samples.total("generation"),
        preemptions_total=samples.total("preemptions"),
        process_start_time_s=start_time_s,
        malformed=samples.malformed,
    )


def _read_llamacpp(samples: _Samples, start_time_s: float | None) -> EngineSignals:
    # llama.cpp counts prompt tokens without the cached ones, which older versions don't count.
    computed, hits = samples.total("prompt"), samples.total("hits")
    prompt = None if computed is None else computed + (hits or 0)
    return EngineSignals(
        kind=EngineKind.LLAMACPP,
        running=samples.total("running"),
        waiting=samples.total("waiting"),
        kv_usage=samples.share("kv_usage"),
        prefix_queries=None if hits is None else prompt,
        prefix_hits=hits,
        prompt_tokens_total=prompt,
        generation_tokens_total=samples.total("generation"),
        process_start_time_s=start_time_s,
        malformed=samples.malformed,
    )


_READERS: Mapping[EngineKind, Callable[[_Samples, float | None], EngineSignals]] = MappingProxyType(
    {
        EngineKind.VLLM: _read_vllm,
        EngineKind.SGLANG: _read_sglang,
        EngineKind.LLAMACPP: _read_llamacpp,
    }
)

_BOOLEANS: Mapping[str, bool] = MappingProxyType({"True": True, "False": False})


def _first(infos: Iterable[bytes], key: str) -> str | None:
    values = (_label(info, key) for info in infos)
    return next((value for value in values if value not in (None, "None")), None)


def _first_int(infos: Iterable[bytes], key: str) -> int | None:
    return next(iter(_ints(infos, key)), None)


def _sum_of(infos: Iterable[bytes], key: str) -> int | None:
    values = _ints(infos, key)
    return sum(values) if values else None


def _ints(infos: Iterable[bytes], key: str) -> list[int]:
    texts = (_label(info, key) or "" for info in infos)
    return [int(text) for text in texts if _INTEGER.fullmatch(text)]


_INTEGER = re.compile(r"[0-9]{1,15}")
