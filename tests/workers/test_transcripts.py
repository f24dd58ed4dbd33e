"""What a worker answers who looks at a running trajectory."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any

import pytest

from hermes_queue.ledger import Claim
from hermes_queue.models import Message
from hermes_queue.telemetry import scrubbing
from hermes_queue.telemetry.scrubbing import Scrubber
from workers.runtime import AttemptProgress
from workers.upkeep.transcripts import ANSWER_BYTES, LiveTranscripts

NAME = "run.group.0"
SECRET = "s3cr3t-of-the-worker"


@pytest.fixture
def messages() -> list[Message]:
    return [Message(role="user", content=f"message {n}") for n in range(5)]


@pytest.fixture
def live(messages: list[Message]) -> LiveTranscripts:
    progress = AttemptProgress("agent", time.monotonic(), "train", "env:i#0", 2, 1, messages)
    runtime: Any = SimpleNamespace(progress=lambda: {Claim(NAME, 1): progress})
    return LiveTranscripts(runtime, per_s=1e9)


def test_the_messages_after_a_number_are_told_and_which_is_next(live, messages):
    said = live.read(NAME, 3)
    assert [each["content"] for each in said["messages"]] == ["message 3", "message 4"]
    assert (said["next"], said["total"], said["stage"], said["turns"]) == (5, 5, "agent", 2)
    messages.append(Message(role="assistant", content="more"))
    assert [each["content"] for each in live.read(NAME, said["next"])["messages"]] == ["more"]
    assert live.read(NAME, 6)["messages"] == live.read(NAME, 1_000_000)["messages"] == []


def test_what_does_not_run_here_is_an_error(live):
    assert live.read("run.other.0", 0) == {"error": "it does not run here"}


def test_an_answer_has_a_bound_and_the_next_one_goes_on(live, messages):
    messages[:] = [Message(role="tool", content=str(n) * 100_000) for n in range(5)]
    first = live.read(NAME, 0)
    assert (len(first["messages"]), first["next"], first["total"]) == (2, 2, 5)
    assert len(json.dumps(first)) < ANSWER_BYTES + 1000
    assert live.read(NAME, 2)["messages"][0]["content"][0] == "2"


def test_a_message_larger_than_an_answer_is_cut(live, messages):
    messages[:] = [Message(role="tool", content="x" * 3_000_000, reasoning="\u2028" * 500_000)]
    said = live.read(NAME, 0)
    assert said["next"] == 1
    assert said["messages"][0]["content"].endswith("[... 2983616 characters left out ...]")
    assert len(json.dumps(said)) < ANSWER_BYTES


def test_secrets_are_replaced_even_where_a_text_is_cut(live, messages, monkeypatch):
    clean = Scrubber([SECRET])
    monkeypatch.setattr("workers.upkeep.transcripts.scrubber", lambda: clean)
    assert scrubbing.MASK in clean.text(SECRET)
    at = (16 << 10) - 8
    messages[:] = [
        Message(role="user", content=f"the key is {SECRET}"),
        Message(role="tool", content="y" * at + SECRET + "z" * 1_000_000),
    ]
    text = json.dumps([live.read(NAME, 0), live.read(NAME, 1)])
    assert scrubbing.MASK in text
    assert SECRET[:8] not in text


def test_a_worker_answers_a_few_questions_a_second_and_refuses_the_rest(live):
    few = LiveTranscripts(live._runtime, per_s=2)
    answers = [few.read(NAME, 0) for _ in range(50)]
    assert sum("messages" in each for each in answers) == 2
    assert answers[-1] == {"error": "asked too often"}
