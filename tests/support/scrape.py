"""Reading a /metrics page."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=20) as response:
        return response.read().decode()


def scrape(url: str) -> Series:
    """Every sample by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(fetch(url))
        for sample in family.samples
    }


def value(series: Series, name: str, **labels: str) -> float | None:
    """The sample of exactly these labels."""
    return series.get((f"hermes_queue_{name}", frozenset(labels.items())))


def total(series: Series, name: str, **labels: str) -> float:
    """The sum over all samples that have these labels."""
    wanted = set(labels.items())
    return sum(
        each
        for (found, having), each in series.items()
        if found == f"hermes_queue_{name}" and wanted <= having
    )


def worker_endpoint(ledger: Any, pid: int) -> str:
    """The URL at which a worker reports to serve its metrics."""
    [target] = [w["metrics"] for w in ledger.workers() if w["pid"] == pid]
    return f"http://{target}/metrics"


def targets(url: str) -> list[str]:
    return [target for entry in json.loads(fetch(url)) for target in entry["targets"]]
