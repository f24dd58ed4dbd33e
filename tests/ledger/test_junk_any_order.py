"""Whatever a producer's key writes in between, and whenever: every job ends, once."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from contextlib import suppress

import pytest
import redis
from ledger_steps import SWEEP, age_lease, publish
from records import make_job, make_record

from hermes_queue.broker.enqueue import publish_due
from hermes_queue.ledger import Claim, Runs, Spent
from hermes_queue.ledger.scheduling import Scheduler
from hermes_queue.wire.names import make_ids

LANES = ("train", "train.quarantine", "train.quarantine-4")
KEYS = """delayed waiting lanes runs sched:leaves v1.train v1.train.retry _kombu.binding.v1.train
sched:open:train sched:open:train| sched:open:train||{run} sched:shut:train sched:shut:train|
sched:jobs:train||{run}|gsm8k run:{run}:parked run:{run}:held run:{run}:ahead run:{run}:claimed
purged:{run}""".split()
FIELDS = {
    "run": ["running", "finished", "settled", "unpriced", "total", "created", "policy_version"],
    "group": ["measured", "failed", "refills", "requeues"],
    "traj": ["used", "queued", "died", "deaths", "booked", "noted", "doubts"],
}
PROGRAMS = 25


class Neighbourhood:
    """Two runs, what may befall their jobs, and a neighbour who writes junk."""

    def __init__(self, ledger, monkeypatch, seed):
        for name in ("MOVE_CLAIM_S", "PUBLISH_CLAIM_S", "RECOVER_S"):
            monkeypatch.setattr(f"hermes_queue.ledger.ledger.{name}", 0.0)
        self.dice, self.ledger, self.client = random.Random(seed), ledger, ledger.client
        self.client.flushall()
        self.jobs, self.running, self.ended = {}, {}, Counter()
        self.numbers = itertools.count()
        for run in "ab":
            made = [
                self.job(run, item, sample, size)
                for item in range(self.dice.randint(1, 6))
                for size in [self.dice.choice([1, 2])]
                for sample in range(size)
            ]
            accepted = ledger.enqueue(run, made, config=None)
            ledger.published([job.trajectory_id for job in accepted], claim=accepted.claim)

    def job(self, run, item, sample, size):
        group, name = make_ids(run, f"i{item}", sample)
        made = make_job(run_id=run, instance=f"i{item}", sample=sample, size=size)
        job = made.model_copy(update={"group_id": group, "trajectory_id": name})
        return self.jobs.setdefault(name, job)

    def begin(self):
        number = next(self.numbers)
        lease = {"owner": "w1", "lease_s": 60.0, "lanes": LANES}
        named = self.dice.choice(list(self.jobs))
        begun = self.ledger.begin(named, 1, nonce=f"n{number}", slot=number, **lease)
        if begun.verdict == "run":
            self.running[begun.trajectory_id] = begun

    def end(self):
        name, begun = self.dice.choice(list(self.running.items()))
        update = {"epoch": begun.epoch, "attempt": begun.attempt}
        verdict = publish(self.ledger, make_record(self.jobs[name]).model_copy(update=update))
        del self.running[name]
        self.ended[name] += verdict in ("ok", "group")

    def hand_back(self):
        name, begun = self.dice.choice(list(self.running.items()))
        del self.running[name]
        self.ledger.requeue(Claim(name, begun.epoch), owner="w1", spent=Spent(3, 0.1))

    def die(self):
        name = self.dice.choice(list(self.running))
        del self.running[name]
        self.ledger.sweep(**SWEEP)
        age_lease(self.ledger, self.jobs[name])
        self.ledger.sweep(**SWEEP)

    def pause(self):
        change = self.dice.choice([Runs(self.ledger).pause, Runs(self.ledger).resume])
        change("b")

    def upkeep(self):
        more = True
        while more:
            _, _, more = self.ledger.recover(lease_s=30.0)
        for lane in LANES:
            self.ledger.reconcile(lane, age_s=0.0)
        publish_due(self.ledger)
        Scheduler(self.ledger).tick(LANES, every_s=0)

    def junk(self):
        run, name = self.dice.choice("ab"), self.dice.choice(list(self.jobs))
        kind = self.dice.choice(["key", "key", "key", *FIELDS])
        if kind == "key":
            key = "hq:" + self.dice.choice(KEYS).format(run=run)
            self.client.delete(key)
            if self.dice.random() < 0.8:
                self.client.set(key, "x")
        else:
            of = {"run": run, "group": self.jobs[name].group_id, "traj": name}
            self.client.hset(f"hq:{kind}:{of[kind]}", self.dice.choice(FIELDS[kind]), "junk")

    def step(self):
        calls = [self.begin, self.junk, self.upkeep, self.pause]
        if self.running:
            calls += [self.end, self.hand_back, self.die]
        with suppress(redis.ResponseError):
            self.dice.choice(calls)()

    def finish(self):
        with suppress(redis.ResponseError):
            Runs(self.ledger).resume("b")
        for _ in range(50):
            for call in (self.upkeep, self.begin, self.begin, self.begin):
                with suppress(redis.ResponseError):
                    call()
            while self.running:
                self.end()


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_every_job_ends_once_whatever_a_neighbour_writes(ledger, monkeypatch, seed):
    life = Neighbourhood(ledger, monkeypatch, seed)
    for _ in range(life.dice.randint(10, 40)):
        life.step()
    life.finish()
    assert life.ended == dict.fromkeys(life.jobs, 1)
    assert life.client.zcard("hq:leases") == 0
