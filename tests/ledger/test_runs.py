"""Runs: configuration lock, pause, cancel, purge."""

from __future__ import annotations

import pytest
from ledger_steps import LEASE, begin, enqueue, publish
from records import make_job, make_record

from hermes_queue.errors import ConfigurationError
from hermes_queue.ledger import Claim, Ledger, Runs


def jobs_of(count, **fields):
    return [make_job("run", f"i{n}", **fields) for n in range(count)]


def due(ledger):
    return {job.trajectory_id for job in ledger.due()[1]}


def adds_up(status):
    ended = status.finished + status.failed + status.surplus + status.cancelled
    return status.queued + status.running + ended == status.total


def test_a_second_configuration_under_one_run_id_is_refused_and_named(ledger):
    ledger.enqueue("run", [make_job()], config={"env": "gsm8k", "model": "a"})
    with pytest.raises(ConfigurationError, match=r'model "a" \(now "b"\)'):
        ledger.enqueue("run", jobs_of(2), config={"model": "b", "env": "gsm8k"})
    assert ledger.run_status("run").total == 1
    assert len(ledger.enqueue("run", jobs_of(2), config={"model": "a", "env": "gsm8k"})) == 2


def test_runs_are_listed_without_a_search_and_the_list_expires(ledger):
    enqueue(ledger, make_job("one"))
    enqueue(ledger, make_job("two"))
    assert Runs(ledger).ids() == ["two", "one"]
    assert ledger.client.ttl("hq:runs") > 0


def test_a_job_of_a_paused_run_is_parked_and_comes_back_with_resume(ledger):
    jobs = jobs_of(3)
    enqueue(ledger, *jobs)
    Runs(ledger).pause("run", "lunch")
    assert [begin(ledger, job).verdict for job in jobs] == ["paused"] * 3
    info = Runs(ledger).get("run")
    assert (info.state, info.reason, info.parked, info.counters.queued) == ("paused", "lunch", 3, 3)
    assert due(ledger) == set()
    assert ledger.client.zcard("hq:waiting") == 0
    assert Runs(ledger).resume("run") == 3
    assert due(ledger) == {job.trajectory_id for job in jobs}
    assert begin(ledger, jobs[0]).attempt == 1


def test_resume_puts_back_more_jobs_than_one_batch(ledger, monkeypatch):
    monkeypatch.setattr("hermes_queue.ledger.runs.BATCH", 2)
    jobs = jobs_of(5)
    enqueue(ledger, *jobs)
    Runs(ledger).pause("run")
    for job in jobs:
        begin(ledger, job)
    assert Runs(ledger).resume("run") == 5
    assert Runs(ledger).resume("run") == 0
    assert len(due(ledger)) == 5


def test_a_running_trajectory_of_a_paused_run_keeps_its_lease_and_is_told(ledger):
    job = make_job()
    enqueue(ledger, job)
    claim = Claim(job.trajectory_id, begin(ledger, job).epoch)
    Runs(ledger).pause("run")
    assert ledger.renew([claim], **LEASE) == {claim: "paused"}
    assert publish(ledger, make_record(job)) == "group"
    Runs(ledger).resume("run")
    assert ledger.renew([claim], **LEASE) == {claim: "final"}


def test_cancel_ends_waiting_parked_and_running_trajectories_and_keeps_finished_ones(ledger):
    finished, running, waiting, unsent, parked = jobs = jobs_of(5)
    enqueue(ledger, finished, running, waiting, parked)
    ledger.enqueue("run", [unsent], config={})
    begin(ledger, finished)
    publish(ledger, make_record(finished))
    claim = Claim(running.trajectory_id, begin(ledger, running).epoch)
    Runs(ledger).pause("run")
    begin(ledger, parked)
    assert Runs(ledger).cancel("run", "wrong model") == 4
    assert Runs(ledger).cancel("run") == 0
    status = ledger.run_status("run")
    assert (status.finished, status.cancelled, status.running, status.total) == (1, 4, 0, 5)
    assert adds_up(status)
    assert status.done
    assert ledger.renew([claim], **LEASE) == {claim: "cancelled"}
    assert publish(ledger, make_record(running)) == "cancelled"
    assert [begin(ledger, job).verdict for job in jobs] == ["final"] + 4 * ["cancelled"]
    assert not ledger.client.exists("hq:leases", "hq:delayed", "hq:waiting", "hq:run:run:parked")
    assert Runs(ledger).get("run").reason == "wrong model"


def test_a_cancelled_group_leaves_no_key_without_expiry_but_listed_ones(ledger):
    first, second = (make_job(sample=n, size=2) for n in range(2))
    enqueue(ledger, first, second)
    begin(ledger, first)
    publish(ledger, make_record(first))
    Runs(ledger).cancel("run")
    lasting = [key for key in ledger.client.scan_iter("*") if ledger.client.ttl(key) == -1]
    assert sorted(lasting) == [b"hq:results:bytes", b"hq:sched:running", b"hq:totals"]


def test_a_job_that_an_unfinished_cancel_has_not_reached_is_cancelled_by_begin(ledger):
    first, second = jobs_of(2)
    enqueue(ledger, first, second)
    ledger.client.hset("hq:run:run", "state", "cancelled")
    assert begin(ledger, first).verdict == "cancelled"
    assert Runs(ledger).cancel("run") == 1
    assert ledger.run_status("run").cancelled == 2


def test_a_cancelled_run_takes_no_jobs_and_does_not_go_on(ledger):
    enqueue(ledger, make_job())
    Runs(ledger).cancel("run")
    with pytest.raises(ConfigurationError, match="was cancelled"):
        enqueue(ledger, *jobs_of(1))
    with pytest.raises(ConfigurationError, match="cannot be changed"):
        Runs(ledger).resume("run")


def test_ten_thousand_waiting_jobs_are_cancelled(ledger):
    jobs = [make_job("run", f"i{n // 8}", n % 8, 8) for n in range(10_000)]
    for start in range(0, len(jobs), 2_000):
        enqueue(ledger, *jobs[start : start + 2_000])
    assert Runs(ledger).cancel("run") == 10_000
    assert adds_up(ledger.run_status("run"))


def test_purge_refuses_an_active_run_and_forgets_a_finished_one(ledger):
    job = make_job()
    enqueue(ledger, job)
    with pytest.raises(ConfigurationError, match="1 waiting or running trajectories"):
        Runs(ledger).purge("run")
    begin(ledger, job)
    publish(ledger, make_record(job))
    assert Runs(ledger).get("run").state == "done"
    Runs(ledger).purge("run")
    assert Runs(ledger).ids() == []
    with pytest.raises(ConfigurationError, match="unknown"):
        Runs(ledger).get("run")


def test_purge_forgets_groups_whose_producer_never_sent_the_rest(ledger):
    """They can never close: their bodies would stay, and count as waiting, for ever."""
    first, _ = (make_job(sample=n, size=2) for n in range(2))
    enqueue(ledger, first)
    begin(ledger, first)
    publish(ledger, make_record(first))
    Runs(ledger).purge("run")
    lasting = [key for key in ledger.client.scan_iter("*") if ledger.client.ttl(key) == -1]
    assert sorted(lasting) == [b"hq:results:bytes", b"hq:sched:running", b"hq:totals"]
    assert ledger.client.get("hq:results:bytes") == b"0"
    with pytest.raises(ConfigurationError, match="unknown"):
        Runs(ledger).get("run")


def test_a_purge_that_is_refused_changes_nothing(ledger):
    first, second = (make_job(sample=n, size=2) for n in range(2))
    enqueue(ledger, first, second)
    with pytest.raises(ConfigurationError, match="2 waiting or running"):
        Runs(ledger).purge("run")
    assert begin(ledger, first).verdict == "run"
    assert Runs(ledger).get("run").state == "active"


def test_a_run_is_cancelled_and_purged_to_make_room_in_a_redis_that_is_full(server):
    with server.client(decode_responses=False) as client:
        ledger = Ledger(client, prefix="hq:", url=server.url)
        first, second = (make_job(sample=n, size=2) for n in range(2))
        enqueue(ledger, first, second)
        begin(ledger, first)
        publish(ledger, make_record(first))
        client.config_set("maxmemory", 1)
        assert Runs(ledger).cancel("run") == 1
        Runs(ledger).purge("run")
        assert Runs(ledger).ids() == []


def test_a_group_of_which_nothing_waits_is_cancelled_in_a_redis_that_is_full(server):
    with server.client(decode_responses=False) as client:
        ledger = Ledger(client, prefix="hq:", url=server.url)
        job = make_job(size=2)
        enqueue(ledger, job)
        begin(ledger, job)
        publish(ledger, make_record(job))
        client.config_set("maxmemory", 1)
        Runs(ledger).cancel("run")
        assert client.ttl(f"hq:group:{job.group_id}") > 0


def test_an_operators_pause_of_a_run_that_its_budget_paused_is_the_operators(ledger):
    """Else more budget would let go on what somebody wants to stand still."""
    enqueue(ledger, make_job())
    runs = Runs(ledger)
    runs.pause("run", "spent", by="budget")
    runs.pause("run", "wait for me")
    assert runs.get("run").paused_by == "operator"
    runs.pause("run", "wrong key", by="model_config")
    assert (runs.get("run").paused_by, runs.get("run").reason) == ("operator", "wait for me")


def test_many_runs_are_read_in_one_round_trip(ledger, monkeypatch):
    names = [f"run{n}" for n in range(60)]
    for name in names:
        enqueue(ledger, make_job(name))
    Runs(ledger).pause("run7", "lunch")
    trips = []
    pipeline = ledger.client.pipeline
    monkeypatch.setattr(
        ledger.client, "pipeline", lambda **given: trips.append(1) or pipeline(**given)
    )
    monkeypatch.setattr(ledger.client, "execute_command", lambda *words: trips.append(words))
    infos = Runs(ledger).several(names)
    assert [info.run_id for info in infos] == names
    assert [info.counters.queued for info in infos] == [1] * 60
    assert [info.run_id for info in infos if info.state == "paused"] == ["run7"]
    assert trips == [1]


def test_a_run_that_is_gone_or_cannot_be_read_does_not_hide_the_others(ledger, caplog):
    enqueue(ledger, make_job("one"))
    enqueue(ledger, make_job("two"))
    ledger.client.hset("hq:run:odd", mapping={"state": "active", "created": "yesterday"})
    ledger.client.set("hq:run:odder", "not a hash")
    infos = Runs(ledger).several(["one", "odd", "purged", "odder", "two"])
    assert [info.run_id for info in infos] == ["one", "two"]
    assert "'odd' cannot be read" in caplog.text
    assert "'odder' cannot be read" in caplog.text
    assert "purged" not in caplog.text
