"""A worker divides the time of each lease, and prices its slot."""

from __future__ import annotations

from typing import cast

import pytest
from ledger_steps import enqueue
from records import make_job, make_record

from hermes_queue.errors import RedisUnavailable
from hermes_queue.ledger import Ledger, Runs
from hermes_queue.ledger.accounts.drift import drift_of, set_max_drift
from hermes_queue.ledger.accounts.goodput import goodput_of_run
from hermes_queue.models import AttemptRecord, Failure, ProgramRun, Turn, Usage
from hermes_queue.sandbox.base import Slot, SlotSpec
from hermes_queue.settings import PriceSettings
from workers.draft import Draft
from workers.goodput.rent import Rent
from workers.goodput.reports import SlotReports, divided, drift_in


def draft_of(seconds: float = 100.0, **fields: float) -> Draft:
    draft = Draft(job=make_job(), attempt=1, epoch=1)
    draft.leased_at -= seconds
    draft.clock.stage_seconds.update(fields)
    return draft


def slot(usd_per_s: float | None) -> Slot:
    return Slot("s", "t", "b", "/w", SlotSpec(), usd_per_s=usd_per_s)


def test_each_second_of_a_lease_has_one_account() -> None:
    draft = draft_of(queue=500, load=1, prepare=2, acquire=3, setup=4, agent=50, verify=20)
    draft.clock.stage_seconds["agent_wait"] = 8.0
    draft.agent.waited_s = 5
    draft.agent.turns.extend([Turn(latency_s=15), Turn(latency_s=10)])
    assert divided(draft, 100) == {
        "setup": 10,
        "waiting": 13,
        "model": 25,
        "tools": 20,
        "verify": 20,
        "overhead": 12,
    }


def test_overlapping_calls_and_turns_of_an_earlier_lease_count_no_time_twice() -> None:
    draft = draft_of(agent=30)
    draft.agent.turns.extend([Turn(latency_s=100), Turn(latency_s=25), Turn(latency_s=25)])
    draft.kept_turns, draft.kept_waited_s, draft.agent.waited_s = 1, 7, 9
    assert divided(draft, 31)["model"] == 28
    assert sum(divided(draft, 31).values()) == 31
    assert sum(divided(draft, 12).values()) == 12


@pytest.mark.parametrize(
    ("verdict", "score", "account"),
    [
        ("ok", 1.0, "measured"),
        ("group", None, "failed:sandbox"),
        ("surplus", 1.0, "surplus"),
        ("cancelled", 1.0, "cancelled"),
        ("final", 1.0, None),
        ("stale", None, None),
    ],
)
def test_an_attempt_counts_by_what_became_of_it(ledger: Ledger, verdict, score, account) -> None:
    reports, draft = SlotReports(), draft_of()
    for _ in range(2):  # an answer that is read twice
        reports.published(draft, make_record(draft.job, score), verdict)
    reports.report(ledger, "w1")
    assert goodput_of_run(ledger, "run").attempts == ({account: 1} if account else {})


def test_what_is_handed_back_counts_by_its_cause(ledger: Ledger) -> None:
    failure = Failure(cause="sandbox", stage="setup", type="SandboxError", message="gone")
    reports = SlotReports()
    reports.given_back(draft_of(), AttemptRecord(attempt=1, epoch=1, failure=failure))
    reports.given_back(draft_of(), None)
    reports.given_back(None, None)
    reports.report(ledger, "w1")
    good = goodput_of_run(ledger, "run")
    assert good.attempts == {"retry:sandbox": 1, "handed_over": 1}
    assert good.seconds["retry:sandbox"] == pytest.approx(100, abs=9)


def test_a_report_whose_answer_was_lost_is_repeated_and_counts_once(ledger: Ledger) -> None:
    class Unsure:
        """Redis that counts, and whose first answer is lost."""

        calls = 0

        def call(self, *args, **given):
            self.calls += 1
            ledger.call(*args, **given)
            if self.calls == 1:
                raise RedisUnavailable("gone")

    reports, unsure = SlotReports(), cast(Ledger, Unsure())
    draft = draft_of()
    reports.published(draft, make_record(draft.job), "ok")
    with pytest.raises(RedisUnavailable):
        reports.report(unsure, "w1")
    reports.given_back(draft_of(), None)
    reports.report(unsure, "w1")
    assert goodput_of_run(ledger, "run").attempts == {"measured": 1, "handed_over": 1}


def test_a_slot_costs_while_it_is_held_and_the_cost_is_in_the_record() -> None:
    rent = Rent()
    assert rent.usd == 0
    rent.begin(slot(1000.0))
    rent.end()
    paid = rent.usd
    assert paid > 0
    assert rent.usd == paid
    draft = draft_of()
    draft.rent = rent
    assert draft.spent.cost_usd == paid
    draft.lost = Usage(prompt_tokens=3)  # of a model without a known price
    assert draft.spent.cost_usd is None


def test_slots_without_a_price_cost_nothing() -> None:
    rent = Rent()
    rent.begin(slot(None))
    assert rent.usd == 0


def test_modals_price_is_that_of_what_a_sandbox_reserves() -> None:
    prices = PriceSettings()
    plain = prices.modal_usd_per_s(cpu=2, memory_mb=4096, gpu=None)
    assert plain == pytest.approx(2 * 0.00003942 + 4 * 0.00000667)
    with_gpu = prices.modal_usd_per_s(cpu=2, memory_mb=4096, gpu="h100:2")
    assert with_gpu - plain == pytest.approx(2 * 0.001097)
    unknown = prices.modal_usd_per_s(cpu=2, memory_mb=4096, gpu="Z9")
    assert unknown - plain == pytest.approx(0.001736)


def broken(reason: str, *, program: bool = False, called: bool = False, mode: str = "messages"):
    """A record of two turns, of which the second does not continue the tokens of the first."""
    agent = {"kind": "openai", "params": {"mode": mode}}
    record = make_record(make_job(agent=agent))
    ids = {"prompt_ids": [1], "completion_ids": [2], "logprobs": [-0.5]}
    tree = {"branch": 0} if program else {}
    turns = (
        Turn(**ids, **tree, finish_reason="tool_calls" if called else "stop"),
        Turn(**ids, **(tree | ({"parent": 0} if program else {}))),
    )
    update = {
        "turns": turns,
        "sequences": (),
        "program": ProgramRun.model_construct() if program else None,
        "events": ({"event": "sequence_break", "turn": 1, "reason": reason},),
    }
    return record.model_copy(update=update)


@pytest.mark.parametrize(
    ("record", "reason", "drifted"),
    [
        (broken("reply"), "reply", 1),
        (broken("earlier_turns"), "earlier_turns", 1),
        (broken("history_rewritten"), "history_rewritten", 0),
        (broken("arguments_rewritten"), "arguments_rewritten", 0),
        (broken("reply_cut_off"), "reply_cut_off", 0),
        (broken("reply", called=True), "reply", 1),
        (broken("reply", program=True, called=True), "arguments_reserialised", 0),
        (broken("reply", program=True), "reply", 1),
        (broken("reply", program=True, called=True, mode="tokens"), "reply", 1),
        (broken("x" * 9999), "unknown", 0),
    ],
)
def test_only_what_nobody_meant_is_drift(record, reason: str, drifted: int) -> None:
    assert drift_in(record) == {"turns": 1, reason: 1, "drifted": drifted}


def test_a_run_that_drifts_more_than_it_allows_is_paused(ledger: Ledger) -> None:
    set_max_drift(ledger, "run", 0.1)
    enqueue(ledger, make_job())
    reports = SlotReports()
    for sent in (99, 1):  # a share of less than a hundred turns says nothing
        assert Runs(ledger).paused("run") is None
        for _ in range(sent):
            reports.published(draft_of(), broken("reply"), "ok")
        reports.report(ledger, "w1")
    pause = Runs(ledger).paused("run")
    assert pause is not None
    assert pause.by == "drift"
    assert "100 of 100 turns" in pause.reason
    found = drift_of(ledger, "run")
    assert (found.turns, found.drifted, found.share) == (100, 100, 1.0)
    assert found.reasons == {"reply": 100}


def test_without_a_limit_and_without_token_ids_drift_pauses_nothing(ledger: Ledger) -> None:
    enqueue(ledger, make_job())
    reports = SlotReports()
    for _ in range(120):
        reports.published(draft_of(), broken("reply"), "ok")
    reports.report(ledger, "w1")
    assert Runs(ledger).paused("run") is None
    assert drift_in(make_record(make_job()).model_copy(update={"sequences": None})) == {}


def test_a_score_beyond_all_sums_spoils_no_report_of_others(ledger: Ledger) -> None:
    reports, huge, draft = SlotReports(), draft_of(), draft_of()
    reports.published(huge, make_record(huge.job, 1e300), "ok")
    reports.published(draft, make_record(draft.job, 1.0), "ok")
    reports.report(ledger, "w1")
    assert goodput_of_run(ledger, "run").attempts == {"measured": 2}
