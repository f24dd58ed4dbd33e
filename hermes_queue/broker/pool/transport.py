"""kombu's Redis transport with fewer round trips and objects per message.

Per message kombu waits for it, records it as unacknowledged and removes that record again, each in
a round trip of its own through a client made for it. Here one client serves a connection, a reply
brings along what else fits into free slots, and records are made and removed for many messages at
once. What is in Redis at any moment is what kombu would have there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from queue import Empty
from typing import Any

from kombu.connection import Connection
from kombu.transport import redis, virtual

from hermes_queue.broker.pool.screening import Payload, Screen, TaskMessage
from hermes_queue.keyspace.sentinel import MasterConnection, TlsMasterConnection

MOST_AT_ONCE = 64
"""Messages that one reply brings. While a worker starts these, others get the rest."""


class BatchQoS(redis.QoS):
    """Unacknowledged messages, recorded and removed many at a time."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)  # type: ignore[no-untyped-call]
        self._recorded: set[str] = set()
        """Delivery tags of messages that were recorded but not delivered yet."""

    def record(self, pipe: Any, messages: Sequence[TaskMessage]) -> None:
        """Have `pipe` record `messages` as kombu would when they are delivered."""
        now = time.time()
        pipe.zadd(self.unacked_index_key, {message.tag: now for message in messages})
        records = {message.tag: _record(message) for message in messages}
        pipe.hset(self.unacked_key, mapping=records)
        self._recorded.update(records)

    def append(self, message: Any, delivery_tag: str) -> None:
        """See `virtual.QoS.append`."""
        if delivery_tag in self._recorded:
            self._recorded.discard(delivery_tag)
            virtual.QoS.append(self, message, delivery_tag)  # type: ignore[no-untyped-call]
        else:
            super().append(message, delivery_tag)  # type: ignore[no-untyped-call]

    def ack_all(self, tags: Sequence[str]) -> None:
        """Do what `ack` does, for all of `tags` in one round trip."""
        try:
            with self.pipe_or_acquire() as pipe:
                pipe.zrem(self.unacked_index_key, *tags)
                pipe.hdel(self.unacked_key, *tags)
                pipe.execute()
        finally:
            # Also after a failure: these messages come back later, and counted as prefetched they
            # would keep the worker from taking others for as long as its connection lasts.
            for tag in tags:
                virtual.QoS.ack(self, tag)  # type: ignore[no-untyped-call]


def _record(message: TaskMessage) -> bytes:
    """Return what kombu stores of a message, from its bytes and without encoding it again."""
    info = message.payload["properties"]["delivery_info"]
    place = json.dumps([info["exchange"], info["routing_key"]])
    return b"[%b, %b" % (message.raw, place[1:].encode())


class ScreenedMessage(virtual.Message):
    """A message whose body was decoded when it was validated, and is not decoded again."""

    def __init__(self, payload: Any, channel: Any = None, **options: Any) -> None:
        super().__init__(payload, channel=channel, **options)  # type: ignore[no-untyped-call]
        if isinstance(payload, Payload):
            self._decoded_cache = payload.body


class BatchChannel(redis.Channel):
    """A channel that takes, and acknowledges, several messages per round trip."""

    QoS = BatchQoS
    Message = ScreenedMessage
    screen: Screen
    """Validates every message; set by `attach`, as is `room`."""
    _kept_client: Any = None

    room: Callable[[], int]
    """How many more messages may be taken."""

    def acknowledge(self, messages: Sequence[Any]) -> None:
        """Acknowledge messages of kombu's in one round trip. Thread-safe; blocks."""
        self.qos.ack_all([message.delivery_tag for message in messages])

    def _create_client(self, asynchronous: bool = False) -> Any:
        # kombu makes a client per command, which takes longer than the command. Clients of a
        # connection pool hold no state, so one does for all threads, as long as its pool is used.
        if asynchronous:
            return super()._create_client(asynchronous=True)  # type: ignore[no-untyped-call]
        client = self._kept_client
        if client is None or client.connection_pool is not self.pool:
            client = self._kept_client = super()._create_client()  # type: ignore[no-untyped-call]
        return client

    def read_batch(self, **options: Any) -> bool:
        """As kombu's `_brpop_read`, with more messages of the same list."""
        try:
            try:
                reply = self.client.parse_response(self.client.connection, "BRPOP", **options)
            except self.connection_errors:
                # kombu connects again when it polls the next time.
                self.client.connection.disconnect()
                raise
            if not reply:
                raise Empty
            self._deliver_with_more(*reply)
            return True
        finally:
            self._in_poll: Any = None
            self._flush_brpop_reauth()  # type: ignore[no-untyped-call]

    def _deliver_with_more(self, key: bytes, first: bytes) -> None:
        name = key.decode()
        queue = name.rsplit(self.sep, 1)[0]
        self._queue_cycle.rotate(queue)
        # A queue that is no longer consumed from may still answer the last BRPOP.
        more = self._most() - 1 if queue in self._active_queues else 0
        messages = self.screen.passed(queue, [first])
        rest = self._record(messages, name, more)
        if rest:
            others = self.screen.passed(queue, rest)
            self._record(others, name, 0)
            messages += others
        for message in messages:
            self._deliver(queue, message)

    def _most(self) -> int:
        """How many messages may be taken at once."""
        prefetch: int | None = self.qos.can_consume_max_estimate()  # None: no limit
        return min(self.room(), MOST_AT_ONCE, MOST_AT_ONCE if prefetch is None else prefetch)

    def _record(self, messages: Sequence[TaskMessage], key: str, more: int) -> list[bytes]:
        """Record messages; in the same round trip take up to `more` others of the list `key`."""
        if not messages and more < 1:
            return []
        with self._create_client().pipeline() as pipe:
            if messages:
                self.qos.record(pipe, messages)
            if more > 0:
                pipe.rpop(key, more)
            replies = pipe.execute()
        return replies[-1] or [] if more > 0 else []

    def _deliver(self, queue: str, message: TaskMessage) -> None:
        try:
            self.connection._deliver(message.payload, queue)
        except self.connection.passing_errors:
            raise
        except Exception as error:  # noqa: BLE001 - otherwise it would end one worker after the other
            self.screen.refuse(
                queue, message.raw, f"its handling raised {type(error).__name__}: {error}"
            )
            self.basic_ack(message.tag)  # type: ignore[no-untyped-call]


class BatchSentinelChannel(BatchChannel, redis.SentinelChannel):
    """The same on the master that sentinels know."""

    connection_class: Any = MasterConnection
    connection_class_ssl: Any = TlsMasterConnection


class BatchTransport(redis.Transport):
    """Makes `BatchChannel`s, and survives what cannot be read."""

    Channel = BatchChannel
    screen = Screen()
    passing_errors: tuple[type[BaseException], ...] = (
        Empty,
        *redis.Transport.connection_errors,
        *redis.Transport.channel_errors,
    )
    """Errors that are the consumer's to handle: most mean a lost connection."""

    def on_readable(self, fileno: int) -> None:  # type: ignore[override]
        """See `redis.Transport.on_readable`; task messages are guarded in their channel."""
        try:
            super().on_readable(fileno)  # type: ignore[no-untyped-call]
        except self.passing_errors:
            raise
        except Exception as error:  # noqa: BLE001 - anybody may publish to the control channel
            self.screen.refuse("", b"", f"its handling raised {type(error).__name__}: {error}")


class BatchSentinelTransport(BatchTransport, redis.SentinelTransport):
    """The same on the master that sentinels know."""

    Channel = BatchSentinelChannel


_OURS = {redis.Transport: BatchTransport, redis.SentinelTransport: BatchSentinelTransport}


class BatchConnection(Connection):
    """A connection whose transport, if it is one of Redis', is ours."""

    def get_transport_cls(self) -> Any:
        """See `Connection.get_transport_cls`."""
        transport = super().get_transport_cls()  # type: ignore[no-untyped-call]
        return _OURS.get(transport, transport)


def use_batches(app: Any) -> None:
    """Have all connections that `app` makes in this process from now on be `BatchConnection`s."""
    app.amqp.Connection = BatchConnection


def attach(channel: Any, screen: Screen, room: Callable[[], int]) -> None:
    """Validate what a consumer's channel reads, and take as many messages as there is room for.

    The channel must not consume yet. Others read as kombu's do: they wait for answers to remote
    control commands, which are no tasks and are never acknowledged.
    """
    channel.screen = channel.connection.screen = screen
    channel.room = room
    channel.handlers["BRPOP"] = channel.read_batch
