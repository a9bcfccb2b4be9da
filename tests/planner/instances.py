"""Published cases, and small random ones."""

from hypothesis import strategies as st

from pointsman.planner.allocation import allocate_cache
from pointsman.planner.model import Server, ServerChain, Service
from pointsman.planner.placement import place_layers

EPS_S = 0.01
WORKED_SERVICE = Service(layers=3, layer_gb=1, cache_gb=0.1)
WORKED_SERVERS = [
    Server(name=f"j{number}", memory_gb=memory_gb, job_s=job_s, layer_s=number * EPS_S)
    for number, (memory_gb, job_s) in enumerate([(2, 1), (3, 2), (2, 1), (2, 1), (2, 1)], start=1)
]
"""The paper's worked example."""

BLOOM_SERVICE = Service(layers=70, layer_gb=1.32, cache_gb=0.11)
BLOOM_SERVERS = [
    *(Server(name=f"high{n}", memory_gb=40, job_s=0.76, layer_s=0.109) for n in range(4)),
    *(Server(name=f"low{n}", memory_gb=20, job_s=0.76, layer_s=0.175) for n in range(16)),
]
"""The paper's simulation: BLOOM-176B on 20 slices of A100s, 4 of them large."""

LLAMA_SERVICE = Service(layers=32, layer_gb=0.4375, cache_gb=0.0336)
LLAMA_SERVERS = [
    *(Server(name=f"high{n}", memory_gb=40, job_s=1.0, layer_s=0.05) for n in range(3)),
    *(Server(name=f"low{n}", memory_gb=20, job_s=1.0, layer_s=0.09) for n in range(6)),
]
"""The paper's test bed: LLaMA-2-7B on 3 large and 6 small slices."""

TWO_CHAINS = [  # chains as (service_s, job_slots), rate, lower bound, exact, upper bound
    ([(1, 1), (2, 1)], 0.75, 1.600000, 1.739130, 2.000000),
    ([(1, 2), (3, 3)], 1.5, 1.289946, 1.623355, 2.291545),
    ([(1, 4), (4, 4)], 3.5, 1.353588, 1.734156, 2.099001),
]


def measured(pairs: list[tuple[float, int]]) -> list[ServerChain]:
    return [ServerChain(service_s=service_s, job_slots=slots) for service_s, slots in pairs]


def bloom_chains() -> tuple[ServerChain, ...]:
    return allocate_cache(place_layers(BLOOM_SERVERS, BLOOM_SERVICE, jobs_reserved=7))


tenths = st.integers(1, 60).map(lambda number: number / 10)


@st.composite
def services(draw: st.DrawFn) -> Service:
    return Service(layers=draw(st.integers(1, 6)), layer_gb=draw(tenths), cache_gb=draw(tenths) / 5)


@st.composite
def clusters(draw: st.DrawFn, *, servers_max: int = 6) -> list[Server]:
    count = draw(st.integers(1, servers_max))
    return [
        Server(
            name=f"s{number}",
            memory_gb=draw(st.integers(1, 200)) / 10,
            job_s=draw(tenths),
            layer_s=draw(tenths),
        )
        for number in range(count)
    ]


small_chains = st.lists(st.tuples(tenths, st.integers(1, 3)), min_size=1, max_size=3).map(measured)
