"""The jobs of a run, sent once each, with the run's budgets."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from hermes_queue.broker.enqueue import enqueue
from hermes_queue.ledger import Ledger, Runs
from hermes_queue.ledger.budgets import set_budgets
from producers.run.options import BudgetOptions
from producers.run.plan import Plan
from producers.run.report import Report
from producers.run.selection import SelectedItems

FULL_SAY_S = 30.0
"""Between two messages that the backlog is full."""


class Stopped(Exception):
    """Enqueueing was stopped."""


@dataclass(frozen=True, slots=True)
class Sending:
    """What is sent of a run, and where its counts go."""

    plan: Plan
    selection: SelectedItems
    report: Report
    budgets: BudgetOptions

    def open(self, ledger: Ledger) -> None:
        """Set the run's budgets, and resume it if it is paused for want of them.

        An embedded run is resumed from any pause, since only this command could do so.
        """
        budgets = self.budgets.given()
        if budgets:
            set_budgets(ledger, self.plan.run_id, budgets)
        runs = Runs(ledger)
        pause = runs.paused(self.plan.run_id)
        is_embedded = self.report.summary.mode == "embedded"
        if pause and (is_embedded or (pause.by == "budget" and budgets)):
            runs.resume(self.plan.run_id)

    def enqueue(
        self, ledger: Ledger, groups: Mapping[str, int], stop: threading.Event | None = None
    ) -> None:
        """Send the jobs of `groups`; those that an earlier call sent are left alone.

        Raises:
            Stopped: `stop` was set by another thread.
        """
        progress, summary = self.report.progress, self.report.summary
        last_said = 0.0
        total = sum(groups.values()) + len(groups) * self.plan.group_policy.extra_samples
        sent = 0

        def check() -> None:
            if stop and stop.is_set():
                raise Stopped

        def on_batch(count: int) -> None:
            nonlocal sent
            sent += count
            progress.show_sent(sent, total)
            check()

        def on_full(waiting: int) -> None:
            nonlocal last_said
            check()
            if time.monotonic() - last_said > FULL_SAY_S:
                last_said = time.monotonic()
                progress.say(
                    f"{waiting} jobs wait for workers; enqueueing goes on when they are fewer "
                    "(HERMES_QUEUE_PRODUCER_BACKLOG_MAX)"
                )

        done = enqueue(
            self.plan.jobs(self.selection, groups.__contains__),
            ledger=ledger,
            config=self.plan.config(self.selection.dataset),
            on_batch=on_batch,
            on_full=on_full,
        )
        summary.enqueued, summary.already = done.enqueued, done.already
        known = f", {done.already} were there already" if done.already else ""
        progress.say(f"enqueued {done.enqueued} jobs on lane {self.plan.lane}{known}")
