"""Reading the results stream, against a real Redis."""

from __future__ import annotations

import asyncio

import pytest
from records import make_job, make_record

import hermes_queue
from hermes_queue.bodies import codec
from hermes_queue.errors import ConfigurationError, RedisUnavailable, SchemaTooNew
from hermes_queue.ledger import Ledger


def publish(ledger: Ledger, *jobs, score=1.0):
    accepted = ledger.enqueue(jobs[0].run_id, jobs, config={})
    for job in accepted:
        ledger.begin(job.trajectory_id, 1, owner="w", lease_s=60, nonce="n")
        record = make_record(job, score)
        ledger.publish(record, codec.encode_record(record), owner="w", finished_ttl_s=60)


async def read(url: str, group: str = "trainer", *, ack: bool = True, **options):
    found = []
    options = {"idle_timeout_s": 0.2, "consumer": "c1", **options}
    async for delivered in hermes_queue.consume(group, url=url, **options):
        found.append(delivered)
        if ack:
            await delivered.ack()
    return found


async def test_a_group_arrives_with_its_members(ledger, redis_server):
    jobs = [make_job(sample=i, size=2) for i in range(2)]
    publish(ledger, *jobs)
    [group] = await read(redis_server.url)
    assert [m.trajectory_id for m in group.members] == [j.trajectory_id for j in jobs]
    assert (group.size, group.complete, group.mean, group.std) == (2, True, 1.0, 0.0)
    assert group.members[0] == make_record(jobs[0])


async def test_what_was_acknowledged_is_not_delivered_again(ledger, redis_server):
    publish(ledger, make_job())
    assert len(await read(redis_server.url)) == 1
    assert await read(redis_server.url) == []


async def test_what_was_not_acknowledged_comes_first_in_the_consumers_next_life(
    ledger, redis_server
):
    publish(ledger, make_job(instance="a"))
    [first] = await read(redis_server.url, ack=False)
    publish(ledger, make_job(instance="b"))
    again = await read(redis_server.url)
    assert [g.instance_id for g in again] == [first.instance_id, "b"]


async def test_deliveries_of_a_dead_consumer_go_to_another_one(ledger, redis_server):
    publish(ledger, make_job())
    await read(redis_server.url, ack=False, consumer="dead")
    assert len(await read(redis_server.url, consumer="heir", stale_s=0.0)) == 1


async def test_consumers_of_one_group_share_and_other_groups_see_everything(ledger, redis_server):
    publish(ledger, make_job())
    assert len(await read(redis_server.url, "trainer")) == 1
    assert len(await read(redis_server.url, "writer")) == 1


async def test_a_filter_passes_over_other_runs(ledger, redis_server):
    publish(ledger, make_job("mine"))
    publish(ledger, make_job("other"))
    assert [g.run_id for g in await read(redis_server.url, run="mine")] == ["mine"]
    pending = ledger.client.xpending("hq:results", "trainer")
    assert pending["pending"] == 0


async def test_a_group_keeps_its_filter(ledger, redis_server):
    await read(redis_server.url, run="mine")
    with pytest.raises(ConfigurationError, match="keeps its filter"):
        await read(redis_server.url, run="other")


async def test_a_group_from_a_newer_version_is_refused_and_kept(ledger, redis_server):
    publish(ledger, make_job())
    [(entry_id, fields)] = ledger.client.xrange("hq:results")
    ledger.client.xadd("hq:results", {**fields, b"schema": b"9"})
    ledger.client.xdel("hq:results", entry_id)
    with pytest.raises(SchemaTooNew, match="upgrade"):
        await read(redis_server.url)
    assert ledger.client.xpending("hq:results", "trainer")["pending"] == 1


async def test_an_unreachable_redis_is_a_clear_error():
    with pytest.raises(RedisUnavailable, match="cannot be reached"):
        await read("unix:///nowhere/redis.sock")


async def test_a_wrong_password_names_the_variable(tmp_path, redis_server):
    with redis_server.client() as client:
        client.config_set("requirepass", "secret")
    with pytest.raises(RedisUnavailable, match="HERMES_QUEUE_REDIS_URL"):
        await read(redis_server.url.replace("unix://", "unix://:wrong@"))


async def test_reading_goes_on_after_redis_was_killed(ledger, redis_server):
    publish(ledger, make_job(instance="a"))
    stream = hermes_queue.consume("trainer", url=redis_server.url, consumer="c1")
    first = await anext(stream)
    await first.ack()
    publish(ledger, make_job(instance="b"))
    redis_server.kill9()
    redis_server.start()
    second = await anext(stream)
    assert second.instance_id == "b"
    await stream.aclose()


@pytest.mark.fleet
async def test_a_cancellation_at_any_moment_ends_it(ledger, redis_server):
    publish(ledger, make_job())
    for steps in range(150):
        task = asyncio.create_task(read(redis_server.url, f"g{steps % 3}", idle_timeout_s=3600))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task], timeout=20)
        assert task.done(), steps


async def test_a_cancellation_is_not_lost_while_a_group_is_acknowledged(ledger, redis_server):
    publish(ledger, make_job())
    for steps in range(12):
        async for group in hermes_queue.consume(f"g{steps}", url=redis_server.url):
            task = asyncio.create_task(group.ack())
            for _ in range(steps):
                await asyncio.sleep(0)
            if task.cancel():
                await asyncio.wait([task], timeout=60)
                assert task.cancelled(), steps
            break


def publish_evaluation(ledger: Ledger, *jobs):
    for job in ledger.enqueue(jobs[0].run_id, jobs, config={}):
        ledger.begin(job.trajectory_id, 1, owner="w", lease_s=60, nonce="n")
        record = make_record(job, 1.0).model_copy(update={"evaluation": True})
        ledger.publish(record, codec.encode_record(record), owner="w", finished_ttl_s=60)


async def test_a_trainer_is_not_given_an_evaluation_unless_it_asks_for_it(ledger, redis_server):
    publish_evaluation(ledger, make_job(instance="benchmark"))
    publish(ledger, make_job("other", instance="task"))
    assert [g.instance_id for g in await read(redis_server.url)] == ["task"]
    asked = await read(redis_server.url, "evaluator", allow_evaluation=True)
    assert sorted(g.instance_id for g in asked) == ["benchmark", "task"]
    # It was acknowledged: it does not keep results from being trimmed, and never comes again.
    assert await read(redis_server.url, allow_evaluation=True) == []
    with hermes_queue.consume_sync("sync", url=redis_server.url, idle_timeout_s=0.2) as groups:
        assert [group.instance_id for group in groups] == ["task"]


async def test_a_replay_leaves_evaluations_out_unless_asked(ledger, redis_server, tmp_path):
    publish_evaluation(ledger, make_job(instance="benchmark"))
    where = {"url": redis_server.url, "archive": tmp_path}
    assert list(hermes_queue.replay(**where)) == []
    [group] = hermes_queue.replay(**where, allow_evaluation=True)
    assert group.members[0].evaluation


@pytest.mark.parametrize("name", ["", "x" * 257, "a\nb", "*", "../x", "g\x1b[2J"])
async def test_a_group_or_consumer_without_a_proper_name_is_refused(redis_server, name):
    with pytest.raises(ConfigurationError, match=r"consumer group .*: write letters"):
        await read(redis_server.url, name)
    if name:
        with pytest.raises(ConfigurationError, match=r"consumer .*: write letters"):
            await read(redis_server.url, consumer=name)
