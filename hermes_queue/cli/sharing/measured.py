"""Metrics of the shares: how many jobs wait and run, whether messages stand for them or not."""

from __future__ import annotations

from collections.abc import Iterator

from hermes_queue.ledger import Ledger
from hermes_queue.ledger.scheduling import Scheduler
from hermes_queue.telemetry import metrics
from hermes_queue.telemetry.meter import Values


def read_shares(ledger: Ledger) -> Iterator[tuple[metrics.Metric, Values]]:
    """What the exporter says of lanes, and of all for which anything is set.

    Raises:
        RedisUnavailable: no answer.
    """
    uses = Scheduler(ledger).usage()
    lanes = [use for use in uses if use.kind == "lane"]
    yield metrics.LANE_WAITING, {(use.name,): float(use.waiting or 0) for use in lanes}
    yield metrics.LANE_MEAN_SLOTS, {(use.name,): use.mean_slots or 0.0 for use in lanes}
    counted: Values = {(u.kind, u.name): float(u.running) for u in uses if u.running is not None}
    yield metrics.SHARE_RUNNING, counted
