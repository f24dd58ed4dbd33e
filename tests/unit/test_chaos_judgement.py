"""The chaos judgement sees every way in which a promise can be broken."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import pytest
from ledger_steps import begin, publish
from records import make_record
from worker_process import wait_until

from hermes_queue.ledger import Ledger
from hermes_queue.models import Usage
from hermes_queue.sandbox.local.registry import HostRegistry
from tests.chaos.__main__ import wait_for_reapers
from tests.chaos.env import expected_score
from tests.chaos.fleet import CONSUMERS, DoomedFleet
from tests.chaos.judgement import Judgement
from tests.chaos.producer import group
from tests.chaos.skewed import SKEW_S, skewed

SEED = 3


class Scene:
    """A run of one group in which everything went well."""

    def __init__(self, ledger: Ledger, fleet: DoomedFleet, tokens: int = 0) -> None:
        self.ledger, self.fleet = ledger, fleet
        self.jobs = group(0, SEED)
        self.score = expected_score(self.jobs[0].instance_id)
        ledger.enqueue("chaos", self.jobs, config=None)
        ledger.published(job.trajectory_id for job in self.jobs)
        for job in self.jobs:
            begin(ledger, job)
            record = make_record(job, self.score)
            usage = Usage(prompt_tokens=tokens)
            publish(ledger, record.model_copy(update={"usage": usage}))
        self.write("journal", [self.measured(job) for job in self.jobs])
        scores = {job.trajectory_id: self.score for job in self.jobs}
        self.delivered = {"group": self.jobs[0].group_id, "scores": scores}
        for name in CONSUMERS:
            ledger.client.xgroup_create("hq:results", name, id="$")
            self.write(f"consumed-{name}", [self.delivered])

    def measured(self, job, score=None):
        return {"trajectory_id": job.trajectory_id, "score": score or self.score, "stages": "all"}

    def write(self, name, lines):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (self.fleet.directory / name).write_text(text)

    def problems(self):
        judgement = Judgement(self.fleet, 1, SEED)
        judgement.judge(self.ledger)
        return judgement.problems


@pytest.fixture
def directory(tmp_path):
    # Its name must occur nowhere else: processes are told by it.
    return Path(tempfile.mkdtemp(prefix="hermes-chaos-", dir=tmp_path))


@pytest.fixture
def scene(redis_server, directory):
    with redis_server.client(decode_responses=False) as client:
        ledger = Ledger(client, prefix="hq:", url=redis_server.url)
        yield Scene(ledger, DoomedFleet(directory, 1, 1))


def test_a_run_in_which_all_went_well_has_no_problems(scene):
    assert scene.problems() == []


def test_a_lost_group_is_seen(scene):
    scene.ledger.client.xtrim("hq:results", maxlen=0)
    assert any("lost, never published" in line for line in scene.problems())
    assert any("measured, but not in the stream" in line for line in scene.problems())


def test_a_group_published_twice_is_seen(scene):
    [(_, entry)] = scene.ledger.client.xrange("hq:results")
    scene.ledger.client.xadd("hq:results", entry)
    assert any("published 2 times" in line for line in scene.problems())


def test_a_score_that_nobody_measured_is_seen(scene):
    scene.write("journal", [scene.measured(job) for job in scene.jobs[1:]])
    [problem] = scene.problems()
    assert "was never measured" in problem


def test_another_score_than_was_measured_is_seen(scene):
    scene.write("journal", [scene.measured(job, 0.5) for job in scene.jobs])
    assert len(scene.problems()) == 4


def test_a_group_that_did_not_reach_a_consumer_is_seen(scene):
    scene.write("consumed-slow", [])
    [problem] = scene.problems()
    assert problem.endswith("never reached the consumer group slow")


def test_a_repeated_delivery_is_fine_unless_it_differs(scene):
    scene.write("consumed-fast", [scene.delivered] * 2)
    assert scene.problems() == []
    scene.write("consumed-fast", [scene.delivered, {**scene.delivered, "scores": {}}])
    assert any("fast got two versions" in line for line in scene.problems())


def test_an_unacknowledged_delivery_is_seen(scene):
    client = scene.ledger.client
    client.xgroup_setid("hq:results", "fast", "0")
    client.xreadgroup("fast", "c", {"hq:results": ">"})
    [problem] = scene.problems()
    assert problem == "fast: 1 groups delivered and not acknowledged"


def test_what_the_last_worker_to_die_has_left_is_judged_after_others_had_time_to_end_it(scene):
    dead, living = HostRegistry(scene.fleet.cache), HostRegistry(scene.fleet.cache)
    dead.open("local-x", {})
    os.close(dead._locks["local-x"])
    ending = threading.Timer(0.2, living.reclaim)
    ending.start()
    wait_for_reapers(scene.fleet)
    assert scene.problems() == []
    ending.join()


def test_what_is_left_on_disk_and_in_redis_is_seen(scene):
    left = scene.fleet.cache / "slots" / "local-x"
    left.mkdir(parents=True)
    scene.ledger.client.set("hq:stray", 1)
    problems = scene.problems()
    assert any(str(left) in line for line in problems)
    assert "key without expiry: stray" in problems


def test_a_dead_letter_of_an_innocent_job_is_seen(scene):
    [letter] = [{"cause": "poison", "reason": "x", "trajectory_id": scene.jobs[1].trajectory_id}]
    scene.ledger.client.xadd("hq:dead", letter)
    assert scene.problems() == [
        f"{scene.jobs[1].trajectory_id}: a dead letter, but not a poison job"
    ]


def test_a_poison_job_that_was_scored_and_left_no_letter_is_seen(scene, monkeypatch):
    monkeypatch.setattr("tests.chaos.judgement.poisoned", lambda index: True)
    poison = scene.jobs[0].trajectory_id
    problems = scene.problems()
    assert f"{poison}: poison, and 0 dead letters" in problems
    assert any(line.startswith(f"{poison}: {scene.score}") for line in problems)


def test_what_was_handed_over_and_is_still_there_is_seen(scene):
    for key in ("hq:handover:x", "hq:journal:x"):
        scene.ledger.client.set(key, "work", ex=60)
    for key in ("hq:handed", "hq:limit:stage://fleet|verify:leases"):
        scene.ledger.client.zadd(key, {"x": time.time() + 60})
        scene.ledger.client.expire(key, 60)
    copy = scene.fleet.cache / "snapshots" / "x.tar"
    copy.parent.mkdir(parents=True)
    copy.touch()
    assert set(scene.problems()) == {
        "left in Redis: hq:handover:x",
        "left in Redis: hq:journal:x",
        "left in Redis: hq:handed",
        "hq:limit:stage://fleet|verify:leases: 1 places are taken",
        f"left on disk: {copy}",
    }


def test_graders_to_whom_nothing_was_handed_over_are_seen(scene):
    scene.fleet.graders = scene.fleet.workers
    assert scene.problems() == ["nothing was handed over to graders"]


@pytest.mark.parametrize(
    ("booked", "used", "problem"),
    [
        (8, 8, ""),
        (8, 10, ""),  # one more reply, whose worker has died
        (16, 8, "16.0 tokens are booked, 8 were used"),
        (6, 8, "6.0 tokens of 8 are booked"),
    ],
)
def test_tokens_that_are_booked_twice_or_not_at_all_are_seen(
    redis_server, directory, booked, used, problem
):
    with redis_server.client(decode_responses=False) as client:
        ledger = Ledger(client, prefix="hq:", url=redis_server.url)
        scene = Scene(ledger, DoomedFleet(directory, 1, 1), tokens=2)
        scene.write("spent", [{"trajectory_id": "x", "tokens": used}])
        client.hset("hq:run:chaos", "spent:tokens", booked)
        assert scene.problems() == [problem] * bool(problem)


def test_what_stays_reserved_of_a_budget_is_seen(scene):
    scene.ledger.client.hset("hq:run:chaos", "reserved:tokens", 7)
    assert scene.problems() == ["7.0 of tokens stay reserved"]


def test_a_process_that_only_its_mounts_betray_is_seen(scene):
    inside = scene.fleet.directory / "slot"
    inside.mkdir()
    sleeper = subprocess.Popen(
        ["unshare", "-m", "sh", "-c", 'mount --bind "$0" /mnt && exec sleep 60', inside.name],
        cwd=scene.fleet.directory,
    )
    try:
        wait_until("mounted", lambda: sleeper.pid in dict(scene.fleet.processes()))
        wait_until("exec", lambda: any(f"process {sleeper.pid}" in p for p in scene.problems()))
    finally:
        sleeper.kill()
        sleeper.wait()


def test_clocks_of_the_fleet_are_wrong_and_jump():
    clock = skewed(lambda: moment, seed=1)
    offsets = set()
    for moment in range(1000, 1100):
        assert abs(clock() - moment) <= SKEW_S
        offsets.add(round(clock() - moment, 6))
    assert len(offsets) > 10
