"""The worker's heartbeat: separate threads that renew, sweep, report and tidy up.

`Keeper` renews the leases of running trajectories, takes back those of dead workers, publishes
delayed jobs that are due, and reports that this worker lives. It has separate threads and
connections, because Celery's hub stops during shutdown and a busy event loop must not cost a lease.

A loop that no longer answers does cost it. The loop runs every trajectory of the process, its
deadlines included, and nothing can interrupt the code that blocks it. The keeper's thread could
renew the leases all that time, and no other worker would ever take the jobs; therefore it asks
`BlockedLoop` first, which ends such a worker.

The janitor's thread moves bodies: it publishes the records of dead workers and deletes results that
everybody has read and objects that nobody needs. That may wait for disks and object stores, which
must not delay the leases. Each of these threads repeats the calls of its `_Duties`.
"""

from __future__ import annotations

import faulthandler
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from hermes_queue.broker.enqueue import publish_due
from hermes_queue.broker.pool import RunningTask, TaskPool
from hermes_queue.broker.pool.intake import INTAKE, shutdown_is_ordered
from hermes_queue.errors import EXIT_BLOCKED, HermesQueueError
from hermes_queue.ledger import Breakers, Claim, DeadLetters, Ledger
from hermes_queue.ledger.fleet.tally import Tally
from hermes_queue.ledger.scheduling import Scheduler
from hermes_queue.ledger.tasks import TaskMemory
from hermes_queue.queues import lanes_with_quarantine
from hermes_queue.results.archive import ArchiveSink
from hermes_queue.results.trimming import trim
from hermes_queue.settings import ArchiveSettings, StoreSettings
from hermes_queue.wire.ids import run_of
from workers.bounds.overdue import Overdue
from workers.runtime import Runtime
from workers.stages.graders import GradersWatch
from workers.upkeep.inventory import Inventory
from workers.upkeep.quarantine import QuarantineWorkers, boot_id, parent_worker
from workers.upkeep.recovery import publish_leftovers

logger = logging.getLogger(__name__)

_DRAINED_S = 2.0
"""How long a draining worker must be seen without a job: one may be on its way to the pool."""
_RECONCILE_S = 10.0
_RECOVERED_PAGES = 50
"""Most calls of `Ledger.recover` in a row, while a whole round is due."""
_SLOTS_S = 2.0
"""Between reports of where slot-time went: a killed worker takes what is unreported along."""
_KEPT = ("paused", "cancel")
"""Notices under which a lease continues."""

_STDERR = 2
_Exit = Callable[[int], None]
_LAST_WORDS_S = 10.0
"""Seconds for the final log lines and handing jobs back."""
_REFUSED_S = 600.0
"""Seconds for which groups refused by the archive are skipped before they are tried again."""

_TICK_S = 0.1
_JOIN_S = 10.0


class BlockedLoop:
    """Decides over leases and the process by how long the loop has been silent."""

    def __init__(
        self, runtime: Runtime, ledger: Ledger, loop: TaskPool, *, end: _Exit = os._exit
    ) -> None:
        """Prepare. The `ledger` is not the loop's and has short timeouts."""
        self._runtime = runtime
        self._ledger = ledger
        self._loop = loop
        self._end = end
        self._limit_s = runtime.worker.blocked_exit_s or runtime.lease.duration_s

    @property
    def may_renew(self) -> bool:
        """Whether leases may be renewed.

        They are renewed for half the limit at most: when the process ends they are old, and the
        sweep takes them soon after.
        """
        return self._loop.loop_silent_s <= self._limit_s / 2

    def look(self) -> None:
        """End the process if the loop has been silent for too long.

        The other jobs did nothing wrong and are handed back. The job that blocks it is left to the
        next sweep, which counts the worker's death against it until it has enough of them to be
        stopped for good. If the blocking job is unknown, the death is held against all.
        """
        silent_s = self._loop.loop_silent_s
        if silent_s <= self._limit_s:
            return
        # In a separate thread: the loop may be blocked by the very log that we want to write to.
        words = threading.Thread(target=self._last_words, args=(silent_s,), daemon=True)
        words.start()
        words.join(_LAST_WORDS_S)
        self._end(EXIT_BLOCKED)

    def _last_words(self, silent_s: float) -> None:
        holder = self._loop.on_loop_now()
        others = {} if holder is None else self._runtime.running()
        others = {claim: task for claim, task in others.items() if task is not holder}
        logger.critical(
            "The event loop has not answered for %.0f s: this worker ends with exit code %d. %s. "
            "%d jobs are handed back; the others count a death and run elsewhere. "
            "The loop's thread is here:\n%s",
            silent_s,
            EXIT_BLOCKED,
            f"Job {holder.task_id} blocks it" if holder else "The job that blocks it is unknown",
            len(others),
            self._loop.loop_stack(),
            extra={"action": "loop_blocked_exit", "blocked_s": silent_s},
        )
        faulthandler.dump_traceback(file=_STDERR, all_threads=True)
        with suppress(HermesQueueError):  # their leases expire anyway
            for claim in others:
                self._ledger.requeue(claim, owner=self._runtime.owner)
            # Unreported, this death might count for nothing: a sweep that takes the lease before
            # another process of this host beats has to assume that the host died.
            self._ledger.worker_ended(self._runtime.owner, boot_id=boot_id())
            self._runtime.report_log(self._ledger)


class _Janitor:
    """Runs the work of one worker process, from `start` to `stop`."""

    def __init__(self, runtime: Runtime) -> None:
        """Prepare, with separate connections.

        Raises:
            RedisUnavailable: Redis does not answer.
        """
        self._runtime = runtime
        self._ledger = Ledger.connect(url=runtime.ledger.url)
        archive = ArchiveSettings()
        self._archive = ArchiveSink(archive.directory) if archive.enabled else None
        self._abandoned: set[str] = set()
        self._refused: dict[str, str] = {}
        self._refused_until = 0.0
        renew_s = runtime.lease.renew_s
        recover = partial(publish_leftovers, runtime, self._ledger, most_s=renew_s / 2)
        self._duties = _Duties(
            "janitor",
            [
                _Duty("trim", min(1.0, runtime.results.trim_s), self._trim),
                _Duty("leftovers", renew_s, recover),
                _Duty("objects", min(60.0, StoreSettings().grace_s), self._remove_objects),
            ],
        )

    def start(self) -> None:
        """Begin."""
        self._duties.start()

    def stop(self) -> None:
        """End. Idempotent."""
        self._duties.stop()
        self._ledger.close()
        if self._archive:
            self._archive.close()

    def _trim(self) -> None:
        if time.monotonic() >= self._refused_until:
            self._refused, self._refused_until = {}, time.monotonic() + _REFUSED_S
        known = set(self._refused)
        results, archive, refused = self._runtime.results, self._archive, self._refused
        done = trim(
            self._ledger, results, interval_s=results.trim_s, archive=archive, refused=refused
        )
        if done is None:
            return
        for entry in self._refused.keys() - known:
            message = "%s; it cannot be archived and stays in Redis, other groups are not held up"
            extra = {"action": "archive_refused", "entry": entry}
            logger.error(message, self._refused[entry], extra=extra)
        for group in set(done.abandoned) - self._abandoned:
            logger.warning(
                "consumer group %s has stopped reading and is not durable: results are deleted "
                "without waiting for it",
                group,
                extra={"action": "group_abandoned", "group": group},
            )
        self._abandoned = set(done.abandoned)

    def _remove_objects(self) -> None:
        bodies, extra = self._runtime.bodies, {"action": "objects_deleted"}
        if count := bodies.remove_unneeded(self._ledger, lambda: self._duties.stopping):
            logger.info("deleted %d objects that no result names", count, extra=extra)


@dataclass(frozen=True, slots=True)
class _Duty:
    """One call."""

    name: str
    every_s: float
    call: Callable[[], object]
    again_s: float | None = None
    """Delay before a failed call is repeated; None = its normal interval."""


class _Duties:
    """Runs duties until `stop`."""

    def __init__(self, name: str, duties: Sequence[_Duty]) -> None:
        """Prepare; `start` begins. `name` names the thread and prefixes the log's actions."""
        self._name = name
        self._duties = duties
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._turned_at = time.monotonic()
        self._done_at: dict[str, float] = {}

    @property
    def silent_s(self) -> float:
        """Seconds since the thread last began a call, or looked whether one is due."""
        return time.monotonic() - self._turned_at

    def since_s(self, name: str) -> float:
        """Seconds since the call of this name last succeeded; infinite if it never has."""
        return time.monotonic() - self._done_at.get(name, -math.inf)

    def start(self) -> None:
        """Start with one call of every duty."""
        self._thread.start()

    def stop(self) -> None:
        """End; a call that hangs is left behind. Idempotent."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stop.is_set()

    def guarded(self, name: str, call: Callable[[], object]) -> bool:
        """Make one call; a failure is logged and returned as False."""
        thread = self._name
        try:
            call()
        except HermesQueueError as error:
            logger.warning("%s: %s", name, error, extra={"action": f"{thread}_{name}"})
        except Exception:  # the thread must survive any error of a single duty
            logger.exception("%s failed", name, extra={"action": f"{thread}_{name}"})
        else:
            self._done_at[name] = time.monotonic()
            return True
        return False

    def _loop(self) -> None:
        due = {duty.name: 0.0 for duty in self._duties}
        while not self._stop.wait(_TICK_S):
            self._turned_at = time.monotonic()
            for duty in self._duties:
                self._turned_at = now = time.monotonic()
                if now < due[duty.name]:
                    continue
                due[duty.name] = now + duty.every_s
                if not self.guarded(duty.name, duty.call) and duty.again_s is not None:
                    due[duty.name] = now + min(duty.every_s, duty.again_s)


class Keeper:
    """Runs the periodic work of one worker process until `stop`."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        on_lost: Callable[[RunningTask, str], None],
        facts: Callable[[], dict[str, object]],
        loop: TaskPool,
        inventory: Inventory,
    ) -> None:
        """Prepare; `start` begins.

        `on_lost` is called with the running task and the reason for every lost lease, with `cancel`
        for jobs that an operator has cancelled, with `stuck` for those that outlast a deadline;
        `facts` makes what a beat reports.
        """
        self._runtime = runtime
        self._on_lost = on_lost
        self._facts = facts
        # A separate connection with short timeouts: a half-open one must not cost the leases.
        timeout_s = max(1.0, runtime.lease.renew_s / 2)
        self._ledger = ledger = Ledger.connect(runtime.ledger.url, timeout_s=timeout_s)
        self._blocked = BlockedLoop(runtime, ledger, loop)
        self._busy_at = time.monotonic()
        slots = TaskPool.instance().limit
        self._quarantine = QuarantineWorkers(
            ledger, runtime.owner, lambda: INTAKE.lanes, slots=slots
        )
        self._leaving_reported = False
        """Whether the ledger knows that this worker was ordered to end."""
        self._breakers, letters = Breakers(ledger), DeadLetters(ledger)
        self._tasks = TaskMemory(ledger)
        self._overdue = Overdue(runtime.worker.stuck_s)
        self._janitor = _Janitor(runtime)
        lease, results = runtime.lease, runtime.results
        self._duties = _Duties(
            "keeper",
            [
                _Duty("blocked", min(1.0, lease.renew_s), self._blocked.look),
                # A failed renewal is repeated at once: the lease is running out.
                _Duty("renew", lease.renew_s, self._renew, again_s=0.5),
                _Duty("beat", lease.renew_s, self._beat),
                _Duty("limits", lease.renew_s, self._keep_limits),
                _Duty("graders", lease.renew_s, GradersWatch(runtime, ledger).look),
                _Duty("leaving", min(1.0, lease.renew_s), self._report_leaving, again_s=0.5),
                _Duty("sandboxes", lease.renew_s, lambda: inventory.renew(ledger)),
                _Duty("sweep", lease.sweep_s, self._sweep),
                _Duty("idle", 1.0, self._end_when_idle),
            ],
        )
        # Apart from the leases: the broker's connections and large batches may take long.
        self._errands = _Duties(
            "mover",
            [
                _Duty("move", lease.mover_s, lambda: publish_due(ledger)),
                _Duty("schedule", lease.mover_s, self._schedule),
                _Duty("quarantine", lease.mover_s, self._quarantine.look),
                _Duty("reconcile", min(_RECONCILE_S, lease.duration_s), self._reconcile),
                _Duty("log", lease.mover_s, lambda: runtime.report_log(ledger)),
                _Duty("letters", 3600.0, lambda: letters.expire(results.dead_retention_s)),
                _Duty("breakers", lease.mover_s, self._report_outcomes),
                _Duty("tally", lease.sweep_s, self._report_tally),
                _Duty("tasks", lease.sweep_s, self._report_tasks),
                _Duty("slots", min(_SLOTS_S, lease.sweep_s), self._report_slots),
            ],
        )

    def start(self) -> None:
        """Begin; if Redis answers, the first beat is sent before this returns."""
        self._duties.guarded("beat", self._beat)
        self._duties.start()
        self._errands.start()
        self._janitor.start()

    @property
    def silent_s(self) -> float:
        """Seconds for which the thread that renews leases has not moved on."""
        return self._duties.silent_s

    @property
    def unheard_s(self) -> float:
        """Seconds since Redis last took a beat of this worker."""
        return self._duties.since_s("beat")

    def stop(self) -> None:
        """End the threads and take the worker off the list of live ones. Idempotent."""
        if not self._duties.stopping:
            self._duties.stop()
            self._errands.stop()
            self._quarantine.stop()
            owner = self._runtime.owner
            self._duties.guarded("tally", self._report_tally)
            self._duties.guarded("tasks", self._report_tasks)
            self._duties.guarded("slots", self._report_slots)
            self._duties.guarded("unregister", lambda: self._ledger.unregister(owner))
            self._janitor.stop()
            self._ledger.close()

    def _renew(self) -> None:
        running, progress = self._runtime.running(), self._runtime.progress()
        stuck, fresh = self._overdue.find(progress)
        for claim in fresh:
            if claim in running:
                self._on_lost(running[claim], "stuck")
        running = {claim: task for claim, task in running.items() if claim not in stuck}
        finished = {claim for claim, each in progress.items() if each.is_finished}
        if not running or not self._blocked.may_renew:
            return
        # While Redis answers, jobs end and settle: the snapshot may contain leases that are no
        # longer ours. Their absence is no loss, hence the second look (`still`) below.
        notices = self._ledger.renew(
            list(running),
            owner=self._runtime.owner,
            lease_s=self._runtime.lease.duration_s,
            stages={claim: each.stage for claim, each in progress.items()},
        )
        self._note_pauses({claim for claim, notice in notices.items() if notice == "paused"})
        # What is finished is published whatever Redis says, and nothing may stop that: not even a
        # `final` that no replica has confirmed: the publication gets it, too, and settles it.
        notices = {claim: each for claim, each in notices.items() if claim not in finished}
        for claim in (claim for claim, notice in notices.items() if notice == "cancel"):
            self._on_lost(running[claim], "cancel")  # again with each beat, until it has ended
        lost = {claim: notice for claim, notice in notices.items() if notice not in _KEPT}
        still = self._runtime.running()
        for claim, task in running.items():
            reason = lost.get(claim)
            if reason and claim in still:
                name = claim.trajectory_id
                extra = {"action": "lease_lost", "trajectory_id": name}
                logger.warning("lease of %s is lost: %s", name, reason, extra=extra)
                self._on_lost(task, reason)

    def _note_pauses(self, claims: set[Claim]) -> None:
        runs = frozenset(run_of(claim.trajectory_id) for claim in claims)
        for run_id in self._runtime.pauses.replace(runs):
            extra = {"action": "run_paused", "run_id": run_id}
            logger.info("run %s is paused: its trajectories wait", run_id, extra=extra)

    def _beat(self) -> None:
        leaving = shutdown_is_ordered()
        self._ledger.beat(
            self._runtime.owner,
            self._facts(),
            ttl_s=self._runtime.lease.duration_s,
            boot_id=boot_id(),
            shutting_down=leaving,
            parent=parent_worker(),
        )
        self._leaving_reported = leaving

    def _report_leaving(self) -> None:
        """Report it at once: the supervisor may kill us before the next beat."""
        if shutdown_is_ordered() and not self._leaving_reported:
            self._beat()

    def _keep_limits(self) -> None:
        if self._runtime.limiter:
            self._runtime.limiter.renew()
        if self._runtime.places:
            self._runtime.places.renew()

    def _sweep(self) -> None:
        lease = self._runtime.lease
        taken = self._ledger.sweep(
            interval_s=lease.sweep_s / 2,
            gap_s=max(lease.renew_s, 3 * lease.sweep_s),
            grace_s=2 * lease.renew_s,
            quarantine_deaths=self._runtime.retry.quarantine_deaths,
        )
        for name in taken:
            extra = {"action": "lease_expired", "trajectory_id": name}
            logger.warning("took %s back: its worker is silent", name, extra=extra)

    def _reconcile(self) -> None:
        self._recover()
        # A quarantine worker is started only while a message of its lane can be seen.
        for lane in (each for own in INTAKE.lanes for each in lanes_with_quarantine(own)):
            lost = self._ledger.reconcile(lane, age_s=1.5 * self._runtime.lease.duration_s)
            if lost:
                message = "%d jobs of lane %s could not be taken and are queued again: %s"
                extra = {"action": "reconciled"}
                logger.warning(message, len(lost), lane, ", ".join(lost[:5]), extra=extra)

    def _recover(self) -> None:
        extra = {"action": "recovered"}
        for _ in range(_RECOVERED_PAGES):
            found = self._ledger.recover(lease_s=self._runtime.lease.duration_s)
            if key := found.removed:
                logger.warning("removed %s, which another program wrote", key, extra=extra)
            if names := found.trajectory_ids:
                message = "%d jobs had lost their place and have one again: %s"
                logger.warning(message, len(names), ", ".join(names[:5]), extra=extra)
            if not found.more:
                break

    def _schedule(self) -> None:
        # Of all of their lanes: a quarantine worker is started only while a message can be seen.
        lanes = [each for own in INTAKE.open_lanes for each in lanes_with_quarantine(own)]
        Scheduler(self._ledger).tick(lanes)

    def _end_when_idle(self) -> None:
        # A message may be on its way from Celery to the pool, which a single look would miss: a
        # draining worker has to be idle for `_DRAINED_S`.
        limit_s, now = self._runtime.worker.exit_when_idle_s, time.monotonic()
        if self._runtime.running() or (INTAKE.state == "draining" and TaskPool.instance().busy):
            self._busy_at = now
        elif INTAKE.state == "draining" and now - self._busy_at > _DRAINED_S:
            self._busy_at = math.inf
            logger.info("drained: ending", extra={"action": "drained"})
            os.kill(os.getpid(), signal.SIGTERM)
        elif limit_s and now - self._busy_at > limit_s:
            self._busy_at = now
            logger.info("idle for %.0f s: ending", limit_s, extra={"action": "idle_exit"})
            os.kill(os.getpid(), signal.SIGTERM)

    def _report_tally(self) -> None:
        attempts, ended = self._runtime.tally.take()
        try:
            Tally(self._ledger).add(attempts=attempts, ended=ended)
        except Exception:
            self._runtime.tally.put_back(attempts, ended)
            raise

    def _report_tasks(self) -> None:
        if waiting := self._runtime.tasks:
            self._tasks.report(waiting)
            if dropped := waiting.dropped():
                extra = {"action": "tasks_dropped"}
                logger.warning("%d trajectories are not in the tasks' memory", dropped, extra=extra)

    def _report_slots(self) -> None:
        self._runtime.slots.report(self._ledger, self._runtime.owner)

    def _report_outcomes(self) -> None:
        waiting = self._runtime.outcomes.take()
        for watched, counts in list(waiting.items()):
            try:
                change = self._breakers.record(watched, counts)
            except Exception:
                for unreported, rest in waiting.items():
                    self._runtime.outcomes.put_back(unreported, rest)
                raise
            del waiting[watched]
            lane = watched.lane
            what = f"{watched.label} in lane {lane}" if watched.endpoint else f"lane {lane}"
            if change == "open":
                message = self._breakers.state_of(watched).message
                extra = {"action": "breaker_open", "lane": lane}
                logger.error("%s is paused: %s", what, message, extra=extra)
            elif change:
                extra = {"action": "breaker_closed", "lane": lane}
                logger.warning("%s is resumed", what, extra=extra)
