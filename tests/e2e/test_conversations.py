"""Conversations whose turns name each other, not a session."""

import json

import pytest

from tests.support.raw_cluster import raw_cluster
from tests.support.upstreams import Served, post


@pytest.mark.xfail(
    strict=True,
    reason="the id of an answer is not read, so the turn after it cannot be sent to its engine",
)
async def test_a_turn_that_names_the_response_before_goes_to_the_engine_that_made_it() -> None:
    """Engines keep stored responses in their own memory: any other one answers 404."""
    made = 0

    async def respond(served: Served) -> None:
        nonlocal made
        made += 1
        await served.reply(200, json.dumps({"id": f"resp_{made}", "object": "response"}).encode())

    async with raw_cluster(respond, respond, respond, policy="session") as cluster:
        body: dict[str, object] = {"model": "m", "input": "hello"}
        for _ in range(6):
            answer = await cluster.ask(post("/v1/responses", json.dumps(body).encode()))
            body["previous_response_id"] = json.loads(answer.body)["id"]
        asked = [len(cluster.posts(number)) for number in range(3)]
    assert sorted(asked) == [0, 0, 6], asked
