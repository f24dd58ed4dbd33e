"""What waits for Redis together goes to it together: acknowledgements and events."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from hermes_queue.broker.pool import RunningTask, task_pool
from hermes_queue.broker.pool.callback_thread import CallbackThread
from hermes_queue.broker.pool.task_pool import EventBatches


class Channel:
    """Notes how many messages were acknowledged at a time."""

    def __init__(self, error: Exception | None = None) -> None:
        self.batches: list[int] = []
        self._error = error

    def acknowledge(self, messages: list[Any]) -> None:
        self.batches.append(len(messages))
        if self._error is not None:
            raise self._error


@pytest.fixture
async def thread() -> AsyncIterator[CallbackThread]:
    made = CallbackThread(asyncio.get_running_loop())
    yield made
    made.close()


def task_on(channel: Channel, thread: CallbackThread, task_id: str = "t") -> RunningTask:
    request = SimpleNamespace(acknowledged=False, message=SimpleNamespace(channel=channel))
    return RunningTask(task_id, request, thread)


async def test_messages_that_wait_are_acknowledged_in_one_round_trip(
    thread: CallbackThread,
) -> None:
    channel, busy = Channel(), threading.Event()
    tasks = [task_on(channel, thread) for _ in range(5)]
    thread.submit(busy.wait)
    # The last one twice, as a body may.
    waiting = [asyncio.ensure_future(task.acknowledge()) for task in [*tasks, tasks[-1]]]
    await asyncio.sleep(0)
    busy.set()
    assert await asyncio.gather(*waiting) == [True] * 6
    assert channel.batches == [5]
    assert all(task.acknowledged for task in tasks)
    assert await tasks[0].acknowledge()
    assert channel.batches == [5]


async def test_a_lost_connection_keeps_no_message_of_another_from_being_acknowledged(
    thread: CallbackThread, caplog: pytest.LogCaptureFixture
) -> None:
    lost, alive, busy = Channel(ConnectionResetError()), Channel(), threading.Event()
    channels = {"a": lost, "b": alive, "c": lost}
    tasks = [task_on(channel, thread, task_id) for task_id, channel in channels.items()]
    thread.submit(busy.wait)
    waiting = [asyncio.ensure_future(task.acknowledge()) for task in tasks]
    await asyncio.sleep(0)
    busy.set()
    assert await asyncio.gather(*waiting) == [False, True, False]
    warned = [r.message[:6] for r in caplog.records if r.levelno == logging.WARNING]
    assert warned == ["Job a:", "Job c:"]
    assert all(task.acknowledged for task in tasks)  # Celery must not try it again


async def test_a_job_that_is_cancelled_while_it_waits_hurts_nobody(thread: CallbackThread) -> None:
    channel, busy = Channel(), threading.Event()
    thread.submit(busy.wait)
    gone, stays = task_on(channel, thread), task_on(channel, thread)
    waiting = [asyncio.ensure_future(task.acknowledge()) for task in (gone, stays)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    busy.set()
    assert await waiting[1]
    assert channel.batches == [2]


class Dispatcher:
    """Celery's, as far as it buffers."""

    def __init__(self) -> None:
        self.buffer: list[str] = []
        self.published: list[list[str]] = []
        self.on_send_buffered: Any = None

    def send(self, event: str) -> None:
        self.buffer.append(event)
        self.on_send_buffered()

    def flush(self) -> None:
        self.published.append(list(self.buffer))
        self.buffer.clear()


async def test_events_of_an_interval_are_published_at_once(
    thread: CallbackThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_pool, "EVENTS_INTERVAL_S", 0.2)
    batches, dispatcher = EventBatches(asyncio.get_running_loop(), thread), Dispatcher()
    batches._interval_s = 0.2
    batches.collect(dispatcher)
    expected = [str(n) for n in range(100)]
    for _ in range(2):
        for name in expected[:50]:
            dispatcher.send(name)
        await asyncio.to_thread(lambda: [dispatcher.send(name) for name in expected[50:]])
        while dispatcher.buffer:
            await asyncio.sleep(0.01)
    assert dispatcher.published == [expected, expected]


async def test_a_redis_that_does_not_answer_is_asked_less_often(thread: CallbackThread) -> None:
    batches, dispatcher = EventBatches(asyncio.get_running_loop(), thread), Dispatcher()
    batches.collect(dispatcher)

    def refuses() -> None:
        threading.Event().wait(0.02)
        raise ConnectionRefusedError

    dispatcher.flush = refuses  # type: ignore[method-assign]
    batches.publish()
    assert batches._interval_s >= 0.02 / task_pool.EVENTS_SHARE_OF_TIME
