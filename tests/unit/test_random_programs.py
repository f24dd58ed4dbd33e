"""Whatever programs do to their conversations: tokens stay exact, and each is trainable once."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from random_programs import FIRST_SAMPLED, Attempt, meaning, parents_by_meaning
from records import make_job

from envs.base import Verdict
from hermes_queue.agent.tokens.invariants import token_violations
from hermes_queue.bodies import codec
from hermes_queue.models import AgentSpec, ScoredTrajectory
from workers.draft import Draft
from workers.record import encoded, record_of

SEEDS = [*range(8), *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(8, 60))]
LIMITS: tuple[dict[str, Any], ...] = ({}, {"max_turns": 12}, {"max_tokens": 30})


def recorded(attempt: Attempt) -> ScoredTrajectory:
    """The record of an attempt, from its bytes."""
    agent = AgentSpec(
        kind="openai", model="m", base_url="http://127.0.0.1:1", params={"mode": "tokens"}
    )
    draft = Draft(make_job(agent=agent), attempt=1, epoch=1)
    draft.agent, draft.verdict = attempt.result, Verdict(score=1.0)
    attempt.result.messages[:] = attempt.tree.main_path()
    record, body = encoded(record_of(draft, owner="w", host="h"), 1 << 26)
    assert codec.decode_record(body) == record
    return record


@pytest.mark.parametrize("overlap", [False, True], ids=["one-by-one", "overlapping"])
@pytest.mark.parametrize("seed", SEEDS)
async def test_every_invariant_holds_for_a_program_that_keeps_to_no_rule(
    seed: int, overlap: bool
) -> None:
    chance = random.Random(seed)
    history = chance.choice(("sampled", "agent"))
    attempt = Attempt(
        chance,
        history=history,
        overlap=overlap,
        rudeness=chance.choice((0.1, 0.4, 1.0)),
        failures=chance.choice((0.0, 0.1)),
        **chance.choice(LIMITS),
    )
    await attempt.run(15)
    assert attempt.session.failure is None
    assert attempt.model.astray == []
    record = recorded(attempt)
    assert record.status == "completed"
    assert token_violations(record) == []
    assert_each_sampled_token_is_trainable_once(record)
    assert_delivered_replies_are_in_one_branch_each(attempt, record)
    assert_limits_hold(attempt, record)
    if not overlap:
        assert_only_what_the_program_has_is_delivered(attempt)
    assert_the_model_saw_what_the_program_sent(attempt, reasoning=history == "agent")
    for turn in range(len(record.turns)):
        parent, possible = record.turns[turn].parent, parents_by_meaning(attempt, turn)
        # Calls that are open at once do not know each other's replies.
        assert parent in possible or (parent is None and (overlap or not possible))


@pytest.mark.parametrize("seed", SEEDS)
async def test_nothing_is_rendered_again_for_a_program_that_only_writes_in_its_own_way(
    seed: int,
) -> None:
    attempt = Attempt(random.Random(seed), rudeness=0.0)
    await attempt.run(12)
    record = recorded(attempt)
    assert not [e for e in record.events if e["event"] in ("rerendered", "sequence_break")]
    above = [record.turns[turn.parent] for turn in record.turns if turn.parent is not None]
    below = [turn for turn in record.turns if turn.parent is not None]
    assert above
    for last, turn in zip(above, below, strict=True):
        held = (*last.prompt_ids, *last.completion_ids)
        assert turn.prompt_ids[: len(held)] == held


def assert_each_sampled_token_is_trainable_once(record: ScoredTrajectory) -> None:
    """No two sampled tokens are equal, so each is found by its id."""
    trained = Counter(
        token
        for sequence in record.sequences or ()
        for token, mask in zip(sequence.ids, sequence.loss_mask, strict=True)
        if mask
    )
    delivered = [turn for turn in record.turns if turn.call.status == "delivered"]
    assert trained == Counter(token for turn in delivered for token in turn.completion_ids)
    for turn in record.turns:
        twice = Counter(token for token in turn.prompt_ids if token >= FIRST_SAMPLED)
        assert set(twice.values()) <= {1}, "a prompt repeats a sampled token"


def assert_delivered_replies_are_in_one_branch_each(
    attempt: Attempt, record: ScoredTrajectory
) -> None:
    for turn in attempt.had:
        assert record.turns[turn].call.status == "delivered"
    chains: list[list[int]] = [[] for _ in record.branches]
    for index, turn in enumerate(record.turns):
        chains[turn.branch].append(index)
    assert [(chain[0], chain[-1]) for chain in chains] == [
        (branch.root, branch.leaf) for branch in record.branches
    ]


def assert_only_what_the_program_has_is_delivered(attempt: Attempt) -> None:
    """A reply is its, too, if it continues it: but not one of two equal ones that it never got."""
    turns = attempt.result.turns
    continued = {turn.parent: index for index, turn in reversed([*enumerate(turns)])}
    for index, turn in enumerate(turns):
        if turn.call.status == "delivered" and index not in attempt.had:
            first = continued[index]
            possible = parents_by_meaning(attempt, first)
            assert not [each for each in possible if attempt.had.get(each, first + 1) <= first]


def assert_the_model_saw_what_the_program_sent(attempt: Attempt, reasoning: bool) -> None:
    for index, call in enumerate(attempt.asked):
        turn = attempt.result.turns[index]
        shown = attempt.model.shown[tuple(turn.prompt_ids), tuple(turn.completion_ids)]
        sent = meaning(call.messages, astray=False)
        pairs = zip(meaning(shown, astray=False), sent, strict=True)
        # A result that answers no call may have the id that our reply gave to one.
        assert all(mine[: len(theirs)] == theirs for mine, theirs in pairs)
        if reasoning:
            thoughts = [[each.reasoning or "" for each in said] for said in (shown, call.messages)]
            assert thoughts[0] == thoughts[1]


def assert_limits_hold(attempt: Attempt, record: ScoredTrajectory) -> None:
    limits = attempt.limits
    turns = [turn for turn in record.turns if record.branches[turn.branch].label != "side"]
    assert len(turns) <= limits.max_turns
    used = sum(turn.usage.completion_tokens for turn in record.turns)
    assert limits.max_tokens is None or used <= limits.max_tokens
    assert set(attempt.refused) <= {"stopped", "bad_call", "context_length", "closed"}
