"""Pictures of the pages for the documentation: that they can be made, and what is on them.

`make test-view IMAGES=docs/images` writes them there; otherwise they are made and left alone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from pictures import palette_png
from view_demo import RUN, SAMPLES, WORDS, write_demo
from view_fixture import ViewedPages, overview
from viewed import Viewed

from hermes_plugins.view.findings import FindingFiles
from hermes_queue.bodies.findings import TranscriptFinding
from hermes_queue.cli.overview import RunProgress
from hermes_queue.ledger.answers import RunStatus
from hermes_queue.ledger.budgets import Budget
from hermes_queue.ledger.runs import RunInfo
from hermes_queue.models import ScoredTrajectory

MOST_BYTES, LEAST_BYTES = 150_000, 8_000
PLACE = """const node = document.querySelectorAll("[data-block]")[2].firstChild;
  const range = new Range();
  const at = node.data.indexOf("<think>") + 12;
  range.setStart(node, at);
  range.setEnd(node, at + 1);
  const box = range.getBoundingClientRect();
  return [box.left + 2, box.top + box.height / 2];"""
"""Where a sampled token of the third turn is."""
Records = list[ScoredTrajectory]


def run(name: str, state: str, reason: str, counters: RunStatus, **more: Any) -> dict[str, Any]:
    """A run as the overview has it."""
    info = RunInfo(name, state, reason, "", time.time() - 3600, {}, 0, {}, None, None, counters)
    found = asdict(RunProgress(replace(info, **more), 1946.0, 390.0))
    return found if state == "active" else {**found, "per_hour": 0.0, "eta_s": None}


def deployment(records: Records) -> dict[str, Any]:
    """The overview of a deployment that works on the tasks of the records."""
    names = list(dict.fromkeys(record.instance_id for record in records))
    counters = RunStatus(total=260, queued=10, running=152, finished=96, failed=2, groups=12)
    spent = Budget("usd", 20.0, 3.1, 0.2)
    found = overview(time.time())
    found["runs"] = [
        run(RUN, "active", "", counters, policy_version=12, accounts={"usd": spent}),
        run("sft-collect", "paused", "by budget", RunStatus(60, 60, 0, 0, 0, 0)),
    ]
    found["oldest"] = [
        {
            "age_s": 66.0 - 7 * n,
            "stage": "agent" if n % 3 else "verify",
            "turns": 14 - 2 * n,
            "attempt": 1 + (n == 2),
            "label": f"{name} #{n}",
            "trajectory_id": f"{RUN}.{n}.0",
        }
        for n, name in enumerate(names[:5])
    ]
    return found


def skipping(records: Records) -> ScoredTrajectory:
    """The one that skips tests of the first task."""
    return next(record for record in reversed(records) if record.report.get("dropped"))


def findings(records: Records, path: Path) -> FindingFiles:
    """What a judge says of it."""
    record = skipping(records)
    at, quote = next(
        (n, "pytestmark = pytest.mark.skip")
        for n, message in enumerate(record.messages)
        for call in message.tool_calls
        if "mark.skip" in call.function.arguments
    )
    found = TranscriptFinding(
        trajectory_id=record.trajectory_id,
        message=at,
        quote=quote,
        label="skips tests",
        by="judge-v2",
        note="It turns the tests off instead of repairing the package.",
    )
    path.write_text(found.model_dump_json() + "\n")
    return FindingFiles([path])


@pytest.fixture(scope="module")
def shown(redis_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A browser at these records, and the records."""
    directory = tmp_path_factory.mktemp("screens")
    records = write_demo(directory / "demo.jsonl")
    said = findings(records, directory / "judged.jsonl")
    more: dict[str, Any] = {"tokenizer": WORDS, "findings": said}
    pages = ViewedPages(directory / "demo.jsonl", directory / "viewed", redis_binary, **more)
    pages.deployment.seen = deployment(records)
    try:
        browser = Viewed(pages, directory / "profile")
        try:
            browser.login()
            yield browser, records
        finally:
            assert browser.breaches == []
            browser.close()
    finally:
        pages.close()


def picture(viewed: Viewed, name: str, settled: str) -> None:
    """One picture of the page that is open, in few colours."""
    viewed.wait(settled, lambda: viewed.all(settled))
    viewed.run("document.activeElement.blur(); document.fonts.ready;")
    made = palette_png(viewed.driver)
    assert LEAST_BYTES < len(made) <= MOST_BYTES
    if directory := os.environ.get("IMAGES"):
        Path(directory, f"view-{name}.png").write_bytes(made)


def test_the_first_page(shown):
    viewed, _ = shown
    viewed.theme("light")
    viewed.size(1240, 580)
    viewed.open("/")
    viewed.says("sft-collect")
    viewed.says("paused")
    picture(viewed, "fleet", "[aria-labelledby=workers] tbody tr")


def test_a_run(shown):
    viewed, _ = shown
    viewed.theme("light")
    viewed.size(1240, 760)
    viewed.open(f"/run/{RUN}")
    viewed.says("spent $3.10 of $20.00")
    assert "pypi__schedule" in viewed.text
    picture(viewed, "run", "table.rows tbody tr")


def test_samples_side_by_side(shown):
    viewed, records = shown
    viewed.theme("light")
    viewed.size(1380, 900)
    viewed.open(f"/group/{skipping(records).group_id}")
    viewed.wait("the comparison", lambda: viewed.all("table.compare"))
    assert len(viewed.all("table.compare thead a[href*='/t/']")) == SAMPLES
    viewed.run("scrollTo(0, document.querySelector('main > h2').offsetTop - 60);")
    picture(viewed, "group", "table.compare tbody tr")


def test_tokens_with_their_colours(shown):
    viewed, records = shown
    viewed.theme("dark")
    viewed.size(1240, 760)
    solved = next(r for r in reversed(records) if r.score == 1.0 and len(r.messages) > 16)
    viewed.open(f"/t/{solved.trajectory_id}", tab="tokens")
    viewed.wait("colours", lambda: viewed.run("return CSS.highlights.size;"))
    viewed.run("scrollTo(0, document.querySelectorAll('.strip-block')[1].offsetTop - 220);")
    x, y = viewed.run(PLACE)
    move = {"type": "mouseMoved", "x": x, "y": y}
    viewed.driver.execute_cdp_cmd("Input.dispatchMouseEvent", move)
    viewed.wait("what it is", lambda: "trained" in viewed.texts(".about")[0])
    picture(viewed, "tokens", ".strip-block")


def test_a_review_with_a_finding_at_its_passage(shown):
    viewed, records = shown
    viewed.theme("light")
    viewed.size(1240, 760)
    record = skipping(records)
    at = next(n for n, m in enumerate(record.messages) if "mark.skip" in str(m.tool_calls))
    viewed.open("/review", at=record.trajectory_id, m=at, f=0)
    viewed.says("It turns the tests off")
    assert viewed.texts("article .finding") == ["pytestmark = pytest.mark.skip"]
    picture(viewed, "review", ".finding")
