"""Responses that engines keep are read, cancelled and deleted where they are."""

from collections.abc import Mapping

import msgspec

from pointsman.cli.config import Config
from tests.support.cluster import Answer, Cluster, cluster_config, running_cluster

BODY = {"model": "sim", "input": "hello", "max_output_tokens": 4}


async def asked(
    cluster: Cluster, method: str, path: str, headers: Mapping[str, str] | None = None
) -> Answer:
    """A request without a body, and its whole answer."""
    url = cluster.api + path
    async with cluster.session.request(method, url, headers=headers) as reply:
        return Answer(reply.status, reply.headers, await reply.read())


async def made(cluster: Cluster, headers: Mapping[str, str] | None = None) -> Answer:
    answer = await cluster.post("/v1/responses", BODY, headers)
    assert answer.status == 200, answer
    return answer


async def test_each_response_is_read_from_its_engine() -> None:
    async with running_cluster(3, policy="round_robin") as cluster:
        answers = [await made(cluster) for _ in range(6)]
        assert len({answer.node for answer in answers}) == 3
        for answer in answers:
            found = await asked(cluster, "GET", f"/v1/responses/{answer.json['id']}")
            assert (found.status, found.node) == (200, answer.node)
            assert found.json == answer.json


async def test_what_a_response_was_asked_can_be_read() -> None:
    async with running_cluster(2) as cluster:
        path = f"/v1/responses/{(await made(cluster)).json['id']}/input_items"
        (item,) = (await asked(cluster, "GET", path)).json["data"]
        assert item["content"] == "hello"


async def test_a_deleted_response_is_gone() -> None:
    async with running_cluster(2, policy="round_robin") as cluster:
        path = f"/v1/responses/{(await made(cluster)).json['id']}"
        deleted = await asked(cluster, "DELETE", path)
        assert (deleted.status, deleted.json["deleted"]) == (200, True)
        assert (await asked(cluster, "GET", path)).status == 404


async def test_an_engines_own_word_on_a_cancellation_is_passed_on() -> None:
    async with running_cluster(2) as cluster:
        answer = await asked(
            cluster, "POST", f"/v1/responses/{(await made(cluster)).json['id']}/cancel"
        )
        assert answer.status == 400
        assert answer.json["error"]["message"] == "Cannot cancel a synchronous response."


async def test_a_response_that_no_engine_is_known_to_keep() -> None:
    async with running_cluster(2) as cluster:
        for method, rest in (
            ("GET", ""),
            ("DELETE", ""),
            ("POST", "/cancel"),
            ("GET", "/input_items"),
        ):
            answer = await asked(cluster, method, f"/v1/responses/resp_unknown{rest}")
            assert answer.status == 404
            error = answer.json["error"]
            assert (error["type"], error["code"]) == ("invalid_request_error", "response_not_found")
            assert error["message"].startswith("No engine is known to keep this response")


async def test_other_methods_are_told_which_are_allowed() -> None:
    async with running_cluster(1) as cluster:
        answer = await asked(cluster, "PUT", "/v1/responses/resp_x")
        assert (answer.status, answer.headers["allow"]) == (405, "GET, DELETE, OPTIONS")
        answer = await asked(cluster, "GET", "/v1/responses/resp_x/cancel")
        assert (answer.status, answer.headers["allow"]) == (405, "POST, OPTIONS")


async def test_a_restarted_engines_responses_are_not_there() -> None:
    async with running_cluster(1) as cluster:
        path = f"/v1/responses/{(await made(cluster)).json['id']}"
        await cluster.simulate(cluster.engines[0], restart=True)
        assert (await asked(cluster, "GET", path)).status == 404


async def test_to_read_a_response_takes_no_turn_and_no_lease() -> None:
    async with running_cluster(1) as cluster:
        path = f"/v1/responses/{(await made(cluster)).json['id']}"
        before = (await cluster.state())["totals"]
        assert (await asked(cluster, "GET", path)).status == 200
        after = (await cluster.state())["totals"]
        assert (before["in_flight"], after["in_flight"]) == (0, 0)
        assert cluster.scheduler.stats.placed == 1  # the response itself, and nothing since


async def test_a_keys_responses_are_its_own() -> None:
    async with running_cluster(1, config=with_two_keys()) as cluster:
        one, two = ({"authorization": f"Bearer {key}"} for key in ("one", "two"))
        path = f"/v1/responses/{(await made(cluster, one)).json['id']}"
        assert (await asked(cluster, "GET", path)).status == 401
        assert (await asked(cluster, "GET", path, two)).status == 404
        assert (await asked(cluster, "DELETE", path, two)).status == 404
        assert (await asked(cluster, "GET", path, one)).status == 200


async def test_a_turn_does_not_go_on_from_another_keys_response() -> None:
    async with running_cluster(1, config=with_two_keys()) as cluster:
        one, two = ({"authorization": f"Bearer {key}"} for key in ("one", "two"))
        turn = BODY | {"previous_response_id": (await made(cluster, one)).json["id"]}
        assert (await cluster.post("/v1/responses", turn, two)).status == 404
        assert (await cluster.post("/v1/responses", turn, one)).status == 200


async def test_what_is_read_is_not_charged_again() -> None:
    """The usage in a kept response is that of the request that made it."""
    async with running_cluster(1) as cluster:
        path = f"/v1/responses/{(await made(cluster)).json['id']}"
        async with cluster.session.get(f"{cluster.admin}/metrics") as reply:
            before = tokens(await reply.text())
        await asked(cluster, "GET", path)
        async with cluster.session.get(f"{cluster.admin}/metrics") as reply:
            assert tokens(await reply.text()) == before


def with_two_keys() -> Config:
    base = cluster_config(())
    listen = msgspec.structs.replace(base.listen, api_keys=("one", "two"))
    return msgspec.structs.replace(base, listen=listen)


def tokens(metrics: str) -> list[str]:
    return [
        line
        for line in metrics.splitlines()
        if line.startswith("pointsman_") and "_tokens_total" in line
    ]
