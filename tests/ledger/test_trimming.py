"""What everybody has read is deleted with its bodies, and nothing else ever is."""

from __future__ import annotations

import itertools
import time

import pytest
from ledger_steps import begin, enqueue, publish
from records import make_job, make_record

from hermes_queue.errors import RedisFull
from hermes_queue.results import trimming
from hermes_queue.results.archive import ArchiveSink
from hermes_queue.results.filters import GroupFilter
from hermes_queue.results.trimming import trim
from hermes_queue.settings import ResultSettings

NOW = ResultSettings(retention_s=0, abandoned_after_s=0.001)


def published(ledger, count):
    jobs = [make_job(instance=f"i{n}") for n in range(count)]
    enqueue(ledger, *jobs)
    for job in jobs:
        begin(ledger, job)
        publish(ledger, make_record(job))
    return jobs


def read(ledger, group, count, *, ack, durable="1"):
    """Let a consumer group read `count` entries and acknowledge the first `ack` of them."""
    client = ledger.client
    if not client.exists(f"hq:consumer-group:{group}"):
        client.xgroup_create("hq:results", group, id="0", mkstream=True)
        client.hset(f"hq:consumer-group:{group}", "durable", durable)
    if count:
        [[_, entries]] = client.xreadgroup(group, "c", {"hq:results": ">"}, count=count)
        for entry_id, _ in entries[:ack]:
            client.xack("hq:results", group, entry_id)


def trimmed(ledger, settings=NOW):
    ledger.client.delete("hq:results:trimmed")
    return trim(ledger, settings, interval_s=10)


def test_results_wait_for_their_first_reader(ledger):
    published(ledger, 2)
    assert trimmed(ledger).entries == 0
    assert ledger.client.xlen("hq:results") == 2


def test_entries_go_with_their_bodies_when_every_group_has_acknowledged_them(ledger):
    jobs = published(ledger, 3)
    read(ledger, "fast", 3, ack=3)
    read(ledger, "slow", 2, ack=1)
    assert trimmed(ledger).entries == 1
    exists = [ledger.client.exists(f"hq:body:{job.trajectory_id}") for job in jobs]
    assert exists == [0, 1, 1]
    assert ledger.client.xlen("hq:results") == 2


def test_a_group_that_has_read_nothing_holds_everything(ledger):
    published(ledger, 2)
    read(ledger, "fast", 2, ack=2)
    read(ledger, "late", 0, ack=0)
    assert trimmed(ledger).entries == 0


def test_the_count_of_bytes_follows(ledger):
    published(ledger, 2)
    assert int(ledger.client.get("hq:results:bytes")) > 0
    read(ledger, "fast", 2, ack=2)
    assert trimmed(ledger).entries == 2
    assert int(ledger.client.get("hq:results:bytes")) == 0


def test_young_entries_stay_for_the_retention(ledger):
    published(ledger, 1)
    read(ledger, "fast", 1, ack=1)
    assert trimmed(ledger, ResultSettings(retention_s=60)).entries == 0


@pytest.mark.parametrize("limit", ["groups", "bytes"])
def test_at_the_soft_limit_what_everybody_has_read_is_not_kept_for_the_retention(ledger, limit):
    published(ledger, 2)
    read(ledger, "fast", 2, ack=1)
    full = ResultSettings(retention_s=3600, **{f"soft_max_{limit}": 1})
    assert trimmed(ledger, full).entries == 1


def test_a_group_that_is_not_durable_and_reads_nothing_is_not_waited_for(ledger):
    published(ledger, 2)
    read(ledger, "trainer", 2, ack=2)
    read(ledger, "viewer", 1, ack=0, durable="0")
    assert trimmed(ledger, ResultSettings(retention_s=0)).entries == 0
    time.sleep(0.01)  # it has read nothing for more than a millisecond
    done = trimmed(ledger)
    assert (done.entries, done.abandoned) == (2, ("viewer",))


def test_the_fleet_trims_once_per_interval(ledger):
    published(ledger, 1)
    assert trim(ledger, NOW, interval_s=10) is not None
    assert trim(ledger, NOW, interval_s=10) is None


@pytest.mark.parametrize("limit", ["groups", "bytes"])
def test_above_the_soft_limit_no_new_group_begins_but_open_ones_go_on(ledger, limit):
    ledger._results = ResultSettings(**{f"soft_max_{limit}": 1})
    pair = [make_job(instance="open", sample=n, size=2) for n in range(2)]
    new = make_job(instance="new")
    enqueue(ledger, *pair, new)
    begin(ledger, pair[0])
    other = make_job(instance="other")
    enqueue(ledger, other)
    begin(ledger, other)
    publish(ledger, make_record(other))
    assert begin(ledger, new).verdict == "held"
    assert begin(ledger, pair[1]).verdict == "run"
    assert ledger.client.hget(f"hq:traj:{new.trajectory_id}", "attempt") == b"1"
    assert ledger.client.zscore("hq:delayed", new.trajectory_id) is not None


@pytest.mark.parametrize("limit", ["groups", "bytes"])
def test_above_the_hard_limit_nothing_is_published_until_there_is_room(ledger, limit):
    jobs = [make_job(instance=f"i{n}") for n in range(2)]
    enqueue(ledger, *jobs)
    for job in jobs:
        begin(ledger, job)
    publish(ledger, make_record(jobs[0]))
    ledger._results = ResultSettings(**{f"soft_max_{limit}": 1, f"hard_max_{limit}": 1})
    with pytest.raises(RedisFull, match="acknowledged"):
        publish(ledger, make_record(jobs[1]))
    assert ledger.run_status("run").running == 1
    read(ledger, "trainer", 1, ack=1)
    trimmed(ledger)
    assert publish(ledger, make_record(jobs[1])) == "group"


FILTERS = {
    "run_id": ("other", "run"),
    "env": ("other", "gsm8k"),
    "complete": (None, True),
    "min_mean": (0.9, 0.1),
    "max_mean": (0.1, 0.9),
    "min_std": (0.9, 0.1),
}
"""Two values of each condition; a group of the run `run` passes some."""


@pytest.mark.parametrize(
    "conditions",
    [dict(zip(FILTERS, each, strict=True)) for each in itertools.product(*FILTERS.values())][::7],
    ids=str,
)
def test_a_filter_holds_back_exactly_what_it_takes(ledger, conditions):
    pair = [make_job(instance="pair", sample=n, size=2) for n in range(2)]
    enqueue(ledger, *pair)
    for job in pair:
        begin(ledger, job)
        publish(ledger, make_record(job, float(job.sample_index)))
    filtered = GroupFilter(**conditions)
    read(ledger, "trainer", 1, ack=1)
    read(ledger, "filtered", 0, ack=0)
    ledger.client.hset("hq:consumer-group:filtered", "filter", filtered.stored())
    [(_, fields)] = ledger.client.xrange("hq:results")
    takes = filtered.takes({name.decode(): value.decode() for name, value in fields.items()})
    assert trimmed(ledger).entries == (0 if takes else 1)


def test_the_reader_of_a_finished_training_holds_only_its_own_run(ledger):
    for run in ("old", "new"):
        for instance in ("a", "b"):
            job = make_job(run, instance)
            enqueue(ledger, job)
            begin(ledger, job)
            publish(ledger, make_record(job))
    read(ledger, "archive", 4, ack=4)
    read(ledger, "finished", 0, ack=0)
    ledger.client.hset("hq:consumer-group:finished", "filter", '{"run_id": "old"}')
    assert trimmed(ledger).entries == 2
    left = [fields[b"run_id"] for _, fields in ledger.client.xrange("hq:results")]
    assert left == [b"old", b"old"]


@pytest.mark.parametrize("archived", [False, True])
def test_what_is_behind_more_held_entries_than_a_call_looks_at_goes_too(
    ledger, monkeypatch, tmp_path, archived
):
    monkeypatch.setattr(trimming, "_BATCH", 2)
    for n in range(8):
        job = make_job("old" if n < 5 else "new", f"i{n}")
        enqueue(ledger, job)
        begin(ledger, job)
        publish(ledger, make_record(job))
    read(ledger, "archive", 8, ack=8)
    read(ledger, "finished", 0, ack=0)
    ledger.client.hset("hq:consumer-group:finished", "filter", '{"run_id": "old"}')
    archive = ArchiveSink(tmp_path) if archived else None
    calls = [trim(ledger, NOW, interval_s=0, archive=archive) for _ in range(6)]
    assert sum(done.entries for done in calls) == 3
    assert ledger.client.xlen("hq:results") == 5
    read(ledger, "finished", 5, ack=5)
    calls = [trim(ledger, NOW, interval_s=0, archive=archive) for _ in range(6)]
    assert sum(done.entries for done in calls) == 5
