"""What is done about an event loop, by how long it has been silent."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any, cast

import pytest
from records import make_job

from hermes_queue.broker.pool import RunningTask, loop_thread
from hermes_queue.broker.pool.loop_thread import LoopWatchdog
from hermes_queue.errors import EXIT_BLOCKED
from hermes_queue.ledger import Claim, Ledger
from hermes_queue.settings import WorkerSettings
from workers.runtime import AttemptProgress, Runtime
from workers.upkeep import keeper
from workers.upkeep.keeper import BlockedLoop
from workers.upkeep.quarantine import boot_id


class SilentLoop:
    """A loop of which somebody says how long it has been silent, and under which job."""

    def __init__(self, silent_s: float, holder: object = None) -> None:
        self.loop_silent_s = silent_s
        self._holder = holder

    def loop_stack(self) -> str:
        return "somewhere"

    def on_loop_now(self) -> RunningTask | None:
        return cast(RunningTask, self._holder)


def runtime_of(ledger: Ledger, **settings: float) -> Runtime:
    worker = WorkerSettings(**settings)  # type: ignore[arg-type]
    return Runtime(
        owner="me", ledger=ledger, backend=cast(Any, None), spool=cast(Any, None),
        worker=worker,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("silent_s", "renews", "ends"),
    [(0.0, True, []), (20.0, True, []), (20.5, False, []), (40.0, False, []), (40.5, False, [5])],
)
def test_by_default_leases_are_kept_for_half_a_lease_and_the_process_for_a_whole_one(
    ledger: Ledger, silent_s: float, renews: bool, ends: list[int]
) -> None:
    ended: list[int] = []
    runtime = runtime_of(ledger)
    blocked = BlockedLoop(runtime, runtime.ledger, SilentLoop(silent_s), end=ended.append)
    blocked.look()
    assert (blocked.may_renew, ended) == (renews, ends)


def test_the_time_is_a_setting(ledger: Ledger) -> None:
    ended: list[int] = []
    runtime = runtime_of(ledger, blocked_exit_s=600.0)
    BlockedLoop(runtime, runtime.ledger, SilentLoop(599.0), end=ended.append).look()
    assert not ended


@pytest.mark.parametrize("known", [True, False])
def test_jobs_are_handed_back_when_another_holds_the_loop_which_counts_the_death_at_once(
    ledger: Ledger, known: bool, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = [make_job(instance=name) for name in ("culprit", "neighbour")]
    ledger.enqueue("run", jobs, config={})
    ledger.beat("me", {}, ttl_s=60, boot_id=boot_id())
    ledger.sweep(interval_s=0, gap_s=60, grace_s=60)  # without an earlier one, leases are extended
    runtime, ended = runtime_of(ledger), list[int]()
    tasks = {job.instance_id: RunningTask(job.trajectory_id, None, cast(Any, None)) for job in jobs}
    leases = [
        runtime.leased(
            Claim(job.trajectory_id, begun.epoch),
            tasks[job.instance_id],
            progress=lambda: cast(AttemptProgress, None),
        )
        for job in jobs
        for begun in [ledger.begin(job.trajectory_id, 1, owner="me", lease_s=60, nonce="n")]
    ]
    with leases[0], leases[1]:
        holder = tasks["culprit"] if known else None
        BlockedLoop(runtime, ledger, SilentLoop(41.0, holder), end=ended.append).look()
    assert (f"Job {jobs[0].trajectory_id} blocks it" in caplog.text) == known
    states = [ledger.client.hget(f"hq:traj:{job.trajectory_id}", "state") for job in jobs]
    assert (states, ended) == ([b"running", b"queued" if known else b"running"], [EXIT_BLOCKED])
    ledger.sweep(interval_s=0, gap_s=60, grace_s=60)
    deaths = [ledger.client.hget(f"hq:traj:{job.trajectory_id}", "deaths") for job in jobs]
    assert deaths == [b"1", None if known else b"1"]


def test_a_log_that_takes_no_line_delays_the_end_and_does_not_prevent_it(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "_LAST_WORDS_S", 0.05)
    ended, runtime = list[int](), runtime_of(ledger)
    handler = logging.NullHandler()
    handler.handle = lambda record: stuck.wait()  # type: ignore[method-assign]
    stuck = threading.Event()
    keeper.logger.addHandler(handler)
    try:
        BlockedLoop(runtime, runtime.ledger, SilentLoop(41.0), end=ended.append).look()
    finally:
        stuck.set()
        keeper.logger.removeHandler(handler)
    assert ended == [EXIT_BLOCKED]


# --- the watchdog -------------------------------------------------------------------------


class Waits:
    """An event that somebody waits for in vain until the last of so many steps of the clock."""

    def __init__(self, clock: list[float], steps: list[float]) -> None:
        self._clock, self._steps = clock, steps

    def wait(self, timeout: float) -> bool:
        self._clock[0] += self._steps.pop(0)
        return not self._steps


@pytest.mark.parametrize(("steps", "stalls"), [([0.5] * 20, 1), ([600.0, 0.5, 0.1], 0)])
def test_what_the_whole_process_was_stopped_for_is_no_silence_of_the_loop(
    monkeypatch: pytest.MonkeyPatch, steps: list[float], stalls: int
) -> None:
    loop, clock = asyncio.new_event_loop(), [0.0]
    watchdog = LoopWatchdog(loop, threading.current_thread(), stall_s=5.0)
    monkeypatch.setattr(loop_thread, "time", type("Clock", (), {"monotonic": lambda: clock[0]}))
    watchdog._await_tick(cast(threading.Event, Waits(clock, steps)))
    loop.close()
    assert (watchdog.stalls, watchdog.silent_s) == (stalls, 0.0)


def test_a_loop_that_is_closed_is_a_silent_one() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    watchdog = LoopWatchdog(loop, threading.current_thread(), stall_s=0.05)
    watchdog.start()
    try:
        reported = threading.Event()
        while watchdog.silent_s < 0.1:
            reported.wait(0.01)
    finally:
        watchdog.stop()
    assert watchdog.stalls == 1


def test_a_stack_that_cannot_be_read_does_not_hold_the_watchdog(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, readable, asked = asyncio.new_event_loop(), threading.Event(), threading.Event()
    loop.close()
    watchdog = LoopWatchdog(loop, threading.current_thread(), stall_s=0.05)

    def stack() -> str:
        asked.set()
        readable.wait()
        return ""

    monkeypatch.setattr(watchdog, "stack", stack)
    watchdog.start()
    try:
        assert asked.wait(60)
        before = watchdog.silent_s
        while watchdog.silent_s <= before:
            asked.wait(0.01)
            assert watchdog.stalls == 1
    finally:
        readable.set()
        watchdog.stop()
