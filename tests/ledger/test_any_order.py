"""Whatever happens in whatever order: counters add up, and nothing is left over or doubled."""

from __future__ import annotations

import itertools
import json
import random
import time

import pytest
from ledger_steps import begin, publish, swept
from records import make_job, make_record

from hermes_queue.keyspace.keys import may_stay
from hermes_queue.ledger import Claim, Runs, Spent
from hermes_queue.ledger.budgets import accounts, set_budgets
from hermes_queue.models import GroupPolicy

NEEDS = ("aaaaaaaa", "bbbbbbbb")


class Life:
    """One run of a few groups under a policy of chance, and everything that may befall it."""

    def __init__(self, ledger, seed):
        self.dice = random.Random(seed)
        self.ledger = ledger
        self.size = self.dice.randint(1, 4)
        self.policy = GroupPolicy(
            max_refills=self.dice.randint(0, 2),
            extra_samples=self.dice.choice([0, 0, 1, 2]),
            drop_zero_variance=self.dice.random() < 0.3,
            stop_after_equal=self.dice.choice([0, 0, 2, 3]),
            on_incomplete=self.dice.choice(["publish", "drop"]),
        )
        self.groups = [
            [
                make_job(
                    instance=f"i{group}",
                    sample=sample,
                    size=self.size,
                    group_policy=self.policy,
                    limits={"max_tokens": 10},
                    needs=needs,
                )
                for sample in range(self.size + self.policy.extra_samples)
            ]
            for group, needs in enumerate(self.dice.choices(("", *NEEDS), k=4))
        ]
        self.jobs = {job.trajectory_id: job for group in self.groups for job in group}
        self.attempts: list[tuple[str, int]] = []
        self.slots = itertools.count()
        self.sweep = swept(ledger)
        set_budgets(ledger, "run", {"tokens": 1_000_000})

    def enqueue(self):
        jobs = [job for group in self.groups for job in group]
        some = jobs[: self.dice.randint(0, len(jobs))]
        if some:
            accepted = self.ledger.enqueue("run", some, config={})
            if self.dice.random() < 0.7:
                ids = [job.trajectory_id for job in accepted]
                self.ledger.published(ids, claim=accepted.claim)

    def known(self):
        """Jobs and their refills, by what the ledger holds."""
        for group in self.groups:
            planned = int(self.ledger.client.hget(f"hq:group:{group[0].group_id}", "planned") or 0)
            for index in range(planned):
                name = f"{group[0].group_id}.{index}"
                job = group[0].model_copy(update={"trajectory_id": name, "sample_index": index})
                self.jobs.setdefault(name, job)
        return sorted(self.jobs)

    def begin(self):
        job = self.jobs[self.dice.choice(self.known())]
        attempt = int(self.ledger.client.hget(f"hq:traj:{job.trajectory_id}", "attempt") or 1)
        chosen = {}
        if self.dice.random() < 0.6:  # of what waits, the ledger chooses for a host
            ready = "".join(f" {each} " for each in NEEDS if self.dice.random() < 0.5)
            chosen = {"lanes": ("train",), "slot": next(self.slots), "ready": ready}
        begun = begin(self.ledger, job, attempt=attempt, owner="w1", **chosen)
        if begun.verdict == "run":
            self.attempts.append((begun.trajectory_id, begun.epoch))

    def end(self):
        if not self.attempts:
            return
        name, epoch = self.dice.choice(self.attempts)
        score = self.dice.choice([0.0, 1.0, 1.0, None])
        record = make_record(self.jobs[name], score, epoch=epoch)
        if score is None and self.dice.random() < 0.4:
            failure = record.failure.model_copy(
                update={"cause": "env_bug", "kind": "env_bug", "refillable": False}
            )
            record = record.model_copy(update={"failure": failure})
        for _ in range(self.dice.choice([1, 1, 2])):  # the answer may be lost
            publish(self.ledger, record)

    def give_back(self):
        if self.attempts:
            name, epoch = self.dice.choice(self.attempts)
            self.ledger.requeue(Claim(name, epoch), owner="w1", spent=Spent(tokens=3))

    def die(self):
        running = self.ledger.client.zrange("hq:leases", 0, -1)
        if running:
            self.ledger.client.zadd("hq:leases", {self.dice.choice(running): time.time() - 1})
            self.sweep()

    def pause(self):
        if self.ledger.run_status("run").total:
            Runs(self.ledger).pause("run")

    def resume(self):
        if self.ledger.run_status("run").total:
            Runs(self.ledger).resume("run")

    def live(self, steps=120):
        moves = [self.begin] * 6 + [self.end] * 6 + [self.give_back, self.die, self.enqueue] * 2
        moves += [self.pause, self.resume, self.resume]
        for _ in range(steps):
            self.dice.choice(moves)()
            self.check()

    def finish(self):
        """Everything is enqueued, nothing is paused, all that can run runs to its end."""
        self.ledger.enqueue("run", [j for group in self.groups for j in group], config={})
        self.resume()
        while not self.ledger.run_status("run").done:
            for name in self.known():
                self.begin_and_end(name)
            self.check()

    def begin_and_end(self, name):
        state = self.ledger.client.hget(f"hq:traj:{name}", "state")
        if state == b"running":
            epoch = int(self.ledger.client.hget(f"hq:traj:{name}", "epoch"))
            publish(self.ledger, make_record(self.jobs[name], epoch=epoch))
        elif state == b"queued":
            attempt = int(self.ledger.client.hget(f"hq:traj:{name}", "attempt"))
            begun = begin(self.ledger, self.jobs[name], attempt=attempt)
            assert begun.verdict == "run"
            publish(self.ledger, make_record(self.jobs[name], epoch=begun.epoch))

    # --- what always holds --------------------------------------------------------------------

    def check(self):
        client, status = self.ledger.client, self.ledger.run_status("run")
        ended = status.finished + status.failed + status.surplus + status.cancelled
        raw = int(client.hget("hq:run:run", "running") or 0)
        states = [client.hget(f"hq:traj:{name}", "state") for name in self.known()]
        assert states.count(b"running") == raw == client.zcard("hq:leases")
        assert states.count(b"queued") == status.total - raw - ended
        waits = {
            *client.zrange("hq:delayed", 0, -1),
            *client.zrange("hq:waiting", 0, -1),
            *client.smembers("hq:run:run:parked"),
        }
        queued = {n.encode() for n, s in zip(self.known(), states, strict=True) if s == b"queued"}
        assert waits == queued
        reserved = accounts(self.ledger, "run", now=0)["tokens"].reserved
        assert reserved >= 10 * raw if raw else reserved == 0
        held = [k for k in client.scan_iter("hq:body:*") if client.ttl(k) == -1]
        assert int(client.get("hq:results:bytes") or 0) == sum(client.strlen(k) for k in held)

    def check_end(self):
        client = self.ledger.client
        entries = [fields for _, fields in client.xrange("hq:results")]
        groups = [fields[b"group_id"] for fields in entries]
        status = self.ledger.run_status("run")
        assert len(groups) == len(set(groups)) == status.groups
        assert status.groups + status.dropped == len(self.groups)
        for fields in entries:
            members = json.loads(fields[b"members"])
            assert len(set(members)) == len(members) <= self.size
            assert all(client.ttl(f"hq:body:{name}") == -1 for name in members)
            assert not set(members) & set(json.loads(fields[b"extras"]))
        for key in client.scan_iter("*"):
            assert client.ttl(key) > 0 or may_stay(key.decode().removeprefix("hq:")), key


@pytest.mark.parametrize("ledger", ["redis-7"], indirect=True)
@pytest.mark.parametrize("seed", range(8))
def test_a_life_in_any_order(ledger, seed):
    life = Life(ledger, seed)
    life.live()
    life.finish()
    life.check_end()


@pytest.mark.parametrize("ledger", ["redis-7"], indirect=True)
@pytest.mark.parametrize("seed", range(4))
def test_a_life_that_is_cancelled(ledger, seed):
    life = Life(ledger, seed)
    life.live(60)
    life.enqueue()
    if life.ledger.run_status("run").total:
        Runs(ledger).cancel("run")
        status = ledger.run_status("run")
        assert status.done
        assert accounts(ledger, "run", now=0)["tokens"].reserved == 0
        Runs(ledger).purge("run")
    for key in ledger.client.scan_iter("*"):
        assert ledger.client.ttl(key) > 0 or may_stay(key.decode().removeprefix("hq:")), key
