"""A report of a run says what the ledger knows, and nothing in it can harm its reader."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner
from ledger_steps import begin, enqueue, publish
from records import make_job, make_record

from hermes_plugins.goodput.facts import drawn, report_of
from hermes_plugins.goodput.page import page_of
from hermes_plugins.goodput.text import lines_of
from hermes_queue.cli import cli
from hermes_queue.errors import ConfigurationError
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.accounts.goodput import add_report
from hermes_queue.ledger.accounts.series import Moment
from hermes_queue.ledger.policy import set_version

HOSTILE = "<script>alert(1)</script>\"'&\x1b[2J"


def known_run(ledger: Ledger) -> None:
    set_version(ledger, "run", 3)
    jobs = [make_job(instance=f"i{n}") for n in range(3)]
    ledger.enqueue("run", jobs, config={"env": HOSTILE, "model": "m"})
    ledger.published(job.trajectory_id for job in jobs)
    for job, version in zip(jobs[:2], ("1", "3"), strict=True):
        begin(ledger, job)
        record = make_record(job, policy=version)
        publish(ledger, record.model_copy(update={"policy_oldest": version}))
    counts = {
        "s|model": 60, "s|tools": 20, "s|retry:sandbox": 15, "s|death": 5, "n|measured": 2,
        "n|retry:sandbox": 3, "n|failed:model": 1, "c|scored": 2, "c|passed": 1, "c|score": 1.5,
        "h|5": 1, "h|10": 1, "usd|measured": 0.5, "box|measured": 0.25, "tok|retry:sandbox": 9,
    }  # fmt: skip
    moments = {"ended": 2, "scored": 2, "passed": 1, "score": 1.5, "usd": 0.75}
    add_report(
        ledger,
        "w1",
        1,
        counts=[("run", name, by) for name, by in counts.items()],
        moments=[("run", name, by) for name, by in moments.items()],
        slow=[("run", f"{HOSTILE} run.g.0", 99)],
    )


class _Seen(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


def test_the_terminal_shows_every_part_of_a_run(ledger):
    known_run(ledger)
    text = "\n".join(lines_of(report_of(ledger, "run")))
    for part in (
        "run: active, 2 of 3 ended",
        "2 scored in 1.7 min of slot-time: 72 per slot-hour; 80 % of the time went into them",
        "US$ 0.7500 (models 0.5000, slots 0.2500): 2.67 scored per US$",
        "mean score 0.750, 50.0 % passed of 2 scored",
        "- retry:sandbox",
        "15.0 %",
        "3 tried again, 0 for good",
        "run.g.0",
        "2 versions",
    ):
        assert part in text, part


def test_the_page_has_plots_and_neither_script_nor_links(ledger):
    known_run(ledger)
    page, seen = page_of(report_of(ledger, "run")), _Seen()
    seen.feed(page)
    assert page.count("<svg") >= 7
    assert seen.tags.isdisjoint({"script", "a", "link", "img", "iframe", "object"})
    assert not {name for name in seen.attributes if name.startswith("on")} | (
        seen.attributes & {"href", "src"}
    )
    assert "&lt;script&gt;alert(1)" in page
    assert "default-src 'none'" in page
    assert not re.search(r"https?://", page)


def test_a_run_of_which_nothing_has_ended_has_a_report(ledger):
    enqueue(ledger, make_job())
    report = report_of(ledger, "run")
    assert "no lease has ended yet" in list(lines_of(report))
    assert "<h1>Run run</h1>" in page_of(report)


def test_an_unknown_run_is_named(ledger):
    with pytest.raises(ConfigurationError, match="run 'none' is unknown"):
        report_of(ledger, "none")


def test_a_long_course_is_drawn_in_few_columns_without_a_gap():
    course = [Moment(60.0 * n, 60.0, {"scored": 1.0}) for n in (*range(200), 9999)]
    found = drawn(course)
    assert len(found) <= 120
    assert {moment.width_s for moment in found} == {60.0 * 84}
    assert sum(moment.sums.get("scored", 0.0) for moment in found) == 201
    assert drawn([]) == []


def test_the_command_writes_a_file_or_prints(ledger, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(Ledger, "connect", lambda **_: Ledger(ledger.client, prefix="hq:"))
    monkeypatch.setattr(Ledger, "close", lambda _: None)
    known_run(ledger)
    out = tmp_path / "run.html"
    written = CliRunner().invoke(cli, ["report", "run", "--html", str(out)])
    assert written.exit_code == 0, written.output
    assert out.read_text().startswith("<!doctype html>")
    printed = CliRunner().invoke(cli, ["report", "run"])
    assert "where slot-time went" in printed.output
    assert "\x1b" not in printed.output
    as_json = CliRunner().invoke(cli, ["report", "run", "--json"])
    assert '"per_slot_hour": 72.0' in as_json.output
    shown = CliRunner().invoke(cli, ["goodput", "run"])
    assert "retry:sandbox" in shown.output


def test_accounts_that_a_terminal_would_obey_are_shown_as_signs(redis_server, ledger, monkeypatch):
    monkeypatch.setenv("HERMES_QUEUE_REDIS_URL", redis_server.url)
    ledger.client.hset("hq:goodput", f"s|retry:{HOSTILE}", 5)
    shown = CliRunner().invoke(cli, ["goodput"])
    assert "retry:<script>" in shown.output
    assert "\x1b" not in shown.output
