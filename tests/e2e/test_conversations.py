"""Conversations whose turns name each other, not a session."""

import json

from tests.support.raw_cluster import raw_cluster
from tests.support.upstreams import Served, post


async def test_a_turn_that_names_the_response_before_goes_to_the_engine_that_made_it() -> None:
    """Engines keep stored responses in their own memory: any other one answers 404."""
    made = 0

    async def respond(served: Served) -> None:
        nonlocal made
        made += 1
        await served.reply(200, json.dumps({"id": f"resp_{made}", "object": "response"}).encode())

    async with raw_cluster(respond, respond, respond, policy="round_robin") as cluster:
        body: dict[str, object] = {"model": "m", "input": "hello"}
        for _ in range(6):
            answer = await cluster.ask(post("/v1/responses", json.dumps(body).encode()))
            body["previous_response_id"] = json.loads(answer.body)["id"]
        asked = [len(cluster.posts(number)) for number in range(3)]
    assert sorted(asked) == [0, 0, 6], asked


async def test_the_turn_after_a_streamed_response_goes_to_its_engine() -> None:
    made = 0

    async def respond(served: Served) -> None:
        nonlocal made
        made += 1
        response = {"id": f"resp_{made}", "usage": {"input_tokens": 3, "output_tokens": 1}}
        event = {"type": "response.completed", "response": response}
        await served.begin_stream()
        await served.chunk(f"data: {json.dumps(event)}\n\n".encode())
        await served.end_stream()

    async with raw_cluster(respond, respond, respond, policy="round_robin") as cluster:
        body: dict[str, object] = {"model": "m", "input": "hello", "stream": True}
        for number in range(1, 5):
            await cluster.ask(post("/v1/responses", json.dumps(body).encode()))
            body["previous_response_id"] = f"resp_{number}"
        asked = [len(cluster.posts(number)) for number in range(3)]
    assert sorted(asked) == [0, 0, 4], asked
