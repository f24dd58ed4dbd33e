"""Names of runs, groups and lanes: each is one thing's own."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from pydantic import ValidationError
from records import make_job

from hermes_queue.broker.submission import make_jobs
from hermes_queue.cli.lanes import lanes
from hermes_queue.errors import ConfigurationError
from hermes_queue.settings import WorkerSettings
from hermes_queue.wire.names import group_key, make_ids


def test_no_two_items_repetitions_or_steps_share_a_group():
    names = ["a", "a#2", "a#2#2", "a\x001", "\x004:a#2", "\x00", "", "2:a"]
    keys = {
        group_key(name, repetition=n, step=step)
        for name in names
        for n in (1, 2, 22)
        for step in (None, "", 1, 2, "1\x002")
    }
    assert len(keys) == len(names) * 3 * 5


def test_jobs_of_items_that_look_like_each_others_repetitions_are_all_enqueued():
    items = [{"instance_id": name} for name in ("a", "a", "a#2")]
    jobs = make_jobs(env="gsm8k", items=items, run_id="r")
    assert len({job.trajectory_id for job in jobs}) == 3


def test_ids_of_ordinary_jobs_stay_as_they_were():
    ordinary = {
        ("oauthlib__oauthlib.1fd52536", 1, None): "oauthlib__oauthlib.1fd52536",
        ("a b", 3, None): "a b#3",
        ("a", 1, 7): "a\x007",
        ("a", 2, 7): "a#2\x007",
    }
    for (name, repetition, step), key in ordinary.items():
        assert group_key(name, repetition=repetition, step=step) == key
    assert make_ids("r", "a", 3)[1] == "r.14648a291285c4f074e8.3"


@pytest.mark.parametrize("lane", ["train.retry", "train.quarantine", "x.quarantined", "a:outcomes"])
def test_a_lane_that_nobody_would_serve_takes_no_jobs(lane):
    with pytest.raises(ValidationError, match=r"lane.*choose another name"):
        make_job(lane=lane)
    with pytest.raises(ConfigurationError, match=r"lane.*choose another name"):
        make_jobs(env="gsm8k", items=[{"instance_id": "a"}], run_id="r", lane=lane)


def test_a_lane_of_retries_is_neither_served_nor_paused_by_itself():
    with pytest.raises(ValidationError, match="reserved for queues and keys of lane 'train'"):
        WorkerSettings(lanes="eval, train.retry")
    assert WorkerSettings(lanes="eval,train.quarantine").lanes == "eval,train.quarantine"
    answer = CliRunner().invoke(lanes, ["pause", "train.retry"])
    assert (answer.exit_code, "reserved for queues and keys of lane 'train'" in answer.output) == (
        2,
        True,
    )


def test_a_run_is_not_named_like_a_key_of_another():
    with pytest.raises(ConfigurationError, match="choose another run id"):
        make_jobs(env="gsm8k", items=[{"instance_id": "a"}], run_id="r:claimed")
