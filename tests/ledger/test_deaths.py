"""Whom the death of a worker is held against, and how suspects are told apart."""

from __future__ import annotations

import time

from ledger_steps import SWEEP, age_lease, begin, enqueue, swept
from records import make_job

from hermes_queue.keyspace.deployment import LEFT_TO_PARENT
from hermes_queue.queues import queue_name

BOOT = "0b1c"


def live(ledger, owner, boot=BOOT, **facts):
    ledger.beat(owner, {}, ttl_s=30, boot_id=boot, **facts)


def held(ledger, job):
    names = ("lane", "deaths", "quarantine_deaths", "unseen_deaths")
    lane, *counts = ledger.client.hmget(f"hq:traj:{job.trajectory_id}", names)
    return lane.decode(), *(int(count or 0) for count in counts)


def start(ledger, owner, jobs):
    """`owner` runs them all; the beat that says so is long ago."""
    live(ledger, owner)
    assert {begin(ledger, job, owner=owner).verdict for job in jobs} == {"run"}


def outlive(ledger, owner):
    """Its host has been heard of, long after the worker was."""
    ledger.client.hset(f"hq:life:{owner}", "seen", time.time() - 60)
    live(ledger, "sibling")


def kill(ledger, owner, jobs):
    start(ledger, owner, jobs)
    outlive(ledger, owner)
    for job in jobs:
        age_lease(ledger, job)
    assert len(ledger.sweep(**SWEEP)) == len(jobs)


def test_suspects_share_ever_smaller_batches_and_only_the_last_death_is_their_own(ledger):
    jobs = [make_job(instance=f"i{n}") for n in range(20)]
    enqueue(ledger, *jobs)
    swept(ledger)
    kill(ledger, "w1", jobs)
    assert {held(ledger, job) for job in jobs} == {("train", 1, 0, 0)}
    kill(ledger, "w2", jobs)
    assert {held(ledger, job) for job in jobs} == {("train.quarantine-16", 2, 0, 0)}
    kill(ledger, "w3", jobs[:10])
    assert {held(ledger, job)[0] for job in jobs[:10]} == {"train.quarantine-4"}
    assert {held(ledger, job)[0] for job in jobs[10:]} == {"train.quarantine-16"}
    kill(ledger, "w4", jobs[:4])
    assert {held(ledger, job) for job in jobs[:4]} == {("train.quarantine", 2, 0, 0)}
    assert not queue_name("train.quarantine-16").endswith(".quarantine")


def test_a_death_alone_counts_in_full_when_a_living_parent_saw_it_and_else_a_third(ledger):
    [job] = enqueue(ledger, make_job())
    swept(ledger)
    for n in range(2):
        kill(ledger, f"w{n}", [job])
    assert held(ledger, job)[0] == "train.quarantine"
    start(ledger, "child", [job])
    assert ledger.worker_ended("child", boot_id=BOOT, witnessed=True) == 1
    assert ledger.sweep(**SWEEP) == [job.trajectory_id]
    assert held(ledger, job)[2:] == (1, 0)
    for n in range(3):
        kill(ledger, f"both{n}", [job])
    assert held(ledger, job)[2:] == (1, 3)
    assert begin(ledger, job).deaths == 2


def test_the_death_of_a_child_is_left_to_its_parent_while_that_lives(ledger):
    [job] = enqueue(ledger, make_job())
    swept(ledger)
    for n in range(2):
        kill(ledger, f"w{n}", [job])
    live(ledger, "parent")
    for n in range(2):
        live(ledger, f"child{n}", parent="parent")
        assert begin(ledger, job, owner=f"child{n}").verdict == "run"
        assert ledger.worker_ended(f"child{n}", boot_id=BOOT) == LEFT_TO_PARENT
        assert ledger.sweep(**SWEEP) == []
        if n == 0:
            assert ledger.worker_ended("child0", boot_id=BOOT, witnessed=True) == 1
        else:
            assert ledger.worker_ended("parent", boot_id=BOOT) == 0
            assert ledger.worker_ended("child1", boot_id=BOOT) == 1
        assert ledger.sweep(**SWEEP) == [job.trajectory_id]
        assert held(ledger, job)[2:] == (1, n)


def test_neither_a_reboot_nor_a_worker_that_was_shutting_down_is_held_against_anybody(ledger):
    [job] = enqueue(ledger, make_job())
    swept(ledger)
    for n in range(5):
        start(ledger, f"told{n}", [job])
        live(ledger, f"told{n}", shutting_down=True)
        outlive(ledger, f"told{n}")
        age_lease(ledger, job)
        assert ledger.sweep(**SWEEP) == [job.trajectory_id]
    for n in range(5):
        live(ledger, f"boot{n}", boot=f"boot{n}")
        assert begin(ledger, job, owner=f"boot{n}").verdict == "run"
        live(ledger, "after-the-reboot", boot=f"boot{n + 1}")
        age_lease(ledger, job)
        assert ledger.sweep(**SWEEP) == [job.trajectory_id]
    assert held(ledger, job) == ("train", 0, 0, 0)
    assert begin(ledger, job).deaths == 0


def test_three_reboots_publish_no_job_that_runs_alone(ledger):
    [job] = enqueue(ledger, make_job())
    swept(ledger)
    for n in range(2):
        kill(ledger, f"w{n}", [job])
    for n in range(3):
        live(ledger, f"child{n}", boot=f"boot{n}")
        begin(ledger, job, owner=f"child{n}")
        age_lease(ledger, job)
        assert ledger.sweep(**SWEEP) == [job.trajectory_id]
    assert begin(ledger, job).deaths == 0


def test_a_death_in_doubt_is_held_against_the_job_once_its_host_is_heard_of_again(ledger):
    [job] = enqueue(ledger, make_job())
    swept(ledger)
    start(ledger, "w1", [job])
    ledger.client.hset("hq:life:w1", "seen", time.time() - 60)
    ledger.client.set(f"hq:boot:{BOOT}", time.time() - 60)
    age_lease(ledger, job)
    assert ledger.sweep(**SWEEP) == [job.trajectory_id]
    assert held(ledger, job) == ("train", 0, 0, 0)
    kill(ledger, "w2", [job])
    assert held(ledger, job)[:2] == ("train.quarantine", 2)


def test_jobs_of_a_worker_that_is_found_dead_wait_for_no_lease_even_after_an_outage(ledger):
    job, other = jobs = [make_job(instance=name) for name in ("mine", "other")]
    enqueue(ledger, *jobs)
    start(ledger, "dead", [job])
    start(ledger, "alive", [other])
    assert ledger.worker_ended("dead", boot_id="another host") == -1
    assert ledger.worker_ended("dead", boot_id="") == -1
    assert ledger.worker_ended("dead", boot_id=BOOT) == 1
    assert ledger.worker_ended("dead", boot_id=BOOT) == 0
    assert ledger.sweep(**SWEEP) == []  # the first after a gap grants grace, but not to the dead
    assert ledger.sweep(**SWEEP) == [job.trajectory_id]
    assert held(ledger, job)[:2] == ("train", 1)
    assert {key: ledger.client.ttl(key) > 0 for key in ledger.client.scan_iter("hq:life:*")} == {
        b"hq:life:dead": True,
        b"hq:life:alive": True,
    }


def lapse(ledger, owner, job, *, silent_s=0.0):
    """`owner` lives on, and renews everything but this lease."""
    live(ledger, owner)
    begun = begin(ledger, job, owner=owner)
    for key, field in ((f"hq:life:{owner}", "seen"), (f"hq:boot:{BOOT}", None)):
        seen = time.time() - silent_s
        ledger.client.hset(key, field, seen) if field else ledger.client.set(key, seen)
    age_lease(ledger, job)
    assert ledger.sweep(**SWEEP) == [job.trajectory_id]
    live(ledger, owner)
    return begun


def test_a_job_whose_lease_lapses_under_workers_that_live_ends_like_poison(ledger):
    [job] = enqueue(ledger, make_job())
    swept(ledger)
    deaths = [lapse(ledger, "w1", job).deaths for _ in range(8)]
    assert deaths == [0, 0, 0, 0, 1, 2, 3, 4]  # of each lapse it is known with the next
    assert held(ledger, job)[:2] == ("train.quarantine", 2)


def test_nothing_is_held_against_the_job_of_a_worker_that_was_stopped_and_goes_on(ledger):
    [job] = enqueue(ledger, make_job())
    swept(ledger)
    for n in range(40):
        lapse(ledger, f"w{n}", job, silent_s=30)
    assert held(ledger, job) == ("train", 0, 0, 0)
    kept = ledger.client.hmget(f"hq:traj:{job.trajectory_id}", "died", "doubts")
    assert [text.count(b"\n") for text in kept] == [32, 1]
