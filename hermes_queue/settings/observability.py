"""Sections for operators: metrics, logs and OpenTelemetry."""

from __future__ import annotations

import re
from typing import Literal
from urllib.parse import unquote, urlsplit

from pydantic import Field, SecretStr, field_validator

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


_SIGNALS = ("traces", "metrics", "logs")


class OtelSettings(Section, env_prefix=PREFIX + "OTEL_", env_ignore_empty=True):
    """Export to an OpenTelemetry collector (docs/tracing.md). It needs the extra `otel`."""

    endpoint: SecretStr | None = None
    """URL of a receiver of OTLP over HTTP, e.g. http://127.0.0.1:4318; `/v1/traces` and the like
    are added. It may hold a user and a password, and is never logged. Unset: nothing is
    exported."""
    headers: SecretStr | None = None
    """Headers of each request, `name=value,name=value`; values may be percent-encoded."""
    signals: str = "traces"
    """Comma-separated: traces, metrics, logs."""
    sample: float = Field(default=0.1, ge=0, le=1)
    """Share of all trajectories that are traced. A trajectory whose job carries the context of a
    producer's trace is traced if that one is."""
    keep_failed: bool = False
    """Also export each attempt that failed, and trajectories that failed or needed several."""
    content: bool = False
    """Whether spans hold messages, arguments and results of tools, and texts of failures."""
    content_characters: int = Field(default=8192, ge=64, le=1 << 20)
    """Characters of each such text that are exported; secrets are replaced before it is cut."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lines below this level are not exported."""
    timeout_s: float = Field(default=10.0, gt=0, le=300)
    """Time limit of one request."""
    interval_s: float = Field(default=2.0, gt=0, le=60)
    """Interval at which spans and log lines are sent."""
    metrics_s: float = Field(default=30.0, gt=0, le=3600)
    """Interval at which metrics are sent."""
    queue_bytes: int = Field(default=8 << 20, ge=1 << 16, le=1 << 30)
    """Bytes that wait for the collector; what has no room is dropped and counted."""
    shutdown_s: float = Field(default=3.0, ge=0, le=60)
    """Longest time that a process takes at its end to send what waits."""

    @field_validator("endpoint")
    @classmethod
    def _is_a_url(cls, endpoint: SecretStr | None) -> SecretStr | None:
        if endpoint is not None:
            try:
                url = urlsplit(endpoint.get_secret_value())
                usable = url.scheme in ("http", "https") and url.hostname and url.port != 0
            except ValueError:
                usable = False
            if not usable:
                raise ValueError("write it as http://HOST:PORT or https://HOST, of OTLP over HTTP")
        return endpoint

    @field_validator("signals")
    @classmethod
    def _are_known(cls, signals: str) -> str:
        for each in signals.split(","):
            if each.strip() not in _SIGNALS:
                raise ValueError(f"choose from {', '.join(_SIGNALS)}")
        return signals

    @field_validator("headers")
    @classmethod
    def _are_pairs(cls, headers: SecretStr | None) -> SecretStr | None:
        if headers is not None:
            header_pairs(headers.get_secret_value())
        return headers

    def exports(self, signal: str) -> bool:
        """Whether this signal is exported."""
        return self.endpoint is not None and signal in map(str.strip, self.signals.split(","))


def header_pairs(text: str) -> dict[str, str]:
    """The headers of `name=value,name=value`. Raises ValueError, without any value."""
    pairs: dict[str, str] = {}
    for each in filter(None, map(str.strip, text.split(","))):
        name, found, value = each.partition("=")
        value = unquote(value.strip())
        is_name = bool(re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name.strip()))
        if not found or not is_name or not re.fullmatch(r"[ -~]*", value):
            raise ValueError("write headers as name=value,name=value")
        pairs[name.strip()] = value
    return pairs
