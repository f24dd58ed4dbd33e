"""What is remembered of tasks: added up, bounded, and unbroken by junk."""

from __future__ import annotations

import json

import pytest
from ledger_steps import age_lease, begin, enqueue, publish, swept
from records import make_job, make_record

from hermes_queue.errors import InputError
from hermes_queue.ledger.poison import item_hash
from hermes_queue.ledger.tasks import Observation, Observations, Solver, Task, TaskMemory
from hermes_queue.ledger.tasks.lines import line_of, tasks_in
from hermes_queue.models import Failure, Regraded, TrajectoryProvenance
from hermes_queue.settings import TaskMemorySettings

A, B = "a" * 64, "b" * 64
QWEN, ORACLE = Solver("qwen", "7"), Solver("agent:oracle")


def memory_of(ledger, **settings):
    return TaskMemory(ledger, TaskMemorySettings(**settings))


def known(ledger, sha=A) -> Task:
    task = TaskMemory(ledger).get("gsm8k", sha)
    assert task is not None
    return task


def seen(sha=A, solver=QWEN, **facts):
    return Observation("gsm8k", sha, instance_id="i", solver=solver, **facts)


def test_attempts_scores_seconds_cost_and_causes_add_up(ledger):
    memory = memory_of(ledger)
    memory.add([seen(score=1.0, seconds=10.0, cost_usd=0.25, tokens=1000)])
    memory.add(
        [
            seen(score=0.0, seconds=20.0, tokens=500, attempts=3, causes=(("model", "agent"),) * 2),
            seen(causes=(("sandbox", "setup"),)),
        ]
    )
    task = known(ledger)
    assert (task.attempts, task.rate.scored, task.rate.passes, task.rate.pass_rate) == (
        5,
        2,
        1,
        0.5,
    )
    assert (task.seconds.mean, task.seconds.std) == (15.0, 5.0)
    assert (task.cost_usd, task.priced, task.tokens) == (0.25, 1, 1500)
    assert {(c.cause, c.stage, c.times) for c in task.causes} == {
        ("model", "agent", 2),
        ("sandbox", "setup", 1),
    }
    assert task.instance_id == "i"


def test_each_model_and_policy_has_scores_of_its_own(ledger):
    seven, eight, other = QWEN, Solver("qwen", "8"), Solver("glm")
    memory_of(ledger).add(
        [seen(solver=seven, score=0.0), seen(solver=eight, score=1.0), seen(solver=other, score=1)]
    )
    task = known(ledger)
    assert {each.solver: each.rate.pass_rate for each in task.solvers} == {
        seven: 0,
        eight: 1,
        other: 1,
    }
    assert task.rate_of("qwen").pass_rate == 0.5
    assert task.rate_of("nobody").pass_rate is None


def test_an_agent_without_a_model_says_nothing_about_how_hard_a_task_is(ledger):
    memory_of(ledger).add([seen(solver=ORACLE, score=1.0, seconds=3.0)])
    task = known(ledger)
    assert (task.attempts, task.rate.scored, task.rate.pass_rate, task.seconds.mean) == (
        1,
        0,
        None,
        None,
    )
    assert task.rate_of("agent:oracle").pass_rate == 1.0
    assert task.seconds_of("agent:oracle") == 3.0


def test_only_the_newest_policies_and_causes_stay(ledger):
    memory = memory_of(ledger)
    for n in range(12):
        causes = ((f"cause{n}", "agent"),)
        memory.add([seen(solver=Solver("qwen", str(n)), score=1.0, causes=causes)])
    task = known(ledger)
    assert (len(task.solvers), len(task.causes), task.rate.scored) == (6, 5, 12)


def test_of_too_many_tasks_those_that_ran_least_lately_are_forgotten(ledger):
    memory = memory_of(ledger, max_entries=3)
    hashes = [f"{n:064x}" for n in range(5)]
    for sha in hashes[:3]:
        memory.add([seen(sha)])
    memory.add([seen(hashes[0])])
    for sha in hashes[3:]:
        memory.add([seen(sha)])
    assert sorted(memory.get_many("gsm8k", hashes)) == [hashes[0], *hashes[3:]]
    assert len(memory) == 3 == len(list(ledger.client.scan_iter("hq:task:*")))


def test_nothing_of_it_stays_for_ever(ledger):
    memory_of(ledger, kept_s=600).add([seen()])
    keys = [f"hq:task:gsm8k:{A}", "hq:tasks"]
    assert all(0 < ledger.client.ttl(key) <= 600 for key in keys)


def test_a_task_that_nobody_runs_is_forgotten_by_the_index_too(ledger):
    memory_of(ledger).add([seen(A), seen(B)])
    ledger.client.zadd("hq:tasks", {f"gsm8k:{A}": 1000.0})
    memory_of(ledger).add([seen(B)])
    assert [task.item_sha256 for task in memory_of(ledger).newest()] == [B]
    assert len(memory_of(ledger)) == 1


@pytest.mark.parametrize(
    "junk",
    [b"", b"\xff{", b"[1]", b'{"attempts": "x", "solvers": 3, "causes": {"a": 1}}', b"[" * 5000],
)
def test_an_entry_that_cannot_be_read_is_replaced(ledger, junk):
    ledger.client.set(f"hq:task:gsm8k:{A}", junk)
    memory_of(ledger).add([seen(score=1.0)])
    assert known(ledger).attempts == 1


def test_keys_of_another_type_are_replaced(ledger):
    ledger.client.rpush(f"hq:task:gsm8k:{A}", "x")
    ledger.client.set("hq:tasks", "x")
    assert memory_of(ledger).get_many("gsm8k", [A]) == {}
    memory_of(ledger).add([seen(score=1.0)])
    assert [task.attempts for task in memory_of(ledger).newest()] == [1]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 10**400, 1e300])
def test_numbers_that_cannot_be_harm_no_other_task(ledger, value):
    wrong = seen(A, score=value, seconds=value, cost_usd=value, tokens=value, attempts=value)
    memory_of(ledger).add([wrong, seen(B, score=1.0)])
    assert known(ledger, B).rate.pass_rate == 1.0
    assert abs(known(ledger, A).tokens) <= 1e15
    json.loads(line_of(known(ledger, A)), parse_constant=lambda name: pytest.fail(name))


def test_large_counts_of_tokens_stay_exact(ledger):
    for _ in range(3):
        memory_of(ledger).add([seen(tokens=999_999_999_999)])
    assert known(ledger).tokens == 2_999_999_999_997


def test_names_of_any_length_and_kind_give_a_bounded_entry(ledger):
    solvers = [Solver(f"{n}" + "\u4e2d\n\x7f" * 200, "p" * 3000) for n in range(20)]
    memory_of(ledger).add([seen(solver=each, score=1.0) for each in solvers])
    memory_of(ledger).add([seen(solver=solvers[-1], score=1.0, causes=(("c" * 9000, "s"),))])
    assert ledger.client.strlen(f"hq:task:gsm8k:{A}") < 16384
    assert len(known(ledger).solvers) == 6


def test_the_newest_come_first_however_many_have_the_same_time(ledger):
    memory = memory_of(ledger)
    hashes = [f"{n:064x}" for n in range(1201)]
    memory.add(seen(sha) for sha in hashes)
    ledger.client.zadd("hq:tasks", {f"gsm8k:{sha}": 1000.0 for sha in hashes[:1100]})
    newest = [task.item_sha256 for task in memory.newest()]
    assert sorted(newest) == hashes
    assert set(newest[:101]) == set(hashes[1100:])
    assert {task.item_sha256 for task in memory.every()} == set(hashes)


def test_what_was_exported_comes_back_and_changes_nothing_the_second_time(ledger):
    memory = memory_of(ledger)
    memory.add([seen(score=1.0, seconds=2.5, cost_usd=0.5, causes=(("model", "agent"),))])
    before = known(ledger)
    lines = [line_of(task).encode() for task in memory.every()]
    assert memory.take_over(tasks_in(lines, "f")) == 0
    memory.forget([("gsm8k", A)])
    assert len(memory) == 0
    assert memory.take_over(tasks_in(lines, "f")) == 1
    assert memory.take_over(tasks_in(lines, "f")) == 0
    assert known(ledger) == before


def test_the_counts_of_another_fleet_can_be_added(ledger):
    memory = memory_of(ledger)
    memory.add([seen(score=1.0)])
    assert memory.take_over(list(memory.every()), add=True) == 1
    assert (known(ledger).rate.scored, known(ledger).solvers[0].rate.scored) == (2, 2)


@pytest.mark.parametrize(
    ("line", "field"),
    [
        (b"x", "the line"),
        (b'{"env": "e", "item_sha256": "' + b"0" * 64 + b'"}', "last"),
        (b'{"env": "e", "item_sha256": "zz", "last": 1}', "item_sha256"),
        (b'{"env": "e", "item_sha256": "' + b"0" * 64 + b'", "last": 1, "tokens": -1}', "tokens"),
        (b"x" * 70_000, "bytes"),
    ],
)
def test_a_line_that_is_no_task_is_refused_by_its_place(line, field):
    with pytest.raises(InputError, match=rf"f:2: .*{field}"):
        list(tasks_in([b"\n", line], "f"))


def test_the_deaths_of_a_poison_item_are_counted_where_it_is_published(ledger):
    job = make_job()
    enqueue(ledger, job)
    sweep = swept(ledger)
    for _ in range(5):
        begin(ledger, job)
        age_lease(ledger, job)
        sweep()
    epoch = begin(ledger, job).epoch
    facts = TrajectoryProvenance(item_sha256=item_hash(job))
    poison = Failure(cause="sandbox", stage="setup", type="PoisonJob", message="it kills")
    update = {"epoch": epoch, "provenance": facts, "failure": poison}
    record = make_record(job, None).model_copy(update=update)
    assert [publish(ledger, record) for _ in range(2)] == ["group", "final"]
    task = TaskMemory(ledger).get(job.env, item_hash(job))
    assert task is not None
    assert task.deaths == 5


def regraded(score, *, version="1", sha=A):
    job = make_job()
    before = Regraded(run_id="r", trajectory_id="t", score=1.0, env_version="1", item_sha256=A)
    facts = TrajectoryProvenance(item_sha256=sha, env_version=version)
    update = {"regraded": before, "provenance": facts}
    return Observation.of(make_record(job, score).model_copy(update=update))


def test_the_same_answer_with_another_verdict_is_a_flake_and_no_new_score(ledger):
    memory = memory_of(ledger)
    memory.add([regraded(1.0), regraded(0.0), regraded(0.0, version="2"), regraded(None)])
    task = known(ledger)
    assert (task.regraded, task.flips, task.flake_rate) == (2, 1, 0.5)
    assert (task.rate.scored, task.solvers) == (0, ())


def test_while_redis_is_away_what_waits_is_bounded_and_the_rest_is_said(ledger, monkeypatch):
    monkeypatch.setattr("hermes_queue.ledger.tasks.observed.WAITING_MOST", 3)
    waiting = Observations()
    for n in range(5):
        waiting.note(seen(f"{n:064x}"))
    taken = waiting.take(2)
    waiting.put_back(taken)
    assert memory_of(ledger).report(waiting) == 3
    assert (waiting.dropped(), waiting.dropped()) == (2, 0)


def test_agents_without_a_model_make_no_task_cheaper(ledger):
    oracle = Solver("agent:oracle")
    memory_of(ledger).add([seen(solver=oracle, score=1.0, cost_usd=0.0), seen(cost_usd=0.5)])
    task = known(ledger)
    assert (task.cost_usd, task.priced, task.attempts) == (0.5, 1, 2)
