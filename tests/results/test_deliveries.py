"""What is delivered again, to whom, and what is put aside."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time

import pytest
from ledger_steps import begin, enqueue
from ledger_steps import publish as publish_record
from records import make_job, make_record
from redis_server import RedisServer
from worker_process import wait_until

import hermes_queue
from hermes_queue.errors import RedisUnavailable
from hermes_queue.ledger import Ledger
from hermes_queue.results.consume import reading
from hermes_queue.results.deliveries import Deliveries
from hermes_queue.results.reader import StreamReader
from hermes_queue.results.trimming import trim
from hermes_queue.settings import ResultSettings


def publish(ledger: Ledger, *instances: str):
    jobs = [make_job(instance=name) for name in instances]
    enqueue(ledger, *jobs)
    for job in jobs:
        begin(ledger, job)
        publish_record(ledger, make_record(job))
    return jobs


async def read(url: str, consumer: str = "c1", *, ack: bool = True, **options):
    found = []
    options = {"idle_timeout_s": 0.3, **options}
    async for group in hermes_queue.consume("trainer", url=url, consumer=consumer, **options):
        found.append(group.instance_id)
        if ack:
            await group.ack()
    return found


def dead(ledger: Ledger):
    return [
        {k.decode(): v.decode() for k, v in e.items()} for _, e in ledger.client.xrange("hq:dead")
    ]


@pytest.mark.parametrize("body", [None, b"garbage"], ids=["gone", "unreadable"])
async def test_a_group_without_readable_bodies_becomes_a_dead_letter_and_the_rest_goes_on(
    ledger, body
):
    broken, _ = publish(ledger, "broken", "fine")
    key = f"hq:body:{broken.trajectory_id}"
    ledger.client.set(key, body) if body else ledger.client.delete(key)
    assert await read(ledger.url) == ["fine"]
    [letter] = dead(ledger)
    assert (letter["cause"], letter["instance_id"]) == ("undeliverable", "broken")
    assert json.loads(letter["members"]) == [broken.trajectory_id]
    assert ledger.client.xpending("hq:results", "trainer")["pending"] == 0


async def test_a_group_that_is_never_acknowledged_becomes_a_dead_letter(ledger):
    publish(ledger, "poison")
    lives = [await read(ledger.url, ack=False, max_deliveries=2) for _ in range(3)]
    assert lives == [["poison"], ["poison"], []]
    [letter] = dead(ledger)
    assert letter["reason"] == "delivered 3 times, never acknowledged"
    assert letter["consumer_group"] == "trainer"


async def test_what_is_given_back_goes_to_another_consumer_at_once(ledger):
    publish(ledger, "one")
    async for group in hermes_queue.consume("trainer", url=ledger.url, consumer="c1"):
        await group.nack()
        break
    assert await read(ledger.url, "c2", stale_s=3600) == ["one"]


def older_than(ledger: Ledger, milliseconds: int):
    """The one pending delivery, once it is so old."""
    [held] = ledger.client.xpending_range("hq:results", "trainer", "-", "+", 1)
    return held if held["time_since_delivered"] >= milliseconds else None


async def test_what_is_still_worked_on_is_not_stale(ledger):
    publish(ledger, "one")
    async for group in hermes_queue.consume("trainer", url=ledger.url, consumer="c1"):
        before = wait_until("it is 300 ms old", lambda: older_than(ledger, 300))
        began = time.monotonic()
        await group.touch()
        [after] = ledger.client.xpending_range("hq:results", "trainer", "-", "+", 1)
        took_ms = 1000 * (time.monotonic() - began)
        assert after["times_delivered"] == before["times_delivered"] == 1
        assert after["time_since_delivered"] <= took_ms + 50
        break


def times_delivered(ledger: Ledger):
    [held] = ledger.client.xpending_range("hq:results", "trainer", "-", "+", 10)
    return held["times_delivered"]


async def test_holding_a_group_while_reading_on_uses_up_none_of_its_deliveries(ledger):
    """A batch that takes long must not become dead letters when its consumer restarts."""
    publish(ledger, "one")
    assert await read(ledger.url, ack=False, stale_s=0.1, idle_timeout_s=2.5) == ["one"]
    assert times_delivered(ledger) == 1
    assert await read(ledger.url) == ["one"]


async def test_an_outage_uses_up_no_delivery_of_what_is_held(ledger, redis_server: RedisServer):
    publish(ledger, "one")
    groups = hermes_queue.consume("trainer", url=ledger.url, consumer="c1", idle_timeout_s=20)
    assert (await anext(groups)).instance_id == "one"
    redis_server.kill9()
    redis_server.restart()
    publish(ledger, "two")
    second = await anext(groups)
    assert second.instance_id == "two"
    await second.ack()
    assert times_delivered(ledger) == 1
    await groups.aclose()


async def test_what_was_handed_out_in_an_answer_that_never_came_is_delivered(ledger):
    publish(ledger, "one")
    groups = hermes_queue.consume("trainer", url=ledger.url, consumer="c1", idle_timeout_s=9)
    first = await anext(groups)
    publish(ledger, "two")
    ledger.client.xreadgroup("trainer", "c1", {"hq:results": ">"})  # as if on its connection
    ledger.client.client_kill_filter(_type="normal", skipme=True)
    assert (await anext(groups)).instance_id == "two"
    await first.ack()
    await groups.aclose()


def counts(ledger: Ledger) -> list[int]:
    """How often each pending entry was delivered."""
    pending = ledger.client.xpending_range("hq:results", "trainer", "-", "+", 100)
    return [entry["times_delivered"] for entry in pending]


async def ended_before_the_answer(method: str, monkeypatch, reading) -> None:
    """Cancel `reading` once Redis has handed out entries by `method`, before it has the answer."""
    answered, given = asyncio.Event(), getattr(Deliveries, method)

    async def answer_too_late(self, *args):
        entries = await given(self, *args)
        if answered.is_set() or not entries:
            return entries
        answered.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(Deliveries, method, answer_too_late)
        task = asyncio.ensure_future(reading)
        await answered.wait()
        task.cancel()
        await asyncio.wait({task})
    assert task.cancelled()


async def test_an_answer_that_came_as_the_consumer_was_told_to_end_uses_up_no_delivery(
    ledger, monkeypatch
):
    publish(ledger, "one", "two")
    await ended_before_the_answer("read", monkeypatch, read(ledger.url))
    assert counts(ledger) == [0, 0]
    assert await read(ledger.url, consumer="c2") == ["one", "two"]


@pytest.mark.parametrize("consumer", ["c1", "another"])
async def test_a_claim_that_was_answered_as_the_consumer_was_told_to_end_uses_up_no_delivery(
    ledger, monkeypatch, consumer
):
    publish(ledger, "one", "two")
    assert await read(ledger.url, ack=False) == ["one", "two"]
    again = read(ledger.url, consumer, stale_s=3600 if consumer == "c1" else 0.0)
    await ended_before_the_answer("take", monkeypatch, again)
    assert counts(ledger) == [1, 1]
    assert await read(ledger.url, consumer="c3", stale_s=0.0) == ["one", "two"]


async def test_what_was_taken_over_and_never_seen_keeps_its_earlier_deliveries(ledger, monkeypatch):
    publish(ledger, "one")
    for _ in range(3):
        assert await read(ledger.url, ack=False) == ["one"]
    await ended_before_the_answer("times", monkeypatch, read(ledger.url))
    assert counts(ledger) == [3]


async def test_deliveries_that_were_refused_count_although_the_consumer_ends_while_it_reads(
    ledger, monkeypatch
):
    publish(ledger, "one", "two")

    async def refuse_then_read() -> None:
        options = {"consumer": "c1", "prefetch": 1}
        async for group in hermes_queue.consume("trainer", url=ledger.url, **options):
            await group.nack()
            if group.instance_id == "two":
                publish(ledger, "three")
                refused.set()

    refused = asyncio.Event()
    given = Deliveries.read

    async def lost_once_refused(self, *args):
        entries = await given(self, *args)
        if refused.is_set() and entries:
            lost.set()
            await asyncio.Event().wait()
        return entries

    lost = asyncio.Event()
    monkeypatch.setattr(Deliveries, "read", lost_once_refused)
    task = asyncio.ensure_future(refuse_then_read())
    await lost.wait()
    task.cancel()
    await asyncio.wait({task})
    assert counts(ledger) == [1, 1, 0]


async def test_giving_back_late_takes_nothing_from_the_consumer_that_has_taken_over(ledger):
    publish(ledger, "one")
    groups = hermes_queue.consume("trainer", url=ledger.url, consumer="slow")
    late = await anext(groups)
    assert await read(ledger.url, "quick", stale_s=0.0, ack=False) == ["one"]
    await late.nack()
    await groups.aclose()
    [held] = ledger.client.xpending_range("hq:results", "trainer", "-", "+", 1)
    assert (held["consumer"], held["times_delivered"]) == (b"quick", 2)


@pytest.mark.parametrize("answer", ["ack", "nack"])
async def test_what_could_not_be_answered_is_delivered_again_in_the_same_life(
    ledger, redis_server: RedisServer, answer
):
    """Else it would hold back trimming for as long as its consumer lives."""
    publish(ledger, "one")
    groups = hermes_queue.consume("trainer", url=ledger.url, consumer="c1", idle_timeout_s=20)
    group = await anext(groups)
    redis_server.kill9()
    with pytest.raises(RedisUnavailable):
        await getattr(group, answer)()
    redis_server.restart()
    again = await anext(groups)
    assert again.instance_id == "one"
    await again.ack()
    await groups.aclose()


async def test_burying_a_group_again_leaves_one_letter(ledger, monkeypatch):
    """As when the answer to the first time was lost."""
    [job] = publish(ledger, "broken")
    ledger.client.delete(f"hq:body:{job.trajectory_id}")
    bury = StreamReader._bury

    async def twice(self, *arguments):
        await bury(self, *arguments)
        await bury(self, *arguments)

    monkeypatch.setattr(StreamReader, "_bury", twice)
    assert await read(ledger.url) == []
    assert len(dead(ledger)) == 1


async def test_a_group_that_a_full_redis_cannot_put_aside_does_not_stop_the_rest(ledger):
    """Only reading on can make room."""
    broken, _ = publish(ledger, "broken", "fine")
    assert await read(ledger.url, ack=False) == ["broken", "fine"]
    ledger.client.delete(f"hq:body:{broken.trajectory_id}")
    ledger.client.config_set("maxmemory", 1)
    assert await read(ledger.url) == ["fine"]
    ledger.client.config_set("maxmemory", 0)
    assert await read(ledger.url) == []
    assert len(dead(ledger)) == 1


async def test_acknowledging_twice_does_no_harm(ledger):
    publish(ledger, "one")
    async for group in hermes_queue.consume("trainer", url=ledger.url):
        await group.ack()
        await group.ack()
        break
    assert await read(ledger.url) == []


async def test_two_consumers_of_a_group_share_the_work(ledger):
    publish(ledger, *(f"i{n}" for n in range(6)))
    first = hermes_queue.consume("trainer", url=ledger.url, consumer="c1", idle_timeout_s=0.3)
    one = await anext(first)
    rest = await read(ledger.url, "c2")
    mine = [one.instance_id] + [group.instance_id async for group in first]
    assert sorted(mine + rest) == [f"i{n}" for n in range(6)]


CONSUMER = """
import asyncio, sys, time, hermes_queue
async def main():
    async for group in hermes_queue.consume("trainer", url=sys.argv[1], consumer="doomed"):
        print(group.instance_id, flush=True)
        time.sleep(600)
asyncio.run(main())
"""


async def test_another_consumer_takes_over_from_one_that_was_killed(ledger):
    publish(ledger, "one")
    command = [sys.executable, "-c", CONSUMER, ledger.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline().strip() == "one"
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert await read(ledger.url, "heir", stale_s=0.2, idle_timeout_s=3) == ["one"]


async def test_a_consumer_that_starts_again_makes_room_in_a_redis_that_is_full(ledger):
    publish(ledger, "one")
    assert await read(ledger.url, ack=False) == ["one"]
    ledger.client.config_set("maxmemory", 1)
    assert await read(ledger.url) == ["one"]
    done = trim(ledger, ResultSettings(retention_s=0), interval_s=0)
    assert done.entries == 1


async def test_a_group_says_whether_results_wait_for_it(ledger):
    publish(ledger, "one")
    await read(ledger.url, durable=False)
    assert ledger.client.hget("hq:consumer-group:trainer", "durable") == b"0"
    await read(ledger.url)
    assert ledger.client.hget("hq:consumer-group:trainer", "durable") == b"1"


async def test_a_group_in_which_nobody_has_read_yet_has_not_stopped_reading(ledger):
    async with reading("viewer", url=ledger.url, durable=False):
        assert ledger.client.xinfo_groups("hq:results")[0]["consumers"] == 0
        assert trim(ledger, ResultSettings(), interval_s=0).abandoned == ()


async def test_a_group_whose_consumers_are_silent_is_named(ledger):
    publish(ledger, "one")
    await read(ledger.url, durable=False)
    settings = ResultSettings(abandoned_after_s=0.001)
    assert trim(ledger, settings, interval_s=0).abandoned == ("trainer",)


async def test_acknowledging_what_was_never_delivered_changes_nothing(ledger):
    publish(ledger, "one")
    async for group in hermes_queue.consume("trainer", url=ledger.url, idle_timeout_s=0.3):
        assert ledger.client.xack("hq:results", "trainer", "1-1", "9999999999999-0") == 0
        await group.ack()
        await group.ack()  # neither does doing it twice
    publish(ledger, "two")
    assert await read(ledger.url) == ["two"]


async def test_acknowledging_after_the_consumer_group_was_removed_is_no_error(ledger):
    publish(ledger, "one")
    async for group in hermes_queue.consume("trainer", url=ledger.url, consumer="c"):
        ledger.client.xgroup_destroy("hq:results", "trainer")
        await group.ack()
        break
    assert await read(ledger.url) == ["one"]  # the group is a new one, and nothing was lost


async def test_each_life_of_a_consumer_counts_as_one_delivery(ledger):
    """Also where what it left has gone stale meanwhile."""
    publish(ledger, "a", "b")
    for life in (1, 2, 3):
        seen = 0
        async for group in hermes_queue.consume(
            "trainer", url=ledger.url, consumer="c1", stale_s=0.05, idle_timeout_s=0.3
        ):
            assert group.run_id == "run"
            seen += 1
        assert seen == 2
        pending = ledger.client.xpending_range("hq:results", "trainer", "-", "+", 10)
        assert [entry["times_delivered"] for entry in pending] == [life, life]
        await asyncio.sleep(0.1)
