"""A file for the planner: a model, servers and a demand, in YAML; read strictly.

Times and cache sizes are given as measured, or follow from data sheets (`layer_time_s`) and the
demand's tokens. What is missing for that, or given twice, is found here.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from pointsman.cli.config import Name
from pointsman.cli.yaml_reader import Problem, Rejected, read, read_text
from pointsman.planner.model import Server, Service, layer_time_s
from pointsman.planner.plan import copies, jobs_reserved_tried

SERVERS_MAX = 256
"""In one plan: it takes seconds with so many."""

JOBS_MAX = 1_000_000
"""At once on all servers: more are a mistake in the units."""

WORK_MAX = 6_000_000
"""The most steps of a plan, as `_work` reckons them: half a minute on a laptop."""

JOB_S_MIN = 1e-6

KB_PER_GB = 1e6

Above0 = Annotated[float, Meta(gt=0, le=1e9)]
Tokens = Annotated[float, Meta(ge=1, le=1e9)]


class _Model(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    layers: Annotated[int, Meta(ge=1, le=1_000)]
    layer_gb: Above0
    cache_gb: Above0 | None = None
    cache_kb_per_token: Above0 | None = None
    gflop_per_token: Above0 | None = None


class _Server(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Name
    count: Annotated[int, Meta(ge=1, le=SERVERS_MAX)] = 1
    memory_gb: Above0
    job_s: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    layer_s: Above0 | None = None
    tflops: Above0 | None = None
    bandwidth_gb_per_s: Above0 | None = None


class _Demand(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    rate_per_s: Above0
    input_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    response_s: Above0 | None = None


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    model: _Model
    servers: tuple[_Server, ...]
    demand: _Demand


class Commission(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be planned. `response_s` is a mean to be kept, None if none is asked for."""

    servers: tuple[Server, ...]
    service: Service
    rate_per_s: float
    response_s: float | None


def load_plan(path: Path, environment: Mapping[str, str]) -> Commission:
    """What a file commissions. Raises Rejected."""
    file, document = read(read_text(path), _File, environment)
    found = [Problem(*document.nearest(*path), told) for path, told in _inconsistencies(file)]
    if found:
        raise Rejected(found)
    commission = Commission(
        servers=tuple(server for entry in file.servers for server in _servers(entry, file)),
        service=Service(
            layers=file.model.layers, layer_gb=file.model.layer_gb, cache_gb=_cache_gb(file)
        ),
        rate_per_s=file.demand.rate_per_s,
        response_s=file.demand.response_s,
    )
    found = [Problem(*document.nearest(*path), told) for path, told in _absurdities(commission)]
    if found:
        raise Rejected(found)
    return commission


_Path = tuple[str | int, ...]


def _inconsistencies(file: _File) -> Iterator[tuple[_Path, str]]:
    """What no field shows alone, and where it stands."""
    model = file.model
    if (model.cache_gb is None) is (model.cache_kb_per_token is None):
        yield ("model",), "model: give cache_gb or cache_kb_per_token, one of them"
    elif model.cache_gb is None and not _has_tokens(file.demand):
        text = "model.cache_kb_per_token needs demand.input_tokens and demand.output_tokens"
        yield ("model", "cache_kb_per_token"), text
    count = sum(entry.count for entry in file.servers)
    if not 0 < count <= SERVERS_MAX:
        yield ("servers",), f"servers: {count} of them; 1 to {SERVERS_MAX} can be planned"
    seen: set[str] = set()
    for index, entry in enumerate(file.servers):
        if entry.name in seen:
            text = f"servers[{index}].name: '{entry.name}' is given twice"
            yield ("servers", index, "name"), text
        seen.add(entry.name)
        if problem := _speed_problem(entry, file):
            yield ("servers", index), f"servers[{index}]: {problem}"


def _speed_problem(entry: _Server, file: _File) -> str:
    """What is missing, or given twice, to know how fast it is; empty if all is well."""
    sheet = (entry.tflops, entry.bandwidth_gb_per_s)
    if entry.layer_s is not None:
        superfluous = "layer_s is there, so leave out tflops and bandwidth_gb_per_s"
        return "" if sheet == (None, None) else superfluous
    if None in sheet:
        return "give layer_s, or tflops and bandwidth_gb_per_s to reckon it by"
    if file.model.gflop_per_token is None or not _has_tokens(file.demand):
        needed = "model.gflop_per_token, demand.input_tokens and demand.output_tokens"
        return f"tflops need {needed}; or give layer_s"
    return ""


def _has_tokens(demand: _Demand) -> bool:
    return demand.input_tokens is not None and demand.output_tokens is not None


def _absurdities(commission: Commission) -> Iterator[tuple[_Path, str]]:
    """What cannot be reckoned with, and is mostly another unit than was meant."""
    service, servers = commission.service, commission.servers
    jobs = sum(s.memory_gb for s in servers) / (service.cache_gb * service.layers)
    if jobs > JOBS_MAX:
        text = f"the servers have room for the caches of {jobs:.3g} jobs; {JOBS_MAX} can be planned"
        yield ("model",), f"model: {text}: are cache and memory in the units they are named by?"
    job_s = min(server.stage_s(service.layers) for server in servers)
    if job_s < JOB_S_MIN:
        yield ("servers",), f"servers: one does a job in {job_s:.3g} s; {JOB_S_MIN:g} s at least"
    if (work := _work(commission)) > WORK_MAX:
        text = (
            f"{len(servers)} of so many sizes, and {service.layers} layers, take too long to plan"
        )
        remedy = "give fewer servers, or memory_gb in fewer different numbers"
        yield ("servers",), f"servers: {text}: {work:.2g} steps of {WORK_MAX:.2g}; {remedy}"
    names: set[str] = set()
    for server in servers:
        if server.name in names:
            yield ("servers",), f"servers: '{server.name}' is the name of two, counted or given"
        names.add(server.name)


def _work(commission: Commission) -> int:
    """Steps of planning: for each way to reserve room, servers are joined into chains."""
    count = len(commission.servers)
    ways = len(jobs_reserved_tried(commission.servers, commission.service))
    return ways * count * (count + _WORK_SERVERS)


_WORK_SERVERS = 64  # what laying out the layers takes beside joining, in servers


def _servers(entry: _Server, file: _File) -> list[Server]:
    server = Server(
        name=entry.name,
        memory_gb=entry.memory_gb,
        job_s=entry.job_s,
        layer_s=_layer_s(entry, file),
    )
    return [server] if entry.count == 1 else copies([server], entry.count)


def _layer_s(entry: _Server, file: _File) -> float:
    if entry.layer_s is not None:
        return entry.layer_s
    model, demand = file.model, file.demand
    assert entry.tflops is not None, "checked before"
    assert entry.bandwidth_gb_per_s is not None, "checked before"
    assert model.gflop_per_token is not None, "checked before"
    assert demand.input_tokens is not None, "checked before"
    assert demand.output_tokens is not None, "checked before"
    return layer_time_s(
        input_tokens=demand.input_tokens,
        output_tokens=demand.output_tokens,
        layer_gflop_per_token=model.gflop_per_token,
        layer_gb=model.layer_gb,
        tflops=entry.tflops,
        bandwidth_gb_per_s=entry.bandwidth_gb_per_s,
    )


def _cache_gb(file: _File) -> float:
    model, demand = file.model, file.demand
    if model.cache_gb is not None:
        return model.cache_gb
    assert model.cache_kb_per_token is not None, "checked before"
    assert demand.input_tokens is not None, "checked before"
    assert demand.output_tokens is not None, "checked before"
    return model.cache_kb_per_token * (demand.input_tokens + demand.output_tokens) / KB_PER_GB
