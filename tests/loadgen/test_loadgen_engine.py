"""Against a simulated engine: lengths arrive as asked, and shared prefixes are really shared."""

from random import Random

import pytest

from pointsman.loadgen.client import LoadClient, parse_target
from pointsman.loadgen.runner import Endpoint, LoadOptions, LoadRun
from pointsman.report.summary import hit_ratio
from pointsman.traffic.arrivals import accelerate
from pointsman.traffic.generate import shared_prefix
from pointsman.traffic.ideal import ideal_hit_ratio
from pointsman.traffic.request import TrafficRequest
from pointsman.traffic.sessions import chat
from tests.support.engines import running_engine


@pytest.mark.parametrize("endpoint", list(Endpoint))
@pytest.mark.parametrize("make", [shared_prefix, chat])
async def test_lengths_and_hits_are_those_of_the_stream(endpoint: Endpoint, make: object) -> None:
    assert callable(make)
    requests: tuple[TrafficRequest, ...] = make(requests=40, rate_rps=1.0, rng=Random(5))
    requests = accelerate(requests, speed=1000.0)
    async with running_engine(speed=1000.0) as engine:
        client = LoadClient(parse_target(engine.url))
        options = LoadOptions(model=engine.options.model, endpoint=endpoint, concurrency=1)
        records = await LoadRun(client, requests, options).run()
        client.close()
    assert [record.cause for record in records] == [""] * len(requests)
    template = {record.prompt_tokens - record.input_tokens for record in records}  # type: ignore[operator]  # None would fail
    assert len(template) == 1
    assert max(template) < 16
    for record, request in zip(records, requests, strict=True):
        assert record.completion_tokens == request.output_tokens
    assert hit_ratio(records) == pytest.approx(ideal_hit_ratio(requests), rel=0.02)
