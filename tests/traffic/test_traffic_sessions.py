"""Sessions: each turn goes on from the one before it, and comes after its answer."""

from itertools import pairwise
from random import Random

import pytest

from pointsman.traffic.request import conversations
from pointsman.traffic.sessions import agentic, chat
from pointsman.traffic.text import PromptWriter


def test_chat_turns_contain_the_turn_before() -> None:
    made = chat(requests=300, rate_rps=4, rng=Random(3))
    writer = PromptWriter(salt="x")
    talks = conversations(made)
    assert len(made) == 300
    assert sum(len(turns) > 1 for turns in talks) > 20
    for turns in talks:
        assert [turn.turn for turn in turns] == list(range(len(turns)))
        for before, after in pairwise(turns):
            grown = before.input_tokens + before.output_tokens
            assert after.input_tokens > grown
            assert after.at_s > before.at_s
            assert after.think_s > 0
            text = writer.prompt(after, index=2)
            assert text.startswith(writer.prompt(before, index=1))


def test_agents_keep_their_context_and_add_to_it() -> None:
    made = agentic(requests=800, rate_rps=5, rng=Random(3))
    talks = conversations(made)
    assert len(made) == 800
    assert sum(len(turns) > 5 for turns in talks) > 20
    assert max(request.input_tokens for request in made) <= 131_072
    shared = made[0].block_ids[:128]  # 8,192 tokens of tools and system prompt
    for turns in talks:
        assert [turn.turn for turn in turns] == list(range(len(turns)))
        for turn in turns:
            assert turn.block_ids[:128] == shared
            assert len(turn.block_ids) == turn.input_tokens // turn.block_tokens
        for before, after in pairwise(turns):
            assert after.block_ids[: len(before.block_ids)] == before.block_ids
            assert after.input_tokens > before.input_tokens + before.output_tokens
            assert after.at_s >= before.at_s + after.think_s
            assert after.think_s > 0


def test_agents_come_at_their_rate_once_sessions_end() -> None:
    made = agentic(requests=4_000, rate_rps=5, rng=Random(3), turns_mean=4)
    last = made[1_000:]
    rate_rps = len(last) / (last[-1].at_s - last[0].at_s)
    assert rate_rps == pytest.approx(5, rel=0.2)


def test_an_agent_ends_where_its_context_is_full() -> None:
    made = agentic(
        requests=300, rate_rps=5, rng=Random(3), turns_mean=1_000, input_tokens_max=20_000
    )
    assert max(request.input_tokens for request in made) <= 20_000
    assert len(conversations(made)) > 10
