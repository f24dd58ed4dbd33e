"""What a failed attempt leaves for the record of the one that counts: bounded, clean, complete."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from records import make_job, make_record

from hermes_queue.bodies import codec
from hermes_queue.errors import ModelError
from hermes_queue.ledger.attempts import packed, unpacked
from hermes_queue.models import AttemptRecord, Failure, Message, Turn, Usage
from hermes_queue.settings import RetrySettings
from workers.draft import Draft
from workers.evidence import attempt_record
from workers.record import encoded

CAP_BYTES = 2000
FAILURE = Failure(cause="model", stage="agent", type="ModelError", message="503")


def drafted(*contents: str) -> Draft:
    draft = Draft(make_job(), 2, 5, queued_at=100.0, begun_at=103.5)
    draft.agent.messages = [Message(role="user", content=text) for text in contents]
    draft.agent.turns = [Turn(usage=Usage(prompt_tokens=7, completion_tokens=3))]
    draft.sandbox_id = "box"
    return draft


def kept(draft: Draft, cap_bytes: int = CAP_BYTES) -> AttemptRecord:
    retry = RetrySettings(evidence_bytes=cap_bytes)
    worker = SimpleNamespace(host="here", owner="here-1", retry=retry)
    failure = ModelError("503")
    failure.stage = "agent"
    return attempt_record(draft, failure, worker)  # type: ignore[arg-type]


def texts(record: AttemptRecord) -> list[str | None]:
    return [message.content for message in record.messages]


def travelled(record: AttemptRecord) -> AttemptRecord:
    facts, transcript = packed(record)
    [found] = unpacked([f"{facts}\t{transcript}".encode()])
    return found


def test_a_failed_attempt_keeps_transcript_tokens_host_and_its_wait() -> None:
    record = travelled(kept(drafted("do it", "done")))
    assert texts(record) == ["do it", "done"]
    assert (record.attempt, record.epoch, record.failure) == (2, 5, FAILURE)
    assert record.usage == Usage(prompt_tokens=7, completion_tokens=3)
    assert (record.host, record.worker, record.sandbox_id) == ("here", "here-1", "box")
    assert (record.begun_at, record.stage_seconds) == (103.5, {"queue": 3.5})
    assert record.message_count == 2


def test_of_a_long_transcript_the_newest_part_is_kept() -> None:
    contents = [codec.item_sha256({"n": n}) for n in range(200)]  # does not compress
    record = kept(drafted(*contents))
    assert 0 < len(record.messages) < 60
    assert texts(record) == contents[-len(record.messages) :]
    assert record.message_count == 200
    assert len(packed(record)[1]) <= CAP_BYTES


def test_text_that_packs_to_nothing_is_bounded_by_what_it_unpacks_to() -> None:
    record = kept(drafted(*["0" * 1000] * 500))
    assert len(record.messages) <= 16 * CAP_BYTES / 1000
    assert record.message_count == 500


@pytest.mark.parametrize("contents", [["0" * 10**6], ["\ud800"]], ids=["too long", "unencodable"])
def test_a_transcript_that_cannot_be_kept_costs_nothing_else(contents: list[str]) -> None:
    record = travelled(kept(drafted(*contents)))
    assert (record.messages, record.message_count) == ((), 1)
    assert record.failure.message == "503"


def test_without_room_no_transcript_is_kept() -> None:
    assert kept(drafted("do it"), cap_bytes=0).messages == ()


def test_secrets_are_gone_before_the_ledger_has_it() -> None:
    record = kept(drafted("my key is sk-proj-abcdefghij0123456789"))
    assert texts(record) == ["my key is ***"]


def test_attempts_that_an_older_version_wrote_are_read_and_damaged_ones_passed_over() -> None:
    plain = AttemptRecord(attempt=1, epoch=1, failure=FAILURE, stage_seconds={"load": 0.5})
    old = plain.model_dump_json().encode()
    torn = packed(kept(drafted("do it")))[0].encode() + b"\t!!!"
    found = unpacked([old, b"{}", torn])
    assert found[0] == plain
    assert [texts(record) for record in found] == [[], []]


def test_transcripts_of_failed_attempts_give_way_to_the_record_that_counts() -> None:
    many = tuple(codec.item_sha256({"n": n}) for n in range(300))
    failed = kept(drafted(*many), cap_bytes=60_000)
    record = make_record(make_job()).model_copy(update={"attempts": (failed,)})
    whole, body = encoded(record, 100_000)
    assert len(whole.attempts[0].messages) == 300
    small, body = encoded(record, 2_000)
    assert (small.score, len(body) <= 2_000) == (1.0, True)
    assert (small.attempts[0].messages, small.attempts[0].message_count) == ((), 300)
