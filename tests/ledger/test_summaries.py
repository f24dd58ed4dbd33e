"""Summaries of the members in the entry of their group."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from ledger_steps import begin, enqueue, publish
from records import make_job, make_record

from hermes_queue.bodies.summary import SUMMARY_BYTES_MAX, member_summaries, summary_of
from hermes_queue.ledger import Ledger
from hermes_queue.models import AgentSpec, GroupPolicy, ScoredTrajectory, ToolCallCounts, Usage
from hermes_queue.results.stored import StoredGroup, stored_group


def record(**changes: Any) -> ScoredTrajectory:
    return make_record(make_job()).model_copy(update=changes)


def entry(ledger: Ledger) -> dict[str, str]:
    [(_, raw)] = ledger.client.xrange("hq:results")
    return {name.decode(): value.decode() for name, value in raw.items()}


def start(ledger: Ledger, size: int, **policy: Any) -> list[Any]:
    rules = GroupPolicy(**policy)
    jobs = [make_job(sample=n, size=size, group_policy=rules) for n in range(size)]
    enqueue(ledger, *jobs)
    for job in jobs:
        begin(ledger, job)
    return jobs


def kept(ledger: Ledger, job: Any) -> list[bytes]:
    return [n for n in ledger.client.hkeys(f"hq:group:{job.group_id}") if n.startswith(b"s:")]


def test_an_entry_sums_up_its_members_in_their_order(ledger: Ledger) -> None:
    jobs = start(ledger, 3)
    for job in reversed(jobs):
        publish(ledger, make_record(job, float(job.sample_index)))
    found = member_summaries(entry(ledger))
    assert [each["score"] for each in found] == [0.0, 1.0, 2.0]
    assert [each.get("sample", 0) for each in found] == [0, 1, 2]
    assert {each["status"] for each in found} == {"completed"}
    assert kept(ledger, jobs[0]) == []


def test_a_failed_member_says_why(ledger: Ledger) -> None:
    jobs = start(ledger, 2)
    publish(ledger, make_record(jobs[0], 1.0))
    publish(ledger, make_record(jobs[1], None))
    [_, failed] = member_summaries(entry(ledger))
    assert (failed["cause"], failed["stage"], failed["status"]) == ("sandbox", "setup", "failed")
    assert "score" not in failed


def test_a_stale_member_leaves_with_its_summary(ledger: Ledger) -> None:
    jobs = start(ledger, 2, max_policy_lag=0, on_stale="requeue", max_requeues=1)
    publish(ledger, make_record(jobs[0], 1.0, policy="1"))
    assert kept(ledger, jobs[0]) == [b"s:0"]
    ledger.client.hset("hq:run:run", "policy_version", 2)
    assert publish(ledger, make_record(jobs[1], 1.0, policy="2")) == "ok"
    assert kept(ledger, jobs[0]) == [b"s:1"]


def test_a_repeated_publication_changes_no_summary(ledger: Ledger) -> None:
    [job] = start(ledger, 1)
    publish(ledger, make_record(job, 1.0))
    before = entry(ledger)
    assert publish(ledger, make_record(job, 0.0)) == "final"
    assert entry(ledger) == before


def test_a_member_that_an_older_worker_published_has_none(ledger: Ledger) -> None:
    jobs = start(ledger, 2)
    publish(ledger, make_record(jobs[0]))
    ledger.client.hdel(f"hq:group:{jobs[0].group_id}", "s:0")
    publish(ledger, make_record(jobs[1]))
    first, second = member_summaries(entry(ledger))
    assert first is None
    assert second["status"] == "completed"


def test_a_large_group_has_an_entry_of_bounded_size(ledger: Ledger) -> None:
    jobs = start(ledger, 100)
    much = {"flags": [f"{n} {'x' * 80}" for n in range(9)], "reason": "y" * 900}
    for job in jobs:
        publish(ledger, make_record(job).model_copy(update={"report": much}))
    text = entry(ledger)["summaries"]
    assert len(text) < (64 << 10) + 100 * 5
    assert member_summaries(entry(ledger))[-1] is None
    assert member_summaries(entry(ledger))[0]["reason"] == "y" * 80


def test_readers_take_an_entry_with_summaries_and_one_without(ledger: Ledger) -> None:
    [job] = start(ledger, 1)
    publish(ledger, make_record(job))
    [(_, raw)] = ledger.client.xrange("hq:results")
    stored = stored_group(ledger.client, "hq:", raw)
    without = {name: text for name, text in stored.fields.items() if name != "summaries"}
    assert StoredGroup(without, stored.bodies).group() == stored.group()
    assert member_summaries(without) == [None]


@pytest.mark.parametrize("text", ["", "{", "[1]", "[{}, {}]", "7", "[" * 100_000])
def test_odd_summaries_of_an_entry_are_none(text: str) -> None:
    assert member_summaries({"members": '["a"]', "summaries": text}) == [None]


def test_a_score_of_0_is_among_the_first_facts_and_never_left_out() -> None:
    much = {"flags": ["\N{SNOWMAN}" * 80] * 6, "reason": "\N{SNOWMAN}" * 80}
    text = summary_of(record(score=0.0, report=much))
    assert len(text) <= SUMMARY_BYTES_MAX
    assert list(json.loads(text))[:3] == ["status", "stop_reason", "score"]
    assert "flags" not in json.loads(text)


def test_a_summary_has_what_an_index_lists() -> None:
    full = record(
        agent=AgentSpec(kind="openai", model="m"),
        tool_calls=ToolCallCounts(attempted=4, schema_valid=3, ok=2, error=1),
        usage=Usage(prompt_tokens=10, completion_tokens=5),
        cost_usd=0.125,
        stage_seconds={"agent": 1.23456, "verify": 2.0},
        report={
            "reason": "tests_fail",
            "tests_status": {"FAIL_TO_PASS": {"failure": 2}, "PASS_TO_PASS": {"failure": 1}},
            "patch_bytes": 77,
            "flags": ["calls: history"],
            "dropped_count": 1,
        },
        created=1234.5678,
    )
    assert json.loads(summary_of(full)) == {
        "status": "completed",
        "stop_reason": "no_tool_call",
        "score": 1.0,
        "attempts": 1,
        "turns": 1,
        "messages": 2,
        "calls": {"attempted": 4, "schema_valid": 3, "ok": 2, "error": 1},
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "cost": 0.125,
        "created": 1234.568,
        "seconds": {"agent": 1.23, "verify": 2.0},
        "agent": "openai",
        "model": "m",
        "reason": "tests_fail",
        "tests_failed": 3,
        "patch_bytes": 77,
        "dropped": 1,
        "flags": ["calls: history"],
    }


ODD = [1, "x", None, [], [1], {"a": 1}, math.inf, -1, 10**30, True, "\ud800\x00" * 999]


@pytest.mark.parametrize("value", ODD, ids=[str(n) for n in range(len(ODD))])
def test_whatever_a_report_holds_its_summary_is_small_json(value: Any) -> None:
    names = ("reason", "tests_status", "tests", "patch_bytes", "flags", "dropped_count")
    report = dict.fromkeys(names, value) | {"tests": {"failed": {"names": value, "more": value}}}
    text = summary_of(record(report=report, stage_seconds={"agent": math.inf}, cost_usd=math.nan))
    assert len(text) <= SUMMARY_BYTES_MAX
    assert text.isascii()
    assert json.loads(text)["status"] == "completed"
