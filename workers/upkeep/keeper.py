"""The worker's heartbeat: a separate thread that renews, sweeps and reports.

It renews the leases of running trajectories, takes back those of dead workers, publishes delayed
jobs that are due, and reports that this worker lives. It has a separate thread and connections,
because Celery's hub stops during shutdown and a busy event loop must not cost a lease; a loop
that no longer answers does, see `blocked_loop`.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import time
from collections.abc import Callable

from hermes_queue.broker.enqueue import publish_due
from hermes_queue.broker.pool import RunningTask, TaskPool
from hermes_queue.broker.pool.intake import INTAKE, shutdown_is_ordered
from hermes_queue.ledger import Breakers, Claim, DeadLetters, Ledger
from hermes_queue.ledger.fleet.tally import Tally
from hermes_queue.ledger.scheduling import Scheduler
from hermes_queue.ledger.tasks import TaskMemory
from hermes_queue.queues import lanes_with_quarantine
from hermes_queue.wire.ids import run_of
from workers.bounds.overdue import Overdue
from workers.runtime import Runtime
from workers.stages.graders import GradersWatch
from workers.upkeep.blocked_loop import BlockedLoop
from workers.upkeep.duties import Duties, Duty
from workers.upkeep.inventory import Inventory
from workers.upkeep.janitor import Janitor
from workers.upkeep.quarantine import QuarantineWorkers, boot_id, parent_worker

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
        self._janitor = Janitor(runtime)
        lease, results = runtime.lease, runtime.results
        self._duties = Duties(
            "keeper",
            [
                Duty("blocked", min(1.0, lease.renew_s), self._blocked.look),
                # A failed renewal is repeated at once: the lease is running out.
                Duty("renew", lease.renew_s, self._renew, again_s=0.5),
                Duty("beat", lease.renew_s, self._beat),
                Duty("limits", lease.renew_s, self._keep_limits),
                Duty("graders", lease.renew_s, GradersWatch(runtime, ledger).look),
                Duty("leaving", min(1.0, lease.renew_s), self._report_leaving, again_s=0.5),
                Duty("sandboxes", lease.renew_s, lambda: inventory.renew(ledger)),
                Duty("sweep", lease.sweep_s, self._sweep),
                Duty("idle", 1.0, self._end_when_idle),
            ],
        )
        # Apart from the leases: the broker's connections and large batches may take long.
        self._errands = Duties(
            "mover",
            [
                Duty("move", lease.mover_s, lambda: publish_due(ledger)),
                Duty("schedule", lease.mover_s, self._schedule),
                Duty("quarantine", lease.mover_s, self._quarantine.look),
                Duty("reconcile", min(_RECONCILE_S, lease.duration_s), self._reconcile),
                Duty("log", lease.mover_s, lambda: runtime.report_log(ledger)),
                Duty("letters", 3600.0, lambda: letters.expire(results.dead_retention_s)),
                Duty("breakers", lease.mover_s, self._report_outcomes),
                Duty("tally", lease.sweep_s, self._report_tally),
                Duty("tasks", lease.sweep_s, self._report_tasks),
                Duty("slots", min(_SLOTS_S, lease.sweep_s), self._report_slots),
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
