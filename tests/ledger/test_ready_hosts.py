"""Which group begins next where a host has at hand what some jobs need."""

from __future__ import annotations

import itertools

import pytest
from ledger_steps import enqueue
from records import make_job
from redis_server import RedisServer

from hermes_queue.ledger import Claim, Ledger
from hermes_queue.ledger.fleet.pacing import set_pace

COLD, WARM = "00000000", "aaaaaaaa"
nonces = itertools.count()


def group(instance, needs="", *, size=1, **fields):
    """The jobs of one group."""
    made = (make_job(instance=instance, sample=n, size=size, **fields) for n in range(size))
    return [job.model_copy(update={"needs": needs}) for job in made]


def send(ledger, *groups):
    enqueue(ledger, *itertools.chain(*groups))


def take(ledger, *needs, lanes=("train",)):
    """Instance of the next job for a host that has what these stand for."""
    number = next(nonces)
    begun = ledger.begin(
        "gone.x.0",
        1,
        owner="w1",
        lease_s=60.0,
        nonce=str(number),
        lanes=lanes,
        slot=number,
        ready=f" {' '.join(needs)} " if needs else "",
    )
    assert begun.verdict == "run"
    key = f"hq:group:{begun.trajectory_id.rsplit('.', 1)[0]}"
    return ledger.client.hget(key, "instance_id").decode()


def test_a_group_begins_earlier_on_a_host_that_has_what_it_needs(ledger):
    send(ledger, group("a", COLD), group("b", COLD), group("c", WARM))
    assert take(ledger, WARM, "bbbbbbbb") == "c"
    assert [take(ledger, WARM), take(ledger, WARM)] == ["a", "b"]


def test_a_host_that_has_nothing_keeps_the_order(ledger):
    send(ledger, group("a", COLD), group("b", WARM))
    assert [take(ledger), take(ledger)] == ["a", "b"]


def test_a_job_whose_needs_nobody_knows_is_not_overtaken(ledger):
    send(ledger, group("a"), group("b", WARM))
    assert take(ledger, WARM) == "a"


def test_groups_are_overtaken_and_their_members_stay_together(ledger):
    send(ledger, group("a", COLD, size=4), group("b", COLD, size=2), group("c", WARM, size=3))
    assert [take(ledger, WARM) for _ in range(4)] == ["c", "c", "c", "a"]
    assert [take(ledger, WARM) for _ in range(3)] == ["a", "a", "a"]


def test_members_of_a_group_that_has_begun_are_overtaken_by_nobody(ledger):
    send(ledger, group("a", COLD, size=2), group("b", WARM))
    assert take(ledger) == "a"
    assert take(ledger, WARM) == "a"


def test_what_is_handed_back_is_overtaken_by_nobody(ledger):
    send(ledger, group("a", COLD), group("b", WARM), group("c", WARM))
    assert take(ledger) == "a"
    [name] = ledger.client.zrange("hq:leases", 0, -1)
    ledger.requeue(Claim(name.decode(), 1), owner="w1")
    claim, due = ledger.due()
    ledger.published([job.trajectory_id for job in due], claim=claim)
    assert take(ledger, WARM) == "a"


def test_a_group_is_overtaken_a_few_times_at_most(ledger):
    send(ledger, group("a", COLD), *(group(f"b{n}", WARM) for n in range(40)))
    found = [take(ledger, WARM) for _ in range(20)]
    assert 4 <= found.index("a") <= 7
    assert found[: found.index("a")] == [f"b{n}" for n in range(found.index("a"))]


def test_only_the_first_groups_are_looked_at(ledger):
    send(ledger, *(group(f"a{n:02}", COLD) for n in range(20)), group("b", WARM))
    assert take(ledger, WARM) == "a00"


def test_a_group_sent_much_later_or_less_urgent_overtakes_nobody(ledger):
    [b] = group("b", WARM)
    send(ledger, group("a", COLD), [b], group("c", WARM, priority=6))
    ledger.client.zincrby("hq:sched:jobs:train||run|gsm8k", 61, b.trajectory_id)
    assert [take(ledger, WARM) for _ in range(3)] == ["a", "b", "c"]


def test_groups_of_a_run_that_a_trainer_paces_begin_in_their_order(ledger):
    send(ledger, group("a", COLD), group("b", WARM))
    set_pace(ledger, "run", 8, readers=["trainer"])
    assert take(ledger, WARM) == "a"


def test_no_run_goes_before_another_for_what_a_host_has(ledger):
    for run, needs in (("one", COLD), ("two", WARM)):
        send(ledger, *(group(f"{run}{n}", needs, run_id=run) for n in range(4)))
    found = [take(ledger, WARM)[:3] for _ in range(4)]
    assert found.count("one") == found.count("two") == 2


@pytest.mark.parametrize("junk", ["", "x" * 10**6, "        ", "[a-z]%s%", "%x%x%x%x"])
def test_junk_in_place_of_what_a_group_needs_changes_nothing(ledger, junk):
    [a], [b], [c] = group("a", COLD), group("b", WARM), group("c", WARM)
    send(ledger, [a, b, c])
    for job in (a, b):
        ledger.client.hset(f"hq:group:{job.group_id}", "needs", junk)
    assert [take(ledger, WARM) for _ in range(3)] == ["a", "b", "c"]


def test_a_group_that_is_no_hash_is_overtaken_by_nobody_and_stops_nobody(ledger):
    [b] = group("b", WARM)
    send(ledger, group("a", COLD), [b], group("c", WARM))
    ledger.client.delete(f"hq:group:{b.group_id}")
    ledger.client.rpush(f"hq:group:{b.group_id}", "x")
    assert take(ledger, WARM) == "a"
    assert take(ledger, WARM) == "c"


def test_needs_are_kept_with_the_group_and_never_written_into_a_job(ledger):
    [job] = group("a", WARM)
    send(ledger, [job])
    assert ledger.client.hget(f"hq:group:{job.group_id}", "needs") == WARM.encode()
    assert b"needs" not in ledger.client.hget(f"hq:traj:{job.trajectory_id}", "job")
    assert "needs" not in job.model_dump_json()


def test_looking_further_costs_a_few_commands_and_nothing_where_the_next_job_is_right(
    server: RedisServer,
) -> None:
    with server.client(decode_responses=False) as client:
        ledger = Ledger(client, prefix="hq:", url=server.url)
        needs = [WARM, WARM, *[COLD] * 20]
        send(ledger, *(group(f"{n:02}", each) for n, each in enumerate(needs)))

        def commands(*ready):
            client.config_resetstat()
            take(ledger, *ready)
            return sum(each["calls"] for each in client.info("commandstats").values())

        take(ledger)  # the script is there
        right, plain, cold = commands(WARM), commands(), commands(WARM)
    assert right == plain
    assert cold - plain <= 20
