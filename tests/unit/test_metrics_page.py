"""Metrics are declared once; page, dashboards and alerts use what is declared."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hermes_queue.core import declared
from hermes_queue.ledger import Ledger
from hermes_queue.plugins import load_target
from hermes_queue.telemetry.metrics import METRICS, PREFIX, Metric

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
DASHBOARDS = sorted((ROOT / "deploy" / "grafana" / "dashboards").glob("*.json"))
RULES = (ROOT / "deploy" / "prometheus-rules.yml").read_text(encoding="utf-8")
UNITS = ("_total", "_seconds", "_bytes", "_groups")
PANELS = [(path, panel) for path in DASHBOARDS for panel in json.loads(path.read_text())["panels"]]


def expressions() -> str:
    return "\n".join(t["expr"] for _, panel in PANELS for t in panel.get("targets", ()))


def used(text: str) -> set[str]:
    names = set(re.findall(rf"{PREFIX}[a-z_]+", text))
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in names}


@pytest.fixture
def of_plugins(ledger: Ledger) -> dict[str, list[Metric]]:
    """Metrics of the exporter that plugins declare, by the plugin's name."""
    return {
        plugin.name: [
            metric for target in plugin.exported for metric, _ in load_target(target)(ledger)
        ]
        for plugin in declared()
        if plugin.exported
    }


@pytest.fixture
def every(of_plugins: dict[str, list[Metric]]) -> list[Metric]:
    return [*METRICS, *(metric for metrics in of_plugins.values() for metric in metrics)]


def listed(page: Path) -> dict[str, tuple[str, str, str]]:
    return {
        name: (kind, labels, help_text)
        for name, kind, labels, help_text in re.findall(
            rf"^\| `{PREFIX}([a-z_]+)` \| (\w+) \| ([^|]*) \| ([^|]*) \|$",
            page.read_text(encoding="utf-8"),
            re.MULTILINE,
        )
    }


def test_a_page_lists_every_metric_of_the_core_or_a_plugin_as_it_is_declared(of_plugins) -> None:
    pages = {DOCS / "metrics.md": METRICS}
    pages |= {DOCS / "plugins" / f"{name}.md": found for name, found in of_plugins.items()}
    for page, metrics in pages.items():
        assert listed(page) == {
            metric.name: (
                metric.kind,
                ", ".join(f"`{label}`" for label in metric.labels) or "none",
                metric.help,
            )
            for metric in metrics
        }


def test_names_are_unique_and_end_in_their_unit(every) -> None:
    assert len({m.name for m in every}) == len(every)
    durations = {m.name for m in every if m.help.startswith("Seconds")}
    assert all(name.endswith("_seconds") for name in durations)


def test_no_label_can_hold_an_id(every) -> None:
    labels = {label for metric in every for label in metric.labels}
    assert not {label for label in labels if label.endswith("_id") or "trajectory" in label}


def test_dashboards_and_alerts_name_only_declared_metrics_and_show_all(every) -> None:
    known = {metric.full_name for metric in every}
    assert used(expressions()) == known
    assert used(RULES) <= known


@pytest.mark.parametrize(
    ("path", "panel"), PANELS, ids=[f"{path.stem}-{panel['title']}" for path, panel in PANELS]
)
def test_a_panel_is_complete(path: Path, panel: dict) -> None:
    assert panel["title"]
    if panel["type"] == "row":
        return
    assert panel["description"]
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
    for target in panel["targets"]:
        assert target["datasource"] == {"type": "prometheus", "uid": "prometheus"}
        assert target["expr"].count("(") == target["expr"].count(")")


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_of_a_dashboard_do_not_overlap_and_have_ids_of_their_own(path: Path) -> None:
    dashboard = json.loads(path.read_text())
    assert re.fullmatch(r"[a-z-]{1,40}", dashboard["uid"])
    cells: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        own = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not own & cells, panel["title"]
        cells |= own
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))


def test_the_provisioned_data_source_is_the_one_that_panels_name() -> None:
    folder = ROOT / "deploy" / "grafana" / "provisioning"
    assert "uid: prometheus" in (folder / "datasources" / "prometheus.yml").read_text()
    assert (
        "path: /etc/grafana/dashboards" in (folder / "dashboards" / "hermes-queue.yml").read_text()
    )
