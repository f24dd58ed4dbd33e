"""What the scripts refuse before they change anything."""

from __future__ import annotations

import numpy
import pytest
import redis
from ledger_steps import begin, enqueue, publish
from pydantic import ValidationError
from records import make_job, make_record

from hermes_queue.errors import ConfigurationError
from hermes_queue.ledger import Claim, Spent
from hermes_queue.ledger.budgets import set_budgets
from hermes_queue.ledger.fleet.tally import Tally
from hermes_queue.models import AttemptRecord, Failure, GroupPolicy, TrajectoryJob, Usage


def everything(ledger):
    client = ledger.client
    return {key: client.dump(key) for key in client.scan_iter("*")}


@pytest.mark.parametrize(
    ("spent", "used_s"),
    [
        (Spent(cost_usd=float("inf")), 0.0),
        (Spent(cost_usd=float("nan")), 0.0),
        (Spent(tokens=10**400), 0.0),
        (Spent(), float("inf")),
    ],
)
def test_a_job_that_is_given_back_with_a_sum_that_cannot_be_keeps_its_place(ledger, spent, used_s):
    job = make_job()
    enqueue(ledger, job)
    claim = Claim(job.trajectory_id, begin(ledger, job).epoch)
    failure = Failure(cause="model", stage="agent", type="X", message="x")
    attempt = AttemptRecord(attempt=1, epoch=1, failure=failure)
    before = everything(ledger)
    with pytest.raises(redis.ResponseError, match=r"NUMBER .* nothing was changed"):
        ledger.requeue(claim, owner="w1", spent=spent, used_s=used_s, failed_attempt=attempt)
    assert everything(ledger) == before
    assert ledger.requeue(claim, owner="w1", spent=Spent(tokens=3), used_s=-1e-9)
    assert begin(ledger, job).verdict == "run"


def test_a_record_with_a_sum_that_cannot_be_changes_nothing_when_it_is_published(ledger):
    job = make_job()
    enqueue(ledger, job)
    begin(ledger, job)
    record, before = make_record(job), everything(ledger)
    for wrong in (
        {"usage": Usage(prompt_tokens=2**62)},
        {"usage": Usage(prompt_tokens=1), "cost_usd": float("inf")},
        {"epoch": 2**63},
    ):
        with pytest.raises(redis.ResponseError, match="NUMBER"):
            publish(ledger, record.model_copy(update=wrong))
        assert everything(ledger) == before
    assert publish(ledger, record.model_copy(update={"score": numpy.float64(0.5)})) == "group"


def test_other_numbers_are_refused_before_anything_is_counted(ledger):
    with pytest.raises(redis.ResponseError, match="NUMBER tokens is nan"):
        set_budgets(ledger, "run", {"cost_usd": 5.0, "tokens": float("nan")})
    with pytest.raises(redis.ResponseError, match="NUMBER ended:b"):
        Tally(ledger).add(attempts={"": 1}, ended={"a": 1, "b": 2**70})
    assert everything(ledger) == {}


def test_a_job_belongs_to_the_run_that_its_ids_name(ledger):
    victim = make_job("qwen2.5-grpo")
    enqueue(ledger, victim)
    stranger = {**victim.model_dump(), "run_id": "qwen2"}
    with pytest.raises(ValidationError, match=r"<run_id>.<digest> without dots"):
        TrajectoryJob.model_validate(stranger)
    before = everything(ledger)
    for wrong in (
        {"run_id": "qwen2"},
        {"trajectory_id": f"{victim.group_id}.x"},
        {"group_id": "qwen2.5-grpo.other"},
    ):
        unchecked = victim.model_copy(update=wrong)
        with pytest.raises(ConfigurationError, match=r"is not <run_id>.<digest>.<sample_index>"):
            ledger.enqueue(unchecked.run_id, [unchecked], config=None)
    assert everything(ledger) == before


def test_a_sample_that_its_group_does_not_have_is_refused(ledger):
    with pytest.raises(ValidationError, match=r"sample_index 5: .* has the samples 0 to 1"):
        make_job(sample=5, group_policy=GroupPolicy(extra_samples=1))
    spare = make_job(sample=1, group_policy=GroupPolicy(max_refills=2))
    with pytest.raises(ConfigurationError, match=r"sample_index of .* make 1 samples"):
        enqueue(ledger, spare)
    assert everything(ledger) == {}


@pytest.mark.parametrize(
    ("other", "expected"),
    [({"extra_samples": 2}, "number of samples: .* make 2"), ({"max_refills": 3}, "group_policy")],
)
def test_jobs_of_one_group_agree_in_its_policy(ledger, other, expected):
    first, second = (make_job(sample=n, size=2) for n in range(2))
    differing = second.model_copy(update={"group_policy": GroupPolicy(**other)})
    with pytest.raises(ConfigurationError, match=expected):
        ledger.enqueue("run", [first, differing], config=None)
    assert everything(ledger) == {}
    enqueue(ledger, first)
    with pytest.raises(ConfigurationError, match=f"{expected}.* new run id"):
        ledger.enqueue("run", [differing], config=None)
    assert len(enqueue(ledger, second)) == 1


def test_samples_that_the_policy_added_do_not_make_a_group_another(ledger):
    first, second = (
        make_job(sample=n, size=2, group_policy=GroupPolicy(max_refills=1)) for n in range(2)
    )
    enqueue(ledger, first)
    begin(ledger, first)
    publish(ledger, make_record(first, None))
    assert len(enqueue(ledger, first, second)) == 1
