"""Where requests go in a whole cluster, judged by what the engines say of their caches."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from random import Random

import msgspec
import pytest

from pointsman.cli.config import Health
from pointsman.core.policies import catalog
from pointsman.engines.compute_model import chain_hashes, root_hash
from pointsman.engines.simulated.tokenizer import WORDS, Turn, render_chat
from tests.support.cluster import Answer, Cluster, cluster_config, running_cluster

BY_LOT = ("random", "power_of_two", "consistent_hash")  # a hash of the prompt is one, too
DETERMINISTIC = [name for name in catalog.names() if name not in BY_LOT]
BLOCK_TOKENS = 16


def words(count: int, seed: str) -> str:
    """A text of as many tokens of the simulated engines, unlike that of any other seed."""
    return "".join(Random(seed).choices(WORDS, k=count))


# --- idle equal engines -------------------------------------------------------------------


async def sixty_questions(cluster: Cluster) -> "Counter[str]":
    return Counter([(await cluster.chat(f"What is {n} in words?")).node for n in range(60)])


@pytest.mark.parametrize("policy", DETERMINISTIC)
async def test_distinct_prompts_spread_over_engines_that_are_new(policy: str) -> None:
    """Routers in the field sent 60 of 60 to one worker, or 43."""
    async with running_cluster(2, policy=policy) as cluster:
        counts = await sixty_questions(cluster)
    assert 25 <= counts["engine-1"] <= 35, counts


@pytest.mark.parametrize("policy", DETERMINISTIC)
async def test_distinct_prompts_spread_over_engines_whose_speeds_are_learned(policy: str) -> None:
    """Learned speeds of equal engines are never quite equal."""
    async with running_cluster(2, policy="round_robin") as cluster:
        await learn_speeds(cluster)
        await cluster.admin_json("PUT", "/policy", {"policy": policy})
        counts = await sixty_questions(cluster)
    assert 25 <= counts["engine-1"] <= 35, counts


async def learn_speeds(cluster: Cluster) -> None:
    """40 requests are enough, on a machine that is not too noisy."""
    for number in range(400):
        await cluster.chat(words(8 + number % 40 * 5, f"warm-up {number}"))
        nodes = (await cluster.state())["nodes"]
        if number >= 39 and all(node["calibrated"] for node in nodes):
            return
    raise AssertionError("400 requests taught nothing")


async def test_an_engine_that_was_slow_for_a_while_gets_its_share_again() -> None:
    config = msgspec.structs.replace(cluster_config(()), health=Health(trial_after_s=0.5))
    async with running_cluster(2, config=config, speed=5) as cluster:
        for number in range(40):
            await cluster.complete(f"warm-up {number}")
        await cluster.simulate(cluster.engines[1], slow=4)
        await cluster.admin_json("POST", "/nodes/engine-1/drain")
        for number in range(40):
            await cluster.complete(f"while it is slow {number}")
        await cluster.admin_json("POST", "/nodes/engine-1/undrain")
        await cluster.simulate(cluster.engines[1], reset=True)
        for _ in range(40):  # a trial on a busy machine may look slow once more
            await asyncio.sleep(0.5)
            nodes = [(await cluster.complete(f"afterwards {n}")).node for n in range(60)]
            if nodes.count("engine-2") > 15:
                return
    raise AssertionError(nodes)


# --- tenants with system prompts of their own ---------------------------------------------


class Turnout:
    """What came of a workload."""

    def __init__(self, answers: Sequence[Answer], ideal_tokens: int) -> None:
        cached = sum(answer.cached_tokens for answer in answers)
        self.hit_of_ideal = cached / ideal_tokens
        requests: Counter[str] = Counter()
        tokens: Counter[str] = Counter()
        for answer in answers:
            requests[answer.node] += 1
            tokens[answer.node] += answer.prompt_tokens
        self.requests, self.tokens = requests, tokens

    def busiest_over_mean(self, engines: int) -> float:
        """The worse of requests and prompt tokens."""
        return max(
            max(counts.values()) * engines / sum(counts.values())
            for counts in (self.requests, self.tokens)
        )


def tenant_prompts(*, shuffled: bool = False) -> list[tuple[str, str]]:
    """8 tenants with 4k-token system prompts ask 20 questions each: in turn, or in any order."""
    prompts = [
        (words(4_000, f"tenant {tenant}"), words(20, f"{tenant}/{question}"))
        for question in range(20)
        for tenant in range(8)
    ]
    if shuffled:
        Random(1).shuffle(prompts)
    return prompts


def ideal_cached_tokens(prompts: Sequence[tuple[str, str]]) -> int:
    """What one engine that forgets nothing would have cached, one request after the other."""
    seen: set[int] = set()
    tokens = 0
    for system, question in prompts:
        prompt = render_chat([Turn("system", [system]), Turn("user", [question])])
        chain = chain_hashes(
            memoryview(prompt).cast("B"),
            block_bytes=prompt.itemsize * BLOCK_TOKENS,
            root=root_hash(None, None),
        )
        hit = next((n for n, block in enumerate(chain) if block not in seen), len(chain))
        tokens += hit * BLOCK_TOKENS
        seen.update(chain)
    return tokens


async def ask_all(cluster: Cluster, prompts: Sequence[tuple[str, str]], at_once: int) -> Turnout:
    waiting = iter(prompts)
    answers: list[Answer] = []

    async def ask() -> None:
        for system, question in waiting:
            answers.append(await cluster.chat(system, question, max_tokens=16))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(at_once):
            tasks.create_task(ask())
    assert len(answers) == len(prompts)
    return Turnout(answers, ideal_cached_tokens(prompts))


@pytest.mark.parametrize(
    ("at_once", "shuffled"), [(1, False), (1, True), (8, False)], ids=["in turn", "mixed", "8"]
)
async def test_tenants_stay_with_their_caches_and_spread(at_once: int, shuffled: bool) -> None:
    async with running_cluster(4, speed=10) as cluster:
        turnout = await ask_all(cluster, tenant_prompts(shuffled=shuffled), at_once)
    assert turnout.hit_of_ideal >= 0.95, turnout.hit_of_ideal
    assert turnout.busiest_over_mean(4) <= 1.5, turnout.requests


async def test_tenants_in_any_order_and_at_once_share_and_spread() -> None:
    """Siblings that come before the first of them is cached may be better off elsewhere, so
    the bounds are wider."""
    async with running_cluster(4, speed=10) as cluster:
        turnout = await ask_all(cluster, tenant_prompts(shuffled=True), 8)
    assert turnout.hit_of_ideal >= 0.9, turnout.hit_of_ideal
    assert turnout.busiest_over_mean(4) <= 2.0, turnout.requests


# --- one system prompt for all ------------------------------------------------------------


async def test_no_engine_idles_while_another_queues() -> None:
    """A hot prefix must not pull everything to the engine that has it."""
    system = words(2_000, "everybody's")
    prompts = [(system, words(20, f"question {number}")) for number in range(400)]
    async with running_cluster(4, speed=3, max_num_seqs=8) as cluster:
        samples: list[bool] = []
        watching = asyncio.create_task(watch(cluster, samples))
        waiting = iter(prompts)

        async def ask() -> None:
            for system, question in waiting:
                await cluster.chat(system, question, max_tokens=64)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(64):
                tasks.create_task(ask())
        watching.cancel()
    steady = samples[len(samples) // 8 : -len(samples) // 8]
    assert len(steady) > 20, "too short to tell"
    assert sum(steady) / len(steady) <= 0.05, f"{sum(steady)} of {len(steady)}"


async def watch(cluster: Cluster, samples: list[bool]) -> None:
    """Whether one engine is empty while another has requests waiting, each 20 ms."""
    models = [running.engine.driver.model for running in cluster.engines]
    while True:
        is_empty = any(model.running + model.waiting == 0 for model in models)
        samples.append(is_empty and any(model.waiting for model in models))
        await asyncio.sleep(0.02)


# --- prompts as token ids, and what engines publish of their caches -----------------------


def token_prompts() -> list[list[int]]:
    """160 prompts of 12 families: each goes on where another one stopped, or repeats it."""
    rng = Random(7)
    families = [[rng.randrange(1, 100_000) for _ in range(600)] for _ in range(12)]
    prompts = []
    for _ in range(160):
        family = rng.choice(families)
        prompts.append(family[: rng.choice((32, 100, 160, 333, 600))])
    return prompts


async def predicted_tokens(cluster: Cluster, answer: Answer) -> int:
    """The hit that the decision counted on."""
    decisions = (await cluster.admin_json("GET", f"/decisions/{answer.id}"))["decisions"]
    return int(decisions[-1]["hit_tokens"])


async def events_in_sync(cluster: Cluster) -> None:
    """Until every engine's events so far have been taken in."""
    await cluster.until_ready()
    await asyncio.sleep(0.02)  # the way from socket to socket


async def test_hits_of_token_prompts_are_known_exactly() -> None:
    async with running_cluster(2) as cluster:
        assert {n["index_trust"] for n in (await cluster.state())["nodes"]} == {"exact"}
        pairs = []
        for prompt in token_prompts():
            answer = await cluster.complete(prompt)
            await events_in_sync(cluster)
            pairs.append((await predicted_tokens(cluster, answer), answer.cached_tokens))
    right = sum(predicted == reported for predicted, reported in pairs)
    wrong = [pair for pair in pairs if pair[0] != pair[1]]
    assert sum(reported for _, reported in pairs) > 10_000, "the workload must hit"
    assert right / len(pairs) >= 0.99, wrong


async def restart(cluster: Cluster) -> None:
    """Have the only engine restart, and wait until that is known. The next request makes the
    collectors look, and metrics and events both tell."""
    (engine,) = cluster.engines
    await cluster.simulate(engine, restart=True)
    engine.engine.started_s += 60  # no real engine is back within the second
    await cluster.complete([7] * 40)
    await cluster.until_shown(lambda state: state["nodes"][0]["restarts"])
    await events_in_sync(cluster)


PROMPT = list(range(1, 401))


async def test_an_engine_that_restarts_is_known_to_be_cold_and_learned_anew() -> None:
    """sglang's and llm-d's routers kept the blocks of a process that was gone."""
    async with running_cluster(1) as cluster:
        await cluster.complete(PROMPT)
        await events_in_sync(cluster)
        assert (await cluster.complete(PROMPT)).cached_tokens > 0
        await restart(cluster)
        cold = await cluster.complete(PROMPT)
        assert await predicted_tokens(cluster, cold) == cold.cached_tokens == 0
        await events_in_sync(cluster)
        warm = await cluster.complete(PROMPT)
        assert await predicted_tokens(cluster, warm) == warm.cached_tokens > 0
        assert (await cluster.state())["nodes"][0]["index_trust"] == "exact"


async def test_a_cache_that_is_reset_is_known_to_be_empty() -> None:
    async with running_cluster(1) as cluster:
        (engine,) = cluster.engines
        await cluster.complete(PROMPT)
        await events_in_sync(cluster)
        async with cluster.session.post(f"{engine.url}/reset_prefix_cache") as reply:
            assert reply.status == 200
        await cluster.complete([7] * 40)  # the event goes out with the next step
        await events_in_sync(cluster)
        cold = await cluster.complete(PROMPT)
        assert await predicted_tokens(cluster, cold) == cold.cached_tokens == 0


async def test_texts_are_forgotten_with_the_engine_that_held_them() -> None:
    system = words(1_000, "system")
    async with running_cluster(1) as cluster:
        await cluster.chat(system, "first")
        warm = await cluster.chat(system, "second")
        assert await predicted_tokens(cluster, warm) > 0
        await restart(cluster)
        cold = await cluster.chat(system, "third")
        assert await predicted_tokens(cluster, cold) == cold.cached_tokens == 0


# --- who may serve it ---------------------------------------------------------------------


async def test_an_adapter_loaded_at_run_time_is_found_and_served_where_it_is() -> None:
    async with running_cluster(2) as cluster:
        async with cluster.session.post(
            f"{cluster.engines[1].url}/v1/load_lora_adapter", json={"lora_name": "tutor"}
        ) as reply:
            assert reply.status == 200
        body = {"model": "tutor", "prompt": "hello", "max_tokens": 2}
        assert (await cluster.post("/v1/completions", body)).status == 404
        await cluster.admin_json("DELETE", "/nodes/engine-2")
        node = {"name": "engine-2", "url": cluster.engines[1].url}
        await cluster.admin_json("POST", "/nodes", node)
        await cluster.until_ready()
        answers = [await cluster.post("/v1/completions", body) for _ in range(6)]
        assert {(a.status, a.node) for a in answers} == {(200, "engine-2")}
        async with cluster.session.get(f"{cluster.api}/v1/models") as reply:
            models = {model["id"]: model["parent"] for model in (await reply.json())["data"]}
        assert models == {"sim": None, "tutor": "sim"}


async def test_a_pool_is_kept_to_and_an_unknown_one_says_so() -> None:
    pools = ({"pool": "short"}, {"pool": "long"})
    async with running_cluster(2, engine_config=pools) as cluster:
        body = {"model": "sim", "prompt": "hello", "max_tokens": 2}
        asked = [
            await cluster.post("/v1/completions", body, {"x-pointsman-pool": "long"})
            for _ in range(5)
        ]
        assert {answer.node for answer in asked} == {"engine-2"}
        refused = await cluster.post("/v1/completions", body, {"x-pointsman-pool": "none"})
        assert refused.status == 503
        assert refused.headers["x-pointsman-reason"] == "no_matching_node"


async def test_an_unknown_model_is_404_on_every_route() -> None:
    async with running_cluster(1) as cluster:
        for path, body in (
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}]}),
            ("/v1/completions", {"prompt": "hello"}),
            ("/v1/responses", {"input": "hello"}),
            ("/v1/embeddings", {"input": "hello"}),
            ("/v1/rerank", {"query": "a", "documents": ["b"]}),
        ):
            answer = await cluster.post(path, {"model": "unknown", **body})
            assert answer.status == 404, path
            assert answer.json["error"]["code"] == "model_not_found", path


@pytest.mark.parametrize("named_by", ["header", "body"])
async def test_a_session_stays_where_it_was(named_by: str) -> None:
    async with running_cluster(4, policy="session") as cluster:
        homes: dict[str, set[str]] = {}
        for turn in range(32):
            session = f"s-{turn % 8}"
            body: dict[str, object] = {"model": "sim", "prompt": f"turn {turn}", "max_tokens": 2}
            headers = {"x-pointsman-session": session} if named_by == "header" else {}
            if named_by == "body":
                body["prompt_cache_key"] = session
            answer = await cluster.post("/v1/completions", body, headers)
            homes.setdefault(session, set()).add(answer.node)
    assert all(len(nodes) == 1 for nodes in homes.values()), homes
    assert len(set.union(*homes.values())) == 4, "eight sessions spread over four engines"
