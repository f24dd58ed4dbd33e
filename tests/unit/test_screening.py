"""What a worker takes from a queue, and what it drops before anything else reads it."""

from __future__ import annotations

import base64
import json
import queue
import re
import threading
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest
from celery import Celery

from hermes_queue.broker.enqueue import _message
from hermes_queue.broker.pool import TaskPool, loop_thread
from hermes_queue.broker.pool.run import LIMIT_S
from hermes_queue.broker.pool.screening import (
    EVIDENCE_CHARACTERS,
    MESSAGE_MAX_BYTES,
    Screen,
    read_message,
)
from hermes_queue.ledger import DueJob


def message(headers: Any = None, properties: Any = None, **fields: Any) -> bytes:
    """One of ours, with some of it changed."""
    made = json.loads(_message(DueJob("run.a.0", 1, "train", 5, "gsm8k", "i"), "v1.train", "tag"))
    made["headers"].update(headers or {})
    made["properties"].update(properties or {})
    return json.dumps(made | fields).encode()


def encoded(body: str) -> bytes:
    text = base64.b64encode(body.encode()).decode()
    return message(properties={"body_encoding": "base64"}, body=text)


TASK_BODY = '[["run.a.0", 1], {}, null]'


@pytest.mark.parametrize(
    "raw",
    [
        message(),
        message({"timelimit": [300, 60.5], "eta": "2030-01-01T00:00:00", "retries": 3}),
        message({"unknown": {"of": "a newer Celery"}}),
        encoded(TASK_BODY),
    ],
    ids=["ours", "limits", "newer", "base64"],
)
def test_a_task_message_is_taken(raw: bytes) -> None:
    assert read_message(raw) == (raw, json.loads(raw))


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"not json", "Expecting value"),
        (b"\xff\xfe\x00", "UnicodeDecodeError"),
        (b"[" * 100_000, "RecursionError"),
        *((text, "should be a valid dictionary") for text in (b"[]", b"123", b"null", b'"x"')),
        (message(headers=None, properties={"delivery_tag": {"a": 1}}), "properties.delivery_tag"),
        (message(properties={"delivery_info": None}), "properties.delivery_info"),
        (message(properties={"delivery_info": {}}), "properties.delivery_info.exchange"),
        (message(properties={"body_encoding": "nope"}), "properties.body_encoding"),
        (message(properties={"body_encoding": "base64"}, body="@@@"), "base64"),
        *((message({"id": bad}), "headers.id") for bad in ([1], {"a": 1}, None, "\ud800", "")),
        (message({"task": {"x": 1}}), "headers.task"),
        (message({"retries": "abc"}), "headers.retries"),
        (message({"root_id": {"a": 1}}), "headers.root_id"),
        *(
            (message({"timelimit": bad}), "headers.timelimit")
            for bad in (["x", "y"], {"a": 1}, [1], [-1, None], [float("inf"), None])
        ),
        (message({"compression": "application/x-gzip"}), "headers.compression"),
        (json.dumps({"headers": [1]}).encode(), "headers"),
        (message(body=None), "body"),
        (message(body="5"), "cannot unpack"),
        (message(body="[1]"), "not enough values"),
        (message(body="[{}, [], null]"), "the body is not"),
        (message(body="[" * 100_000), "RecursionError"),
        (message(**{"content-type": {"a": 1}}), "content-type"),
        (message().decode().encode("utf-16"), "UnicodeDecodeError"),
        (b"\xef\xbb\xbf" + message(), "BOM"),
        (message().replace(b"{", b'{"\xed\xa0\x80": 0, ', 1), "UnicodeDecodeError"),
        (message(body=" " * MESSAGE_MAX_BYTES), "at most 262144 are read"),
    ],
)
def test_what_is_no_task_message_is_dropped_with_its_reason(raw: bytes, expected: str) -> None:
    with pytest.raises(ValueError, match=re.escape(expected)) as refused:
        read_message(raw)
    assert len(str(refused.value)) <= EVIDENCE_CHARACTERS


@pytest.mark.parametrize("bad", ["x", ["x"], True, -1, 0, float("inf"), float("nan")])
def test_a_time_limit_is_a_positive_number(bad: object) -> None:
    with pytest.raises(ValueError, match=r"number|greater than 0"):
        LIMIT_S.validate_python(bad)
    assert (LIMIT_S.validate_python(None), LIMIT_S.validate_python(3)) == (None, 3.0)


def test_of_what_was_read_together_only_the_invalid_is_dropped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    screen, valid = Screen(), message()
    assert [m.raw for m in screen.passed("v1.train", [valid, b"[]", valid])] == [valid, valid]
    assert screen.refused == 1
    [record] = caplog.records
    assert record.getMessage().startswith("a message of v1.train is dropped: ")
    assert record.getMessage().endswith("It begins with '[]'")


@pytest.fixture(scope="module")
def pool() -> Iterator[TaskPool]:
    """A pool of one slot, without the hooks of a worker."""
    app = Celery("screening", set_as_current=False)

    @app.task(name="fine", ignore_result=True)
    async def fine() -> str:
        return "done"

    made = TaskPool(1, app=app)
    with pytest.MonkeyPatch.context() as patch:
        for hooks in ("on_loop_start", "on_loop_stop"):
            patch.setattr(loop_thread, hooks, [])
        made.start()
        yield made
        made.stop()


NO_ARGUMENTS: dict[str, Any] = {"id": "x", "args": [], "kwargs": {}}


def apply(
    pool: TaskPool,
    answered: queue.Queue[tuple[int, str]],
    request: dict[str, Any] = NO_ARGUMENTS,
    **limits: Any,
) -> None:
    pool.on_apply(
        None,
        ("fine", "x", request, None, None, None),
        callback=lambda result: answered.put((result[0], str(result[1]))),
        **limits,
    )


def test_a_job_that_cannot_be_started_gives_its_slot_back_and_is_answered(pool: TaskPool) -> None:
    answered: queue.Queue[tuple[int, str]] = queue.Queue()
    for request in ({**NO_ARGUMENTS, "args": ["superfluous"]}, NO_ARGUMENTS):
        apply(pool, answered, request)
    fine, (failed, why) = sorted(answered.get(timeout=30) for _ in range(2))
    assert (fine, failed, "TypeError" in why) == ((0, "'done'"), 1, True)
    with pytest.raises(ValueError, match="valid number"):
        apply(pool, answered, timeout=["x"])


def test_a_job_that_is_cancelled_before_the_loop_has_seen_it_ends(
    pool: TaskPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread finds it as soon as it is registered."""
    answered: queue.Queue[tuple[int, str]] = queue.Queue()
    call_soon = pool.call_soon

    def cancelled_first(function: Any, *args: Any) -> bool:
        monkeypatch.setattr(pool, "call_soon", call_soon)
        [run] = pool._runs.values()
        pool.cancel_running(run.running_task, "cancelled")
        return call_soon(function, *args)

    monkeypatch.setattr(pool, "call_soon", cancelled_first)
    apply(pool, answered)
    failed, why = answered.get(timeout=30)
    assert (failed, "Terminated" in why) == (1, True)
    apply(pool, answered)
    assert answered.get(timeout=30) == (0, "'done'")


def test_a_success_without_anything_to_wait_for_is_reported_where_it_ended(pool: TaskPool) -> None:
    class Request:
        acknowledged = True
        message = Mock()

        def __init__(self) -> None:
            self.threads: queue.Queue[str] = queue.Queue()

        def on_accepted(self, pid: int, started: float) -> None:
            self.threads.put(threading.current_thread().name)

        def on_success(self, result: Any) -> None:
            self.threads.put(threading.current_thread().name)

    def threads_of(request: Request) -> list[str]:
        callbacks = {"accept_callback": request.on_accepted, "callback": request.on_success}
        pool.on_apply(None, ("fine", "x", NO_ARGUMENTS, None, None, None), **callbacks)
        return [request.threads.get(timeout=30) for _ in range(2)]

    assert threads_of(Request()) == ["hermes-loop", "hermes-loop"]
    unsettled = Request()
    unsettled.acknowledged = False
    accepted, reported = threads_of(unsettled)
    assert (accepted, reported.startswith("hermes-callback")) == ("hermes-loop", True)
