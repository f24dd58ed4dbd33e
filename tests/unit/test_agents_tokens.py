"""Merging turns into training sequences: the invariants every trainer relies on."""

from __future__ import annotations

import json
import random
import struct
import sys

import pytest

from hermes_queue.agent.tokens.merge import merge_with_breaks, round_float32
from hermes_queue.models import TokenSequence, Turn


def turn(prompt: list[int], completion: list[int], logprob: float = -0.5) -> Turn:
    logprobs = round_float32(logprob - i / 7 for i in range(len(completion)))
    return Turn(prompt_ids=tuple(prompt), completion_ids=tuple(completion), logprobs=logprobs)


def random_episode(seed: int) -> list[Turn]:
    """Turns that extend the last one, except where the history was rewritten."""
    rng = random.Random(seed)
    prompt = [rng.randrange(9) for _ in range(rng.randrange(1, 6))]
    turns = []
    for _ in range(rng.randrange(1, 8)):
        completion = [rng.randrange(9) for _ in range(rng.randrange(0, 5))]
        turns.append(turn(prompt, completion, -rng.random()))
        prompt = prompt + completion + [rng.randrange(9) for _ in range(rng.randrange(0, 4))]
        if rng.random() < 0.3:
            prompt = [*prompt[: rng.randrange(len(prompt))], 99]
    return turns


def test_append_only_turns_make_one_sequence() -> None:
    turns = [turn([1, 2], [3, 4]), turn([1, 2, 3, 4, 5], [6]), turn([1, 2, 3, 4, 5, 6], [7])]
    merged = merge_with_breaks(turns)
    assert merged is not None
    sequences, breaks = merged
    assert [s.ids for s in sequences] == [(1, 2, 3, 4, 5, 6, 7)]
    assert sequences[0].loss_mask == (0, 0, 1, 1, 0, 1, 1)
    assert not breaks


def test_a_prompt_that_does_not_extend_the_sequence_opens_a_new_one_with_an_event() -> None:
    merged = merge_with_breaks([turn([1, 2], [3, 4]), turn([1, 2, 3, 9], [5])])
    assert merged is not None
    sequences, (found,) = merged
    assert [s.ids for s in sequences] == [(1, 2, 3, 4), (1, 2, 3, 9, 5)]
    assert (found.turn, found.common_prefix, found.held) == (1, 3, 4)


def test_a_prompt_shorter_than_the_sequence_is_a_break() -> None:
    merged = merge_with_breaks([turn([1, 2], [3, 4]), turn([1, 2, 3], [5])])
    assert merged is not None
    assert merged[1][0].common_prefix == 3


@pytest.mark.parametrize("seed", range(50))
def test_invariants_hold_for_random_episodes(seed: int) -> None:
    turns = random_episode(seed)
    merged = merge_with_breaks(turns)
    assert merged is not None
    sequences, breaks = merged
    assert len(sequences) == 1 + len(breaks)
    for s in sequences:
        assert len(s.ids) == len(s.loss_mask) == len(s.logprobs)
        context = [p for p, m in zip(s.logprobs, s.loss_mask, strict=True) if not m]
        assert set(context) <= {0.0}
    sampled = [
        (i, p)
        for s in sequences
        for i, m, p in zip(s.ids, s.loss_mask, s.logprobs, strict=True)
        if m
    ]
    assert sampled == [
        (i, p) for t in turns for i, p in zip(t.completion_ids or (), t.logprobs or (), strict=True)
    ]
    for t in turns:
        whole = (*(t.prompt_ids or ()), *(t.completion_ids or ()))
        assert any(s.ids[: len(whole)] == whole for s in sequences)


def test_merging_makes_no_objects_of_the_tokens() -> None:
    """The prompt of each turn repeats all tokens before it: 50 turns of 100,000 are 5 million."""

    def objects(tokens: int) -> int:
        whole = [turn(list(range(tokens)), [1, 2]), turn([*range(tokens), 1, 2, 3], [4])]
        before = sys.getallocatedblocks()
        merged = merge_with_breaks(whole)
        made = sys.getallocatedblocks() - before
        assert merged is not None
        assert [len(s.ids) for s in merged[0]] == [tokens + 4]
        return made

    objects(10)  # what the first call keeps
    assert objects(50_000) < objects(10) + 50


def test_tokens_that_no_array_holds_are_merged_too() -> None:
    turns = [turn([1, 2**40], [3]), turn([1, 2**40, 3, 4], [5])]
    turns[1] = turns[1].model_copy(update={"logprobs": (-0.1,)})
    (sequence,), breaks = merge_with_breaks(turns)
    assert (sequence.ids, breaks) == ((1, 2**40, 3, 4, 5), ())
    assert sequence.logprobs == (0.0, 0.0, -0.5, 0.0, -0.1)


def test_turns_that_hold_lists_are_merged_without_loss() -> None:
    """An agent may change a turn with `model_copy`, which validates nothing."""
    first, second = turn([1, 2], [3]), turn([1, 2, 3, 9], [4])
    lists = [
        each.model_copy(update={"prompt_ids": [*(each.prompt_ids or ())]})
        for each in (first, second)
    ]
    assert merge_with_breaks(lists) == merge_with_breaks([first, second])


def test_a_sequence_survives_json_bit_for_bit() -> None:
    (sequence,), _ = merge_with_breaks([turn([1], [2, 3], -1 / 3)])
    again = TokenSequence.model_validate(json.loads(sequence.model_dump_json()))
    assert again == sequence
    assert struct.pack("2d", *again.logprobs[1:]) == struct.pack("2d", *sequence.logprobs[1:])


def test_a_turn_without_ids_leaves_the_trajectory_without_sequences() -> None:
    assert merge_with_breaks([turn([1], [2]), Turn()]) is None
    assert merge_with_breaks([Turn(prompt_ids=(1,), completion_ids=(2,))]) is None
    assert merge_with_breaks([]) is None


def test_ids_and_logprobs_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="2 tokens, 1 logprobs"):
        merge_with_breaks([Turn(prompt_ids=(1,), completion_ids=(2, 3), logprobs=(-1.0,))])


def test_rounding_to_float32_is_idempotent() -> None:
    once = round_float32([-0.1, -1e-30, -7.123456789])
    assert round_float32(once) == once
    assert once[0] != -0.1


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), -1e39])
def test_a_logprob_that_float32_cannot_hold_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="not a finite float32"):
        round_float32([value])
