"""A feed knows its run: it refuses another kind of run, says what it waits for, and finishes."""

from __future__ import annotations

import pytest
from ledger_steps import begin, enqueue
from ledger_steps import publish as publish_record
from records import make_job, make_record
from stream_groups import names, publish

import hermes_queue
from hermes_queue import AgentSpec
from hermes_queue.bodies import codec
from hermes_queue.broker.rerun import rerun_groups
from hermes_queue.errors import ConfigurationError
from hermes_queue.ledger.fleet.pacing import pace_of, set_pace
from hermes_queue.results.consumers import consumer_groups
from hermes_queue.results.trimming import trim
from hermes_queue.settings import ResultSettings
from hermes_queue.trainers.feed import Feed
from hermes_queue.trainers.rows import rows_of
from hermes_queue.trainers.sources import expected


def enqueue_run(ledger, *, run="run", params=None, size=2):
    """Enqueue one group as a program does, so that the run has a configuration."""
    agent = AgentSpec(
        kind="openai", model="policy", sampling={"temperature": 0.7}, params=params or {}
    )
    items = [{"instance_id": "a", "question": "1+1?", "answer": "#### 2"}]
    given = {"run_id": run, "env": "gsm8k", "items": items, "agent": agent, "group_size": size}
    hermes_queue.enqueue(**given, url=ledger.url)
    return hermes_queue.make_jobs(**given)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"group_size": 4}, "groups of 2, and the trainer takes groups of 4: set group_size=2"),
        ({"temperature": 1.0}, "temperature 0.7, and the trainer recomputes logprobs at 1"),
        ({"check": rows_of}, "without token ids, which the trainer needs"),
    ],
)
def test_a_run_of_which_every_group_would_be_refused_is_refused_when_the_feed_opens(
    ledger, feed, options, problem
):
    enqueue_run(ledger)
    with pytest.raises(ConfigurationError, match=problem):
        feed(**options)
    assert consumer_groups(ledger) == []


@pytest.mark.parametrize("params", [{"token_ids": True}, {"mode": "tokens"}])
def test_a_run_that_fits_is_taken(ledger, feed, params):
    enqueue_run(ledger, params=params)
    feed(check=rows_of, temperature=0.7)


@pytest.mark.parametrize(
    ("learnt", "problem"),
    [({"temperature": 1.0}, "at temperature"), ({"check": rows_of}, "without token ids")],
)
def test_what_an_adapter_learns_later_is_checked_too(ledger, feed, learnt, problem):
    enqueue_run(ledger)
    trainer = feed()
    with pytest.raises(ConfigurationError, match=problem):
        trainer.require(**learnt)


def test_a_run_that_nobody_knows_is_awaited_and_runs_with_names_like_it_are_named(
    ledger, feed, caplog
):
    enqueue_run(ledger, run="maths-1")
    feed(run="math-1")
    assert "waiting for run 'math-1', which is unknown in this Redis; there is 'maths-1'" in (
        caplog.text
    )


def test_a_run_that_comes_later_is_checked_before_its_groups_become_dead_letters(ledger, feed):
    trainer = feed(group_size=3)
    for job in enqueue_run(ledger):
        begin(ledger, job)
        publish_record(ledger, make_record(job, float(job.sample_index)))
    with pytest.raises(ConfigurationError, match="groups of 2"):
        trainer.take(1)
    assert ledger.client.xlen("hq:dead") == 0


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("unknown", "run 'run', which is unknown in this Redis"),
        ("waits", "1 trajectories wait and 0 run"),
        ("paused", "the run is paused by operator: lunch"),
        ("ended", "all of its trajectories have ended"),
    ],
)
def test_while_it_waits_it_says_what_for_and_what_it_dropped(
    ledger, feed, caplog, monkeypatch, state, said
):
    monkeypatch.setattr(expected, "_TELL_S", 0.1)
    if state == "ended":
        publish(ledger, "a", policy="1")
        publish(ledger, "b", scores=(1.0, 1.0))
    elif state != "unknown":
        enqueue(ledger, make_job())
    if state == "paused":
        ledger.call("run_state", run_id="run", state="paused", reason="lunch", by="operator")
    trainer = feed(max_lag=0)
    trainer.published(2)
    assert trainer.take(1, timeout_s=0.3) == []
    assert "waiting for 1 group(s)" in caplog.text
    assert said in caplog.text
    dropped = int(state == "ended")
    assert f"older than max_lag=0 {dropped}, with equal scores {dropped}" in caplog.text


def test_groups_with_equal_scores_are_counted_and_those_of_other_runs_are_not(ledger, feed):
    publish(ledger, "a", scores=(1.0, 1.0))
    publish(ledger, "b", scores=(1.0, 1.0), run="other")
    publish(ledger, "c", scores=(1.0, None))
    publish(ledger, "d")
    trainer = feed()
    assert names(trainer.take(1)) == "d"
    assert trainer.counts.equal == 1


def test_the_pace_holds_before_the_first_groups_are_asked_for(ledger, feed):
    feed(max_lag=1, pace=2)
    assert pace_of(ledger, "run").max_ahead == 4


def test_a_finished_training_holds_nothing_and_its_name_is_free(ledger, feed, tmp_path):
    publish(ledger, *"abc")
    trainer = feed(max_lag=2, pace=1)
    trainer.trained(1, trainer.take(1))
    with pytest.raises(ValueError, match="step 1 is trained and in no checkpoint"):
        trainer.finish()
    trainer.saved(1)
    trainer.finish()
    trainer.finish()
    assert consumer_groups(ledger) == []
    assert pace_of(ledger, "run") is None
    with hermes_queue.consume_sync("other", url=ledger.url) as others:
        for group in others.take(3):
            group.ack()
    assert trim(ledger, ResultSettings(retention_s=0), interval_s=0).entries == 3
    (tmp_path / "next").mkdir()
    options = {"directory": tmp_path / "next", "group_size": 2, "url": ledger.url}
    Feed("trainer", run="next", **options).close()


def test_a_pace_that_follows_others_stays_when_a_training_is_finished(ledger, feed):
    set_pace(ledger, "run", 8, readers=["others"])
    feed().finish()
    assert pace_of(ledger, "run").max_ahead == 8


def test_a_training_whose_name_another_process_has_by_now_ends_nothing(ledger, feed):
    trainer = feed()
    trainer._lease.reader._other = "elsewhere:1.2:the trainer whose journal is /other"
    with pytest.raises(ConfigurationError, match="whose journal is /other on elsewhere"):
        trainer.finish()
    assert len(consumer_groups(ledger)) == 1


def test_a_failed_group_that_is_retried_as_a_whole_is_one_that_the_feed_takes(ledger, feed):
    pair = [make_job(instance="a", sample=n, size=2) for n in range(2)]
    enqueue(ledger, *pair)
    for job, score in zip(pair, (1.0, None), strict=True):
        begin(ledger, job)
        publish_record(ledger, make_record(job, score))
    [again] = rerun_groups(ledger, "run")
    assert (again.old, again.cause) == (pair[0].group_id, "sandbox")
    assert list(rerun_groups(ledger, "run")) == []
    for n in range(2):
        name = f"{again.new}.{n}"
        job = codec.decode_job(ledger.client.hget(f"hq:traj:{name}", "job"), name)
        begin(ledger, job)
        publish_record(ledger, make_record(job, float(n)))
        assert job.requeued_from == pair[n].trajectory_id
    [group] = feed().take(1)
    assert (group.group_id, group.size, group.mean) == (again.new, 2, 0.5)
