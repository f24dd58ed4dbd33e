"""Metrics of mixes: their backlog, and how far each source has come."""

from __future__ import annotations

import math
from collections.abc import Iterator

import redis

from hermes_plugins.mix.shown import ShownMix, find_mix, mix_names
from hermes_queue.errors import ConfigurationError
from hermes_queue.ledger import Ledger
from hermes_queue.telemetry.meter import Values
from hermes_queue.telemetry.metrics import Metric

SERVED = Metric(
    "exporter",
    "mix_served",
    "1 while a producer serves a mix, of the 20 that were started last.",
    ("mix",),
)
JOBS = Metric(
    "exporter",
    "mix_jobs",
    "Trajectories of a mix; state: waiting (its backlog, held back and parked ones too), running.",
    ("mix", "state"),
)
ROWS = Metric(
    "exporter",
    "mix_rows_total",
    "Rows that a mix has drawn from a source and enqueued, once per group.",
    ("mix", "source"),
)
WEIGHT = Metric(
    "exporter",
    "mix_weight",
    "Weight of a source as it is now; its share is that among all of its mix; 0 while it pauses.",
    ("mix", "source"),
)
EPOCH = Metric("exporter", "mix_epoch", "Epoch of a source, from 1.", ("mix", "source"))

MIXES_MAX = 20
"""Mixes that are measured: those that were started last."""
TEXT_BYTES_MAX = 2 << 20
"""What is written of 256 sources takes half of it; of longer ones only the backlog is read."""


def read_mixes(ledger: Ledger) -> Iterator[tuple[Metric, Values]]:
    """What the exporter says of mixes. Producers write them: what is no mix is left out.

    Raises:
        RedisUnavailable: no answer.
    """
    served: dict[tuple[str, ...], float] = {}
    jobs: dict[tuple[str, ...], float] = {}
    rows: dict[tuple[str, ...], float] = {}
    weights: dict[tuple[str, ...], float] = {}
    epochs: dict[tuple[str, ...], float] = {}
    for mix in _found(ledger):
        served[mix.name,] = float(bool(mix.served_by))
        jobs[mix.name, "waiting"] = _exact(mix.waiting)
        jobs[mix.name, "running"] = _exact(mix.running)
        for name, source in mix.sources.items():
            rows[mix.name, name], epochs[mix.name, name] = (
                _exact(source.items),
                _exact(source.epoch),
            )
            is_drawn = not source.pause and math.isfinite(source.weight)
            weights[mix.name, name] = source.weight if is_drawn else 0.0
    yield SERVED, served
    yield JOBS, jobs
    yield ROWS, rows
    yield WEIGHT, weights
    yield EPOCH, epochs


def _exact(count: int) -> float:
    return float(max(0, min(count, 2**53)))


def _found(ledger: Ledger) -> Iterator[ShownMix]:
    try:
        names = mix_names(ledger)[:MIXES_MAX]
    except redis.ResponseError:
        return
    for name in names:
        try:
            yield find_mix(ledger, name, text_bytes_max=TEXT_BYTES_MAX)
        except (ConfigurationError, ValueError):
            continue
