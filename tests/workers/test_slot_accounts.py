"""A worker divides the time of each lease, and prices its slot."""

from __future__ import annotations

from typing import cast

import pytest
from records import make_job, make_record

from hermes_queue.errors import RedisUnavailable
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.accounts.goodput import goodput_of_run
from hermes_queue.models import AttemptRecord, Failure, Turn, Usage
from hermes_queue.sandbox.base import Slot, SlotSpec
from hermes_queue.settings import PriceSettings
from workers.draft import Draft
from workers.goodput.division import divided
from workers.goodput.rent import Rent
from workers.goodput.reports import SlotReports


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
