"""A real Prometheus with our configuration, and what it answers to the queries of dashboards."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import urllib.parse
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from scrape import fetch

DEPLOY = Path(__file__).parents[2] / "deploy"


def queries(paths: Iterable[Path]) -> list[tuple[str, str]]:
    """(where, query) of every panel, with Grafana's variables filled in."""
    return [
        (
            f"{path.stem}: {panel['title']} {target['refId']}",
            target["expr"].replace("$__rate_interval", "10s").replace("$__range", "5m"),
        )
        for path in paths
        for panel in json.loads(path.read_text())["panels"]
        for target in panel.get("targets", ())
    ]


def answer(prometheus: str, query: str) -> list[float]:
    """The values Prometheus has for it now; NaN is none."""
    text = fetch(f"{prometheus}/api/v1/query?query={urllib.parse.quote(query)}")
    values = [float(series["value"][1]) for series in json.loads(text)["data"]["result"]]
    return [value for value in values if not math.isnan(value)]


@contextmanager
def running_prometheus(directory: Path, port: int, addresses: dict[str, str]) -> Iterator[str]:
    """Prometheus with our configuration, scraping every second what `addresses` map to."""
    text = (DEPLOY / "prometheus.yml").read_text()
    for name, address in addresses.items():
        assert name in text, name
        text = text.replace(name, address)
    text = text.replace("15s", "1s")
    directory.mkdir()
    (directory / "prometheus.yml").write_text(text)
    shutil.copy(DEPLOY / "prometheus-rules.yml", directory)
    command = ["prometheus", f"--config.file={directory}/prometheus.yml"]
    command += [f"--storage.tsdb.path={directory}/data", f"--web.listen-address=127.0.0.1:{port}"]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)
