"""The other forms of `consume`: batches, without asyncio, filters, places to begin, lag."""

from __future__ import annotations

import subprocess
import sys
import threading
from datetime import UTC, datetime

import pytest
from ledger_steps import begin, enqueue
from ledger_steps import publish as publish_record
from records import make_job, make_record
from worker_process import wait_until

import hermes_queue
from hermes_queue.errors import ConfigurationError, SchemaTooNew
from hermes_queue.ledger import Ledger


def publish(ledger: Ledger, *instances: str, scores: tuple[float | None, ...] = (1.0,)):
    for name in instances:
        jobs = [make_job(instance=name, sample=i, size=len(scores)) for i in range(len(scores))]
        enqueue(ledger, *jobs)
        for job, score in zip(jobs, scores, strict=True):
            begin(ledger, job)
            publish_record(ledger, make_record(job, score))


async def read(ledger: Ledger, group: str = "trainer", **options) -> list[str]:
    found = []
    options = {"idle_timeout_s": 0.3, **options}
    async for delivered in hermes_queue.consume(group, url=ledger.url, **options):
        found.append(delivered.instance_id)
        await delivered.ack()
    return found


def pending(ledger: Ledger, group: str = "trainer") -> int:
    return ledger.client.xpending("hq:results", group)["pending"]


async def test_batches_have_the_size_asked_for_and_the_rest_at_the_end(ledger):
    publish(ledger, *"abcde")
    sizes = []
    async for batch in hermes_queue.consume_batches(
        "trainer", size=2, wait_s=5, url=ledger.url, idle_timeout_s=0.5
    ):
        sizes.append(len(batch))
        for group in batch:
            await group.ack()
    assert sizes == [2, 2, 1]
    assert pending(ledger) == 0


async def test_a_batch_that_does_not_fill_comes_after_its_time(ledger):
    publish(ledger, "a")
    async for batch in hermes_queue.consume_batches("trainer", size=8, wait_s=0.2, url=ledger.url):
        assert [group.instance_id for group in batch] == ["a"]
        break


def test_a_trainer_without_asyncio_reads_in_a_plain_loop(ledger):
    publish(ledger, "a", "b")
    found = []
    with hermes_queue.consume_sync("trainer", url=ledger.url, idle_timeout_s=0.3) as groups:
        for group in groups:
            found.append((group.instance_id, group.members[0].score))
            group.ack()
            group.ack()
    assert found == [("a", 1.0), ("b", 1.0)]
    assert pending(ledger) == 0


def test_what_was_read_ahead_and_not_used_goes_to_another_consumer_at_once(ledger):
    publish(ledger, *"abcdef")
    with hermes_queue.consume_sync("trainer", url=ledger.url, consumer="one", ahead=3) as groups:
        next(groups).ack()
        wait_until("it reads ahead", lambda: pending(ledger) >= 3)
    with hermes_queue.consume_sync(
        "trainer", url=ledger.url, consumer="two", stale_s=3600, idle_timeout_s=1
    ) as groups:
        rest = []
        for group in groups:
            rest.append(group.instance_id)
            group.ack()
    assert sorted(rest) == list("bcdef")


def test_a_long_step_without_asyncio_does_not_make_its_group_stale(ledger):
    publish(ledger, "a")
    with hermes_queue.consume_sync("trainer", url=ledger.url, consumer="one", stale_s=0.4) as held:
        group = next(held)
        wait_until("it was renewed twice", renewals(ledger, 2))
        assert pending(ledger) == 1
        group.ack()
    assert pending(ledger) == 0


def renewals(ledger: Ledger, count: int):
    """Whether the one pending delivery was seen to grow younger so often."""
    seen = {"idle": 0, "times": 0}

    def probe() -> bool:
        [entry] = ledger.client.xpending_range("hq:results", "trainer", "-", "+", 1)
        seen["times"] += entry["time_since_delivered"] < seen["idle"]
        seen["idle"] = entry["time_since_delivered"]
        return seen["times"] >= count

    return probe


def test_errors_of_the_stream_reach_a_trainer_without_asyncio(ledger):
    publish(ledger, "a")
    [(_, fields)] = ledger.client.xrange("hq:results")
    ledger.client.xadd("hq:results", {**fields, b"schema": b"9"})
    with hermes_queue.consume_sync("trainer", url=ledger.url, ahead=1) as groups:
        next(groups).ack()
        with pytest.raises(SchemaTooNew):
            next(groups)
    assert pending(ledger) == 1


def test_closing_it_twice_or_in_the_middle_leaves_no_thread(ledger):
    publish(ledger, "a")
    before = set(threading.enumerate())
    groups = hermes_queue.consume_sync("trainer", url=ledger.url)
    next(groups)
    groups.close()
    groups.close()
    assert list(groups) == []
    assert set(threading.enumerate()) <= before  # those of earlier tests may end meanwhile


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"complete": True}, ["zero", "half", "one"]),
        ({"min_mean": 0.5}, ["half", "one"]),
        ({"max_mean": 0.5}, ["zero", "half"]),
        ({"min_std": 0.01}, ["half"]),
        ({}, ["zero", "half", "one", "lost"]),
    ],
    ids=str,
)
async def test_filters_look_at_the_entry_only(options, expected, ledger):
    publish(ledger, "zero", scores=(0.0, 0.0))
    publish(ledger, "half", scores=(0.0, 1.0))
    publish(ledger, "one", scores=(1.0, 1.0))
    publish(ledger, "lost", scores=(None, None))
    assert await read(ledger, **options) == expected
    assert pending(ledger) == 0


async def test_a_group_begins_at_a_time_or_after_an_entry(ledger):
    publish(ledger, "a", "b", "c")
    [_, (second, _), (third, _)] = ledger.client.xrange("hq:results")
    assert await read(ledger, "by-id", start=second.decode()) == ["c"]
    at = int(third.partition(b"-")[0]) / 1000
    for name, start in (("s", at), ("d", datetime.fromtimestamp(at, UTC))):
        assert "c" in (found := await read(ledger, name, start=start))
        assert "a" not in found or third.partition(b"-")[0] == second.partition(b"-")[0]
    with pytest.raises(ValueError, match="time zone"):
        await read(ledger, "n", start=datetime(2026, 1, 1))  # noqa: DTZ001
    with pytest.raises(ValueError, match="start 'yesterday'"):
        await read(ledger, "y", start="yesterday")


async def test_a_group_set_back_reads_again(ledger):
    publish(ledger, "a", "b")
    assert await read(ledger) == ["a", "b"]
    await hermes_queue.rewind("trainer", "0", url=ledger.url)
    assert await read(ledger) == ["a", "b"]
    with pytest.raises(ConfigurationError, match="no consumer group 'nobody'"):
        await hermes_queue.rewind("nobody", "0", url=ledger.url)


async def test_lag_counts_what_was_not_given_and_what_was_not_acknowledged(ledger):
    publish(ledger, "a", "b", "c")
    async for _ in hermes_queue.consume("trainer", url=ledger.url, prefetch=1):
        break
    behind = await hermes_queue.consumer_lag("trainer", url=ledger.url)
    assert (behind.behind, behind.pending) == (2, 1)
    assert behind.oldest_s is not None
    ledger.client.xdel("hq:results", ledger.client.xrange("hq:results")[1][0])
    assert (await hermes_queue.consumer_lag("trainer", url=ledger.url)).behind == 1
    await read(ledger, stale_s=0.0)
    behind = await hermes_queue.consumer_lag("trainer", url=ledger.url)
    assert (behind.behind, behind.pending, behind.oldest_s) == (0, 0, None)


async def test_a_slow_consumer_group_neither_starves_nor_drops_another(ledger):
    publish(ledger, "first")
    slow = hermes_queue.consume("slow", url=ledger.url, consumer="s", prefetch=1)
    held = await anext(slow)
    publish(ledger, *(f"i{n}" for n in range(50)))
    everything = ["first", *(f"i{n}" for n in range(50))]
    assert await read(ledger, "fast") == everything
    assert await read(ledger, "other") == everything
    await held.ack()
    await slow.aclose()
    assert await read(ledger, "slow", consumer="s") == everything[1:]


DIES_ON_FIRST = """
import asyncio, os, signal, sys, hermes_queue
async def main():
    async for group in hermes_queue.consume("trainer", url=sys.argv[1], consumer="c"):
        if group.instance_id == "poison":
            os.kill(os.getpid(), signal.SIGKILL)
        await group.ack()
asyncio.run(main())
"""


async def test_groups_read_ahead_behind_one_that_kills_are_not_given_up_with_it(ledger):
    publish(ledger, "poison", "innocent", "bystander")
    for _ in range(3):
        subprocess.run([sys.executable, "-c", DIES_ON_FIRST, ledger.url], check=False)
    assert await read(ledger, consumer="c", max_deliveries=2) == ["innocent", "bystander"]
    [(_, letter)] = ledger.client.xrange("hq:dead")
    assert letter[b"instance_id"] == b"poison"


def test_importing_it_takes_no_part_in_anything(ledger):
    """No thread and no connection before the first call."""
    code = "import threading, hermes_queue; print(threading.active_count())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


def test_what_was_read_ahead_and_never_seen_uses_up_no_delivery(ledger):
    publish(ledger, "seen", "b", "c")
    with hermes_queue.consume_sync("trainer", url=ledger.url, ahead=2) as groups:
        assert next(groups).instance_id == "seen"
        wait_until("it has read ahead", lambda: pending(ledger) == 3)
    entries = ledger.client.xpending_range("hq:results", "trainer", "-", "+", 10)
    assert [entry["times_delivered"] for entry in entries] == [1, 0, 0]


async def test_what_is_given_back_for_another_reason_uses_up_no_delivery(ledger):
    publish(ledger, "a")
    for _ in range(3):
        async for group in hermes_queue.consume("trainer", url=ledger.url, max_deliveries=1):
            await group.nack(counted=False)
            break
    assert await read(ledger, max_deliveries=1) == ["a"]


async def test_a_bound_is_the_same_filter_however_it_is_written(ledger):
    publish(ledger, "a")
    assert await read(ledger, min_mean=1) == ["a"]
    assert await read(ledger, min_mean=1.0) == []
