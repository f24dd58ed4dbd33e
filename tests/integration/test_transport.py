"""The pool's transport beside kombu's: fewer commands, and the same in Redis."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from kombu import Connection, Consumer, Producer, Queue
from kombu.transport import redis as kombus
from redis_server import RedisServer

from hermes_queue.broker.enqueue import publish_messages
from hermes_queue.broker.pool.screening import Screen
from hermes_queue.broker.pool.transport import BatchConnection, attach
from hermes_queue.ledger import DueJob, Ledger

pytestmark = pytest.mark.redis

Opened = Callable[..., "Taking"]
QUEUE = "v1.train"
PREFIX = "hq:"


class Taking:
    """A consumer on a connection of its own."""

    def __init__(self, kind: type[Connection], server: RedisServer, room: int = 1) -> None:
        options = {"global_keyprefix": PREFIX}
        self.connection = kind(server.broker_url, transport_options=options)
        self.channel = self.connection.default_channel
        self.messages: list[Any] = []
        self.screen = Screen()
        if kind is BatchConnection:
            attach(self.channel, self.screen, lambda: room)
        self._consumer = Consumer(self.channel, [Queue(QUEUE)], on_message=self._take)

    def take(self) -> list[str]:
        """The ids of what one turn brings."""
        self.messages.clear()
        self._consumer.consume()
        self.connection.drain_events(timeout=10)
        return [message.headers["id"] for message in self.messages]

    def _take(self, message: Any) -> None:
        if message.headers["id"].startswith("strange"):
            raise TypeError("unhashable")
        self.messages.append(message)


@pytest.fixture
def opened(redis_server: RedisServer) -> Iterator[Opened]:
    """Opens consumers, and closes them before Redis ends."""
    with ExitStack() as stack:

        def made(kind: type[Connection], room: int = 1) -> Taking:
            taking = Taking(kind, redis_server, room)
            stack.callback(taking.connection.release)
            return taking

        yield made


def put(server: RedisServer, *ids: str) -> list[str]:
    """Have messages of jobs wait; returns their task ids."""
    with server.client(decode_responses=False) as client:
        ledger = Ledger(client, prefix=PREFIX, url=server.url)
        publish_messages(ledger, [DueJob(name, 1, "train", 0, "gsm8k", "i") for name in ids])
    return [f"{name}.1" for name in ids]


def commands(server: RedisServer) -> Counter[str]:
    """How often each command was called since the last time."""
    with server.client() as client:
        stats = client.info("commandstats")
        client.config_resetstat()
    return Counter({name.removeprefix("cmdstat_"): s["calls"] for name, s in stats.items()})


def unacknowledged(server: RedisServer) -> dict[str, Any]:
    with server.client() as client:
        records = client.hgetall(f"{PREFIX}unacked")
        assert set(client.zrange(f"{PREFIX}unacked_index", 0, -1)) == set(records)
    return {tag: json.loads(record) for tag, record in records.items()}


def test_what_fits_is_taken_recorded_and_acknowledged_in_three_round_trips(
    redis_server: RedisServer,
    opened: Opened,
) -> None:
    ids = put(redis_server, *(f"r.a.{n}" for n in range(12)))
    taking = opened(BatchConnection, room=8)
    commands(redis_server)
    assert taking.take() == ids[:8]
    assert len(unacknowledged(redis_server)) == 8
    used = commands(redis_server)
    assert (used["brpop"], used["rpop"], used["exec"]) == (1, 1, 2)
    taking.channel.acknowledge(taking.messages)
    used = commands(redis_server)
    assert (used["exec"], used["zrem"], used["hdel"]) == (1, 1, 1)
    assert unacknowledged(redis_server) == {}
    assert len(taking.channel.qos._delivered) - len(taking.channel.qos._dirty) == 0
    with redis_server.client() as client:
        assert client.llen(f"{PREFIX}{QUEUE}") == 4


def test_one_free_slot_takes_one_message(redis_server: RedisServer, opened: Opened) -> None:
    ids = put(redis_server, "r.a.0", "r.a.1")
    taking = opened(BatchConnection, room=1)
    commands(redis_server)
    assert taking.take() == ids[:1]
    assert commands(redis_server)["rpop"] == 0


def test_the_limit_of_prefetched_messages_holds(redis_server: RedisServer, opened: Opened) -> None:
    ids = put(redis_server, *(f"r.a.{n}" for n in range(6)))
    taking = opened(BatchConnection, room=6)
    taking.channel.basic_qos(0, 4, False)
    assert taking.take() == ids[:4]


def test_the_record_of_a_message_is_kombus(redis_server: RedisServer, opened: Opened) -> None:
    ids = put(redis_server, "r.a.0")
    kombus = opened(Connection)
    assert kombus.take() == ids
    expected = unacknowledged(redis_server)
    kombus.messages[0].requeue()
    ours = opened(BatchConnection)
    assert ours.take() == ids
    record = unacknowledged(redis_server)
    for [payload, *_] in [*expected.values(), *record.values()]:  # marks of the second delivery
        payload["headers"].pop("redelivered", None)
        payload["properties"]["delivery_info"].pop("redelivered", None)
    assert record == expected
    ours.messages[0].requeue()
    assert (unacknowledged(redis_server), kombus.take()) == ({}, ids)


def test_of_a_batch_only_what_cannot_be_handled_is_dropped(
    redis_server: RedisServer, opened: Opened
) -> None:
    first, _ = put(redis_server, "r.a.0", "strange")
    with redis_server.client() as client:
        client.lpush(f"{PREFIX}{QUEUE}", "[]")
    [last] = put(redis_server, "r.a.1")
    taking = opened(BatchConnection, room=8)
    assert taking.take() == [first, last]
    assert taking.screen.refused == 2
    assert len(unacknowledged(redis_server)) == 2


def test_a_failed_acknowledgement_leaves_room_for_other_messages(
    redis_server: RedisServer, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = put(redis_server, *(f"r.a.{n}" for n in range(4)))
    taking = opened(BatchConnection, room=2)
    taking.channel.basic_qos(0, 2, False)
    assert taking.take() == ids[:2]

    def is_lost(*_: Any, **__: Any) -> None:
        raise ConnectionResetError

    with monkeypatch.context() as patch:
        patch.setattr(kombus.PrefixedRedisPipeline, "execute", is_lost)
        with pytest.raises(ConnectionResetError):
            taking.channel.acknowledge(taking.messages)
    assert taking.take() == ids[2:]
    assert len(unacknowledged(redis_server)) == 4  # the first two come back


def test_a_channel_without_jobs_reads_anything_and_records_nothing(
    redis_server: RedisServer, opened: Opened
) -> None:
    """As a worker does that asks the others what they know, when it starts."""
    connection = opened(BatchConnection).connection
    answers: list[object] = []
    with connection.channel() as channel:
        reply = Queue("reply", channel=channel, durable=False, auto_delete=True)
        consumer = Consumer(channel, [reply], no_ack=True)
        consumer.register_callback(lambda body, message: answers.append(body))
        consumer.consume()
        Producer(channel).publish({"clock": 3}, routing_key="reply")
        connection.drain_events(timeout=10)
    assert answers == [{"clock": 3}]
    assert unacknowledged(redis_server) == {}


def test_a_connection_uses_one_client_until_its_pool_is_gone(
    redis_server: RedisServer, opened: Opened
) -> None:
    channel = opened(BatchConnection).channel
    with channel.conn_or_acquire() as first, channel.conn_or_acquire() as second:
        assert first is second
    channel._disconnect_pools()
    with channel.conn_or_acquire() as third:
        assert third is not first
        assert third.ping()
