"""Metrics of mixes: their backlog, and how far each source has come."""

from __future__ import annotations

import math
from collections.abc import Iterator

import redis

from hermes_queue.errors import ConfigurationError
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.mixing.shown import ShownMix, find_mix, mix_names
from hermes_queue.telemetry import metrics
from hermes_queue.telemetry.meter import Values

MIXES_MAX = 20
"""Mixes that are measured: those that were started last."""
TEXT_BYTES_MAX = 2 << 20
"""What is written of 256 sources takes half of it; of longer ones only the backlog is read."""


def read_mixes(ledger: Ledger) -> Iterator[tuple[metrics.Metric, Values]]:
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
    yield metrics.MIX_SERVED, served
    yield metrics.MIX_JOBS, jobs
    yield metrics.MIX_ROWS, rows
    yield metrics.MIX_WEIGHT, weights
    yield metrics.MIX_EPOCH, epochs


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
