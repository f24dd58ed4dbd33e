"""What a running trajectory has said so far: how often its worker is asked, and what is shown."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from redis.exceptions import AuthenticationError, NoPermissionError

from hermes_plugins.view import transcripts
from hermes_plugins.view.answers import Refusal
from hermes_plugins.view.transcripts import Transcripts, refused
from hermes_queue.broker.pool import remote_control
from hermes_queue.errors import RedisUnavailable
from hermes_queue.ledger import Ledger

pytestmark = pytest.mark.xdist_group("view")
NAME, WORKER = "run.group.0", "celery@host"


class Answering:
    """In place of the workers."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.answer: Any = {}
        self.go = threading.Event()
        self.go.set()

    def __call__(self, command: str, names: list[str], given: dict[str, Any], **_: Any) -> Any:
        assert (command, names) == ("transcript", [WORKER])
        self.asked.append(given)
        assert self.go.wait(20)
        if isinstance(self.answer, Exception):
            raise self.answer
        return {WORKER: self.answer} if self.answer else {}


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Answering:
    made = Answering()
    monkeypatch.setattr(remote_control, "ask", made)
    monkeypatch.setattr(transcripts, "QUESTIONS_PER_S", 1000)
    return made


@pytest.fixture
def followed(ledger: Ledger) -> Transcripts:
    """Of a deployment in which one trajectory runs."""
    facts = {"state": "running", "owner": "owner", "stage": "agent", "attempt": "2"}
    client: Any = ledger.client
    client.hset(f"hq:traj:{NAME}", mapping=facts)
    client.set("hq:worker:owner", json.dumps({"name": WORKER}))
    return Transcripts(ledger)


def test_the_worker_is_asked_for_what_follows_and_the_numbers_go_on(followed, workers):
    said = [{"role": "assistant", "content": "\u202ehidden"}, "no message"]
    workers.answer = {"messages": said, "total": 7, "stage": "verify", "attempt": 3}
    found = followed.after(NAME, 5)
    assert workers.asked == [{"trajectory_id": NAME, "start": 5}]
    assert [each["n"] for each in found["messages"]] == [5, 6]
    assert (found["next"], found["total"], found["source"]) == (7, 7, "worker")
    assert (found["stage"], found["attempt"], found["worker"]) == ("verify", 3, WORKER)
    assert "\u202e" not in json.dumps(found["messages"], ensure_ascii=False)


def test_the_same_question_is_asked_once_for_everybody(followed, workers):
    workers.answer = {"messages": [], "total": 0}
    assert len({id(followed.after(NAME, 0)) for _ in range(20)}) == 1
    assert len(workers.asked) == 1


def test_a_worker_that_does_not_answer_is_not_asked_again_at_once(followed, workers):
    found = [followed.after(NAME, n) for n in range(3)]
    assert {(each["source"], each["note"]) for each in found} == {
        ("journal", "turns that have ended, since its worker does not answer")
    }
    assert len(workers.asked) == 1


@pytest.mark.parametrize("refusal", [NoPermissionError("no right"), AuthenticationError("wrong")])
def test_nor_is_a_redis_that_does_not_let_us(followed, workers, refusal):
    workers.answer = RedisUnavailable("the command cannot be sent")
    workers.answer.__cause__ = refusal
    assert refused(workers.answer)
    assert "may not ask workers" in followed.after(NAME, 0)["note"]
    assert "may not ask workers" in followed.after(NAME, 1)["note"]
    assert len(workers.asked) == 1


def test_a_lost_redis_is_an_error_and_no_refusal(followed, workers):
    workers.answer = RedisUnavailable("Redis cannot be reached")
    assert not refused(workers.answer)
    with pytest.raises(RedisUnavailable):
        followed.after(NAME, 0)


def test_a_worker_that_was_asked_too_often_is_asked_later(followed, workers):
    workers.answer = {"error": remote_control.TOO_OFTEN}
    with pytest.raises(Refusal, match="too many") as refusal:
        followed.after(NAME, 0)
    assert refusal.value.status == 429


def test_a_question_does_not_wait_long_for_that_of_somebody_else(followed, workers, monkeypatch):
    monkeypatch.setattr(transcripts, "WAIT_S", 0.01)
    workers.answer = {"messages": [], "total": 0}
    workers.go.clear()
    other = threading.Thread(target=followed.after, args=(NAME, 0))
    other.start()
    try:
        while not workers.asked:
            pass
        with pytest.raises(Refusal, match="too many"):
            followed.after(NAME, 1)
    finally:
        workers.go.set()
        other.join()
    assert followed.after(NAME, 0)["source"] == "worker"


def test_questions_of_all_together_have_a_bound(followed, workers, monkeypatch):
    monkeypatch.setattr(transcripts, "QUESTIONS_PER_S", 3)
    workers.answer = {"messages": [], "total": 0}
    for n in range(3):
        followed.after(NAME, n)
    with pytest.raises(Refusal, match="too many"):
        followed.after(NAME, 3)


def test_one_message_is_shown_whole(followed, workers):
    long = "x" * 50_000
    workers.answer = {"messages": [{"role": "tool", "content": long}], "total": 8}
    assert followed.after(NAME, 7)["messages"][0]["content"]["cut"]
    shown = followed.whole(NAME, 7)
    assert (shown["n"], shown["content"]["text"], shown["content"]["cut"]) == (7, long, False)
    assert workers.asked[-1]["start"] == 7
    workers.answer = {"messages": [], "total": 8}
    with pytest.raises(Refusal, match="no such message"):
        followed.whole(NAME, 8)


def test_what_a_worker_says_of_itself_is_taken_only_in_its_shape(followed, workers):
    workers.answer = {
        "messages": {"no": "list"}, "stage": ["\u202e" * 1000], "attempt": "many", "total": -1,
    }  # fmt: skip
    said = followed.after(NAME, 0)
    assert (said["attempt"], said["total"], said["messages"]) == (2, 0, [])
    assert isinstance(said["stage"], str)
    assert len(said["stage"]) < 1000
    assert "\u202e" not in said["stage"]


def test_questions_that_no_worker_is_asked_are_not_counted(followed, workers, monkeypatch):
    monkeypatch.setattr(transcripts, "QUESTIONS_PER_S", 1)
    workers.answer = {"messages": []}
    for _ in range(3):
        with pytest.raises(Refusal, match="does not know"):
            followed.after("run.none.0", 0)
    assert followed.after(NAME, 0)["source"] == "worker"
