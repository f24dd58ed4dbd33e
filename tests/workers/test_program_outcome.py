"""What the end of a program means: one row of the table after the other."""

from __future__ import annotations

import pytest

from hermes_queue.errors import (
    DeadlineExceeded,
    EnvBug,
    ModelConfigError,
    ModelError,
    SandboxError,
    SlotKilled,
    SlotLost,
    stage,
)
from hermes_queue.models import StopReason
from workers.program.run import Ended, outcome


@pytest.mark.parametrize("exit_code", [0, 1, 2, 126, 127, 130, 137, -1])
def test_a_program_that_had_a_reply_has_exited_whatever_its_code(exit_code: int) -> None:
    assert outcome(Ended(exit_code=exit_code)) == "exited"


@pytest.mark.parametrize(
    "stop",
    ["max_turns", "max_tokens", "max_cost", "time_limit", "context_length", "stuck"],
)
@pytest.mark.parametrize("exit_code", [0, 1, None])
def test_a_limit_is_the_outcome_whatever_the_code(stop: StopReason, exit_code: int | None) -> None:
    assert outcome(Ended(exit_code=exit_code, stop=stop)) == stop


def test_a_program_that_ends_on_a_prompt_that_is_too_long_has_reached_the_context() -> None:
    assert outcome(Ended(exit_code=1, context_refused=True)) == "context_length"


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        (
            Ended(0, asked=0, delivered=0, output="Hello.\n"),
            ["code 0", "without a single", "Hello."],
        ),
        (Ended(1, asked=0, delivered=0), ["code 1", "it printed nothing"]),
        (Ended(127, asked=0, delivered=0), ["code 127", "could not be started"]),
        (Ended(126, asked=0, delivered=0), ["code 126", "could not be started"]),
        (Ended(137, asked=0, delivered=0), ["code 137", "lack of memory"]),
        (
            Ended(1, asked=0, delivered=0, other_requests={"POST /v1/chat/completions 401": 3}),
            ["without a valid model call", "/v1/chat/completions 401 (3)"],
        ),
        (
            Ended(0, asked=0, delivered=0, other_requests={"POST /v1/engines 404": 1}),
            ["/v1/engines 404"],
        ),
        (Ended(1, asked=2, delivered=0, refused={"bad_call": 2}), ["2 bad_call"]),
        (Ended(0, asked=1, delivered=0), ["without a single reply of the model"]),
        (Ended(1, asked=1, delivered=0, context_refused=True), ["first prompt is too long"]),
        (Ended(None, asked=3, delivered=0, stop="context_length", context_refused=True), ["limit"]),
        (Ended(None, asked=0, delivered=0, stop="time_limit"), ["was ended", "time_limit"]),
        (Ended(None, asked=9, delivered=0, stop="max_turns"), ["max_turns"]),
    ],
)
def test_without_a_reply_nothing_is_scored(ended: Ended, words: list[str]) -> None:
    with pytest.raises(ModelConfigError) as raised:
        outcome(ended)
    assert [word for word in words if word not in str(raised.value)] == []


def test_a_model_that_is_too_slow_for_a_first_reply_is_no_zero() -> None:
    with pytest.raises(DeadlineExceeded):
        outcome(Ended(None, asked=1, delivered=0, stop="time_limit"))


@pytest.mark.parametrize(
    ("ended", "stop"),
    [
        (Ended(0, unanswered=True, delivered=0), None),
        (Ended(0, unanswered=True, waited_s=600.0), None),
        (Ended(0, unanswered=True, waited_s=5.0), "exited"),
        (Ended(0, unanswered=True, waited_s=600.0, stop="max_turns"), "max_turns"),
    ],
)
def test_a_program_that_gave_up_on_an_unavailable_model_is_no_zero(
    ended: Ended, stop: StopReason | None
) -> None:
    if stop is not None:
        assert outcome(ended) == stop
        return
    with pytest.raises(ModelError, match="ended before the answer to its call"):
        outcome(ended)


@pytest.mark.parametrize("failure", [ModelError("down"), ModelConfigError("wrong key")])
@pytest.mark.parametrize("ended", [{"exit_code": 0}, {"exit_code": 1, "delivered": 0, "asked": 1}])
def test_a_model_server_that_failed_for_good_is_the_failure(
    failure: Exception, ended: dict[str, int]
) -> None:
    with pytest.raises(type(failure)) as raised:
        outcome(Ended(**ended, failure=failure, lost=SlotLost("later")))
    assert raised.value is failure


def test_what_the_endpoint_raises_is_a_bug() -> None:
    with pytest.raises(EnvBug, match="KeyError"), stage("agent"):
        outcome(Ended(failure=KeyError("x")))


@pytest.mark.parametrize(
    ("lost", "before", "delivered"),
    [
        (SlotLost("died"), True, 1),
        (SlotLost("died"), False, 1),
        (SandboxError("relay"), True, 1),
        (SlotKilled("ended"), False, 1),
        (SlotKilled("ended"), True, 0),
    ],
)
def test_a_lost_slot_or_relay_is_a_failure_of_the_sandbox(
    lost: SandboxError, before: bool, delivered: int
) -> None:
    ended = Ended(None, lost=lost, slot_loss_ends=before, delivered=delivered, stop="max_turns")
    with pytest.raises(type(lost)):
        outcome(ended)


def test_a_program_that_kills_its_slot_again_has_lost_its_work() -> None:
    ended = Ended(None, lost=SlotKilled("ended"), slot_loss_ends=True)
    assert outcome(ended) == "slot_killed"
