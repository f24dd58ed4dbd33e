"""Sends the jobs of a run, each once, and sets the run's budgets."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from hermes_queue.broker.enqueue import enqueue
from hermes_queue.ledger import Ledger, Runs
from hermes_queue.ledger.budgets import set_budgets
from producers.run.plan import Plan
from producers.run.report import Report
from producers.run.selection import SelectedItems

FULL_SAY_S = 30.0
"""Seconds between two messages that the backlog is full."""


class Stopped(Exception):
    """Enqueueing was stopped."""


@dataclass(frozen=True, slots=True)
class Sending:
    """The jobs to send, and the report that counts them."""

    plan: Plan
    selection: SelectedItems
    report: Report

    def open(self, ledger: Ledger) -> None:
        """Set the run's budgets, and resume it if an exhausted budget has paused it.

        An embedded run is resumed from any pause, because only this command can resume it.
        """
        budgets = self.plan.options.budgets.given()
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
        """Send the jobs of `groups`; jobs that an earlier call has sent are not sent again.

        Raises:
            Stopped: `stop` was set by another thread.
        """
        progress, summary = self.report.progress, self.report.summary
        total = sum(groups.values()) + len(groups) * self.plan.group_policy.extra_samples
        sent, reported_at = 0, 0.0

        def check() -> None:
            if stop and stop.is_set():
                raise Stopped

        def on_batch(count: int) -> None:
            nonlocal sent
            sent += count
            progress.show_sent(sent, total)
            check()

        def on_full(waiting: int) -> None:
            nonlocal reported_at
            check()
            if time.monotonic() - reported_at > FULL_SAY_S:
                reported_at = time.monotonic()
                progress.say(
                    f"{waiting} jobs wait for workers; enqueueing continues when they are fewer "
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
        known = f", {done.already} were already enqueued" if done.already else ""
        progress.say(f"enqueued {done.enqueued} jobs on lane {self.plan.options.run.lane}{known}")
