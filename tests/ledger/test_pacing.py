"""A run that follows its trainer: at most N groups are ahead, and all others wait aside."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from ledger_steps import age_lease, begin, enqueue, publish, swept
from records import make_job, make_record

from hermes_queue.errors import ConfigurationError
from hermes_queue.ledger import Claim, Ledger, Runs
from hermes_queue.ledger.budgets import set_budgets
from hermes_queue.ledger.cancelling import cancel
from hermes_queue.ledger.fleet.pacing import count, pace_of, set_pace, untrained
from hermes_queue.models import GroupPolicy

READERS = ("trainer",)


def groups_of(count, size=1, **fields):
    return [
        [make_job("run", f"i{n}", index, size, **fields) for index in range(size)]
        for n in range(count)
    ]


def enqueued(ledger, count, most, size=1, **fields):
    groups = groups_of(count, size, **fields)
    enqueue(ledger, *(job for group in groups for job in group))
    set_pace(ledger, "run", most, readers=READERS)
    return groups


def release(ledger) -> set[str]:
    """Ids of the jobs that the mover puts back and publishes."""
    ledger.client.hset("hq:run:run", "pace_looked", "0")
    found = set()
    for _ in range(2):
        claim, jobs = ledger.due()
        ledger.published((job.trajectory_id for job in jobs), claim=claim)
        found |= {job.trajectory_id for job in jobs}
    return found


def trained(ledger, *groups, readers=READERS):
    return count(ledger, "run", readers=readers, off=[group[0].group_id for group in groups])


def pace(ledger):
    found = pace_of(ledger, "run")
    return found.ahead, found.held


def ids(*groups):
    return {job.trajectory_id for group in groups for job in group}


def test_no_group_begins_while_as_many_are_ahead_and_the_oldest_one_is_next(ledger):
    first, second, third, fourth = enqueued(ledger, 4, 2)
    assert [begin(ledger, group[0]).verdict for group in (first, second, third, fourth)] == [
        "run",
        "run",
        "paced",
        "paced",
    ]
    assert pace(ledger) == (2, 2)
    assert ledger.backlog() == 0, "they occupy neither the broker nor workers"
    assert release(ledger) == set()
    publish(ledger, make_record(first[0]))
    assert release(ledger) == set(), "finished is not trained"
    assert trained(ledger, first)
    assert trained(ledger, first), "it counts once"
    assert release(ledger) == ids(third)
    assert pace(ledger) == (2, 1)
    assert begin(ledger, fourth[0]).verdict == "paced", "what was let go has its place"
    assert begin(ledger, third[0]).verdict == "run"
    assert pace(ledger) == (2, 1)


def test_samples_of_a_group_begin_together_and_come_back_together(ledger):
    first, second = enqueued(ledger, 2, 1, size=3)
    assert [begin(ledger, job).verdict for job in first] == ["run"] * 3
    assert [begin(ledger, job).verdict for job in second] == ["paced"] * 3
    trained(ledger, first)
    assert release(ledger) == ids(second)
    assert [begin(ledger, job).verdict for job in second] == ["run"] * 3


def test_a_job_that_comes_while_others_wait_does_not_overtake_them(ledger):
    first, second, third = enqueued(ledger, 3, 1)
    begin(ledger, first[0])
    begin(ledger, second[0])
    trained(ledger, first)
    assert begin(ledger, third[0]).verdict == "paced"
    assert release(ledger) == ids(second)


def test_a_begun_group_goes_on_after_the_death_of_its_worker(ledger):
    first, second = enqueued(ledger, 2, 1)
    sweep = swept(ledger)
    begin(ledger, first[0])
    age_lease(ledger, first[0])
    assert sweep() == [first[0].trajectory_id]
    assert begin(ledger, second[0]).verdict == "paced"
    assert begin(ledger, first[0]).verdict == "run"
    assert pace(ledger) == (1, 1)


def test_two_workers_that_ask_at_once_never_pass_the_bound(ledger):
    groups = enqueued(ledger, 40, 5)
    with ThreadPoolExecutor(8) as pool:
        verdicts = list(pool.map(lambda group: begin(ledger, group[0]).verdict, groups))
    assert (verdicts.count("run"), verdicts.count("paced")) == (5, 35)


@pytest.mark.parametrize(
    ("policy", "score"),
    [({"drop_zero_variance": True}, 1.0), ({"on_incomplete": "drop", "max_refills": 0}, None)],
)
def test_a_group_that_its_policy_drops_holds_nobody_back(ledger, policy, score):
    first, second = enqueued(ledger, 2, 1, size=2, group_policy=GroupPolicy(**policy))
    for job in first:
        begin(ledger, job)
    begin(ledger, second[0])
    for job in first:
        publish(ledger, make_record(job, score))
    assert ledger.run_status("run").dropped == 1
    assert release(ledger) == {second[0].trajectory_id}


def test_a_group_that_the_trainer_acknowledged_unsaid_holds_nobody_back(ledger):
    first, second, third = enqueued(ledger, 3, 2)
    stream = "hq:results"
    ledger.client.xgroup_create(stream, "trainer", id="0", mkstream=True)
    for group in (first, second):
        begin(ledger, group[0])
        publish(ledger, make_record(group[0]))
    begin(ledger, third[0])
    [[_, [(entry, _)]]] = ledger.client.xreadgroup("trainer", "c", {stream: ">"}, count=1)
    assert release(ledger) == set(), "one is being trained, the other one was not read"
    ledger.client.xack(stream, "trainer", entry)
    assert release(ledger) == ids(third)
    assert pace(ledger) == (2, 0)


def test_a_group_of_two_readers_is_over_when_both_have_acknowledged_it(ledger):
    first, second = enqueued(ledger, 2, 1)
    set_pace(ledger, "run", 1, readers=("a", "b"))
    begin(ledger, first[0])
    begin(ledger, second[0])
    publish(ledger, make_record(first[0]))
    for name in ("a", "b"):
        assert release(ledger) == set()
        ledger.client.xgroup_create("hq:results", name, id="0")
        [[_, [(entry, _)]]] = ledger.client.xreadgroup(name, "c", {"hq:results": ">"})
        ledger.client.xack("hq:results", name, entry)
    assert release(ledger) == ids(second)


def test_weights_that_a_crash_took_count_again(ledger):
    first, second, third = enqueued(ledger, 3, 1)
    ledger.client.xgroup_create("hq:results", "trainer", id="0", mkstream=True)
    begin(ledger, first[0])
    publish(ledger, make_record(first[0]))
    ledger.client.xreadgroup("trainer", "c", {"hq:results": ">"})
    begin(ledger, second[0])
    trained(ledger, first)
    assert release(ledger) == ids(second)
    begin(ledger, third[0])
    again = list(untrained(ledger, "run", "trainer"))
    assert [group_id for group_id, _ in again] == [first[0].group_id]
    assert count(ledger, "run", readers=READERS, on=again)
    assert pace(ledger) == (2, 1)
    trained(ledger, second)
    assert release(ledger) == set()


def test_an_entry_that_another_program_wrote_is_no_group(ledger):
    ledger.client.xgroup_create("hq:results", "trainer", id="0", mkstream=True)
    ledger.client.xadd("hq:results", {"run_id": "run"})
    assert list(untrained(ledger, "run", "trainer")) == []


def test_a_clock_that_was_set_back_does_not_end_the_looks(ledger):
    first, second = enqueued(ledger, 2, 1)
    begin(ledger, first[0])
    begin(ledger, second[0])
    ledger.client.delete(f"hq:group:{first[0].group_id}")
    ledger.client.hset("hq:run:run", "pace_looked", time.time() + 3600)
    ledger.due()
    assert pace(ledger) == (1, 0)


def test_a_run_with_broken_keys_holds_no_other_run_back(ledger):
    (first,) = groups_of(1)
    ledger.enqueue("run", first, config={})
    ledger.client.zadd("hq:delayed", {first[0].trajectory_id: 1})
    ledger.client.hset("hq:run:bad", "state", "active")
    ledger.client.set("hq:run:bad:held", "")
    ledger.client.zadd("hq:paced", {"bad": 1})
    assert [job.trajectory_id for job in ledger.due()[1]] == [first[0].trajectory_id]


def test_only_the_trainer_that_paces_the_run_counts(ledger):
    first, second = enqueued(ledger, 2, 1)
    begin(ledger, first[0])
    begin(ledger, second[0])
    assert not trained(ledger, first, readers=("another",))
    assert release(ledger) == set()
    set_pace(ledger, "run", 1, readers=("another",))
    assert trained(ledger, first, readers=("another",))
    assert release(ledger) == ids(second)


def test_a_run_paced_by_its_producer_belongs_to_the_first_trainer(ledger):
    first, second = groups_of(2)
    set_pace(ledger, "run", 1)  # before anything is enqueued
    enqueue(ledger, first[0], second[0])
    begin(ledger, first[0])
    begin(ledger, second[0])
    assert trained(ledger, readers=("a",))
    assert not trained(ledger, first, readers=("b",))
    assert trained(ledger, first, readers=("a",))
    assert release(ledger) == ids(second)


def test_off_lets_everything_begin_and_a_run_without_a_pace_knows_nothing_of_it(ledger):
    groups = enqueued(ledger, 3, 1)
    for group in groups:
        begin(ledger, group[0])
    set_pace(ledger, "run", None)
    assert pace_of(ledger, "run") is None
    assert release(ledger) == ids(*groups[1:])
    assert begin(ledger, groups[1][0]).verdict == "run"
    assert not trained(ledger, groups[0])
    assert not ledger.client.exists("hq:run:run:ahead", "hq:run:run:held", "hq:paced")


def test_more_room_lets_more_begin(ledger):
    groups = enqueued(ledger, 4, 1)
    for group in groups:
        begin(ledger, group[0])
    set_pace(ledger, "run", 3)
    assert release(ledger) == ids(*groups[1:3])
    assert pace(ledger) == (3, 1)


def test_a_cancelled_trajectory_that_waited_ends_and_its_group_still_waits(ledger):
    first, second = enqueued(ledger, 2, 1, size=2)
    for job in (*first, *second):
        begin(ledger, job)
    cancel(ledger, trajectories=[second[0].trajectory_id])
    assert pace(ledger) == (1, 1)
    _, due = ledger.due()
    assert [job.trajectory_id for job in due] == [second[0].trajectory_id]
    begun = begin(ledger, second[0])
    assert (begun.verdict, bool(begun.cancel)) == ("run", True)
    publish(ledger, make_record(second[0], None, epoch=begun.epoch))
    assert release(ledger) == set()
    assert pace(ledger) == (1, 1)


def test_a_sample_that_its_group_needs_no_more_does_not_wait_any_more(ledger):
    policy = GroupPolicy(stop_after_equal=1)
    (first,) = enqueued(ledger, 1, 1, size=2, group_policy=policy)
    set_pace(ledger, "run", 1)
    begin(ledger, first[0])
    ledger.client.zadd("hq:run:run:held", {first[1].trajectory_id: 1})
    publish(ledger, make_record(first[0]))
    assert ledger.run_status("run").surplus == 1
    assert pace(ledger) == (1, 0)


def test_a_cancelled_run_and_a_purged_one_leave_nothing(ledger):
    groups = enqueued(ledger, 3, 1)
    for group in groups:
        begin(ledger, group[0])
    assert Runs(ledger).cancel("run") == 3
    assert not ledger.client.exists("hq:run:run:ahead", "hq:run:run:held")
    Runs(ledger).purge("run")
    assert not ledger.client.exists("hq:run:run", "hq:paced")
    enqueue(ledger, *(group[0] for group in groups))
    assert [begin(ledger, group[0]).verdict for group in groups] == ["run"] * 3


def test_a_pause_and_a_pace_do_not_lose_each_others_jobs(ledger):
    first, second = enqueued(ledger, 2, 1)
    begin(ledger, first[0])
    begin(ledger, second[0])
    Runs(ledger).pause("run")
    trained(ledger, first)
    assert release(ledger) == ids(second)
    assert begin(ledger, second[0]).verdict == "paused"
    assert Runs(ledger).resume("run") == 1
    assert release(ledger) == ids(second)
    assert begin(ledger, second[0]).verdict == "run"


def test_a_budget_that_holds_a_group_back_does_not_count_it(ledger):
    first, second = enqueued(ledger, 2, 2)
    set_budgets(ledger, "run", {"tokens": 1})
    begin(ledger, first[0])
    ledger.client.hset("hq:run:run", "reserved:tokens", 5)
    assert begin(ledger, second[0]).verdict == "held"
    assert pace(ledger) == (1, 0)


def test_groups_of_an_older_version_count_as_over_when_they_are_closed(ledger):
    first, second = enqueued(ledger, 2, 1)
    begin(ledger, first[0])
    publish(ledger, make_record(first[0]))
    ledger.client.hset("hq:run:run:ahead", first[0].group_id, "")  # no place in the stream
    begin(ledger, second[0])
    assert release(ledger) == ids(second)


def test_a_retry_of_a_begun_group_passes(ledger):
    first, second = enqueued(ledger, 2, 1)
    begin(ledger, first[0])
    begin(ledger, second[0])
    ledger.requeue(Claim(first[0].trajectory_id, 1), owner="w1")
    assert begin(ledger, first[0]).verdict == "run"


@pytest.mark.parametrize("wrong", [0, -1, 10**7])
def test_a_bound_out_of_range_is_refused(ledger: Ledger, wrong):
    with pytest.raises(ConfigurationError, match="use 1 to"):
        set_pace(ledger, "run", wrong)
