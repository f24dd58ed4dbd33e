"""The list of objects in the store of bodies, on every server the ledger runs on."""

from __future__ import annotations

from ledger_steps import begin, enqueue
from records import make_job, make_record

from hermes_queue.bodies.store import ClaimCheck
from hermes_queue.ledger.fleet.objects import (
    NotedObject,
    note_object,
    objects_gone,
    unneeded_objects,
)

BASE = "s3://bucket/hermes"
AT_ONCE = 1e-6
"""A grace that is over by the next call."""


def noted(job, name: str = "object", base: str = BASE) -> NotedObject:
    return NotedObject(job.trajectory_id, f"{base}/run/{name}")


def publish(ledger, job, name: str = "object") -> str:
    claim = ClaimCheck(noted(job, name).url, "0" * 64, 5)
    return ledger.publish(make_record(job), claim.encode(), owner="w", finished_ttl_s=60)


def begun(ledger, instance: str = "i"):
    job = make_job(instance=instance)
    enqueue(ledger, job)
    begin(ledger, job)
    return job


def test_a_claim_whose_object_is_not_listed_is_not_published(ledger):
    job = begun(ledger)
    before = sorted(ledger.client.keys())
    assert publish(ledger, job) == "unstored"
    assert sorted(ledger.client.keys()) == before
    assert ledger.run_status("run").running == 1
    assert note_object(ledger, noted(job), grace_s=60)
    assert publish(ledger, job) == "group"


def test_an_object_is_kept_for_its_grace_and_while_a_body_names_it(ledger):
    job = begun(ledger)
    assert note_object(ledger, noted(job), grace_s=3600)
    assert note_object(ledger, noted(job, "late"), grace_s=AT_ONCE)
    assert unneeded_objects(ledger, BASE, grace_s=AT_ONCE) == [noted(job, "late")]
    assert note_object(ledger, noted(job), grace_s=AT_ONCE)
    assert publish(ledger, job) == "group"
    assert unneeded_objects(ledger, BASE, grace_s=AT_ONCE) == []
    ledger.client.delete(f"hq:body:{job.trajectory_id}")
    assert unneeded_objects(ledger, BASE, grace_s=AT_ONCE) == [noted(job)]


def test_an_object_that_is_being_deleted_is_neither_noted_nor_published_nor_named_again(ledger):
    job = begun(ledger)
    assert note_object(ledger, noted(job), grace_s=AT_ONCE)
    assert unneeded_objects(ledger, BASE, grace_s=AT_ONCE) == [noted(job)]
    assert not note_object(ledger, noted(job), grace_s=60)
    assert publish(ledger, job) == "unstored"
    assert unneeded_objects(ledger, BASE, grace_s=AT_ONCE) == []
    objects_gone(ledger, [noted(job)])
    assert note_object(ledger, noted(job), grace_s=60)


def test_objects_of_another_store_stay_listed(ledger):
    job = begun(ledger)
    other = noted(job, base="s3://bucket/hermes-of-others")
    assert note_object(ledger, other, grace_s=AT_ONCE)
    assert unneeded_objects(ledger, BASE, grace_s=AT_ONCE) == []
    assert unneeded_objects(ledger, "s3://bucket/hermes-of-others", grace_s=AT_ONCE) == [other]


def test_when_all_objects_are_gone_nothing_is_left_of_the_list(ledger):
    job = begun(ledger)
    assert note_object(ledger, noted(job), grace_s=AT_ONCE)
    objects_gone(ledger, unneeded_objects(ledger, BASE, grace_s=AT_ONCE))
    assert not ledger.client.keys("hq:objects*")
