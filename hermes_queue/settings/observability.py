"""Sections for operators: metrics and logs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from hermes_queue.settings.section import PREFIX, Section


class MetricsSettings(Section, env_prefix=PREFIX + "METRICS_", env_ignore_empty=True):
    """Prometheus endpoints (docs/metrics.md). They need the extra `metrics`."""

    worker_port: int | None = Field(default=None, ge=0, le=65535)
    """Port on which a worker serves `/metrics`; 0 = any free port. Unset: not served."""
    worker_ports: int = Field(default=1, ge=1, le=1000)
    """Number of ports to try, from `worker_port` on, for several workers on one host."""
    exporter_port: int = Field(default=9808, ge=0, le=65535)
    """Port on which `hermes-queue exporter` serves `/metrics` and `/targets`; 0 = any free port."""
    sink_port: int | None = Field(default=None, ge=0, le=65535)
    """Port on which a sink serves `/metrics`; 0 = any free port. Unset: not served."""
    address: str = "127.0.0.1"
    """Address on which all of them listen. There is no password: everybody who can reach it can
    read them."""
    advertise: str | None = None
    """Host name under which Prometheus reaches a worker of this host. Unset: `address`, or the
    host's own name if that is 0.0.0.0 or ::."""
    max_label_values: int = Field(default=100, ge=1)
    """Distinct envs, models, endpoints, lanes, ... per metric; further ones are counted as
    `other`."""
    scan_s: float = Field(default=30.0, gt=0)
    """Interval at which the exporter scans the keys of Redis for workers, lanes and limits."""


class LogSettings(Section, env_prefix=PREFIX + "LOG_"):
    """Log lines of workers, sinks and the exporter (docs/logging.md)."""

    format: Literal["text", "json"] = "text"
    """`json`: one object per line, with `action`, `trajectory_id` and `run_id` if known."""
    scrub_env: str = ""
    """Comma-separated names of further environment variables whose values are secret. Variables
    named `*_KEY`, `*_TOKEN`, `*_SECRET`, `*_PASSWORD` and the like need not be listed."""
