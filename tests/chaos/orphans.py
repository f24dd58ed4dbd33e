"""The end of a chaos run: everything dies at once; how long does the cleanup take?"""

from __future__ import annotations

import time
from collections.abc import Callable

from hermes_queue.broker.enqueue import enqueue
from hermes_queue.ledger import Runs
from hermes_queue.sandbox.host.processes import is_running, read_stat
from tests.chaos.fleet import DoomedFleet
from tests.chaos.producer import sleepers

RUN = "chaos-orphans"
LIMIT_S = 180.0
_START_S = 90.0


def time_to_last_orphan(fleet: DoomedFleet) -> tuple[float, int]:
    """Fill all slots, kill everything, start Redis and one worker.

    Returns the seconds from the worker's start until no process and no sandbox directory of the
    dead workers is left, and the number of these processes.

    Raises:
        TimeoutError: they were not gone within `LIMIT_S`, or the slots did not fill.
    """
    ledger = fleet.connect()
    for worker in fleet.everybody:
        worker.start()
    count = len(fleet.workers) * (fleet.concurrency + fleet.prefetch)
    enqueue(sleepers(RUN, count), ledger=ledger)
    _wait("slots did not fill", _START_S, lambda: ledger.run_status(RUN).running == count)
    directories = set((fleet.cache / "slots").glob("*/*"))
    redis_pid = fleet.redis.pid if fleet.redis else 0
    known = [(pid, read_stat(pid)) for pid, _ in fleet.processes() if pid != redis_pid]
    processes = [(pid, stat.started) for pid, stat in known if stat]
    for process in (*fleet.everybody, fleet.redis):
        if process:
            process.kill()
    if fleet.redis:
        fleet.redis.start()
        fleet.wait_for_redis()
    Runs(ledger).cancel(RUN)
    fleet.workers[0].start()
    started = time.monotonic()

    def cleaned_up() -> bool:
        return not any(is_running(*process) for process in processes) and not any(
            path.exists() for path in directories
        )

    _wait("orphans are left", LIMIT_S, cleaned_up)
    took_s = time.monotonic() - started
    fleet.stop()
    return took_s, len(processes)


def _wait(problem: str, patience_s: float, condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > give_up:
            raise TimeoutError(f"{problem} after {patience_s:.0f} s")
        time.sleep(0.05)
