"""The exported file, opened from a disk in a real Chromium."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

import pytest
from browser import chromium, keep
from click.testing import CliRunner
from view_records import HOSTILE_RUN, HOSTILE_TEXTS, RUN, SAMPLES
from viewed import Viewed

from hermes_queue.cli import cli

MARKUP = [text for text in HOSTILE_TEXTS if text.isascii() and "\x1b" not in text]
TOOLS = Path(os.environ.get("VIEW_TOOLS", ".venv/view-tools/node_modules")).resolve()
TABS = ("", "patch", "verifier", "tokens", "attempts", "record")


class Filed(Viewed):
    """A browser at one file."""

    def __init__(self, file: Path, profile: Path) -> None:
        self.file = file
        self._watch(chromium(profile))

    def open(self, path: str, **parameters: object) -> None:
        query = "&".join(
            f"{name}={quote(str(value))}" for name, value in parameters.items() if value
        )
        self.driver.get("about:blank")
        self.driver.get(f"{self.file.as_uri()}#{path}{'?' + query if query else ''}")
        self.settle()

    def check(self) -> None:
        """No script ran but the one of the file, nothing was asked, nothing broke the policy."""
        assert self.run("return window.ran === undefined;")
        assert {url.partition("#")[0] for url in self.requests()} == {self.file.as_uri()}
        assert self.breaches == []
        assert self.run("return document.scripts.length;") == 2
        assert self.all("main script, main iframe, main img, main [onerror]") == []


@pytest.fixture(scope="module")
def filed(written, tmp_path_factory):
    directory = tmp_path_factory.mktemp("filed")
    out = directory / "a run's #1 export.html"
    arguments = ["export", "--format", "html", "--from", written[0], "--tokens", "--out", out]
    queries = ["--filter", f"run:{RUN},{HOSTILE_RUN}"]
    done = CliRunner().invoke(cli, [*map(str, arguments), *queries])
    assert done.exit_code == 0, done.output
    browser = Filed(out, directory / "profile")
    yield browser
    browser.close()


def of_run(records, run):
    return [record for record in records if record.run_id == run]


def test_the_file_lists_what_it_holds(filed, records):
    filed.open("/")
    assert len(filed.all("table.rows tbody tr")) == len(of_run(records, RUN)) + 1
    filed.check()
    keep(filed.driver, "view-filed")


@pytest.mark.parametrize("tab", TABS)
def test_every_view_of_a_hostile_record_is_text(filed, records, tab):
    [record] = of_run(records, HOSTILE_RUN)
    filed.open(f"/t/{quote(record.trajectory_id, safe='')}", tab=tab)
    filed.check()
    assert filed.all("main .problem") == []
    if not tab:
        shown = filed.texts("article.user .prose")
        assert [text for text in shown if text in MARKUP] == MARKUP


def test_rows_lead_to_trajectories_and_back_by_keys(filed):
    filed.open("/")
    filed.press("j")
    name = filed.focused()
    filed.press("\ue007")
    filed.wait("the trajectory", lambda: name.split(" ")[-1] in filed.texts("h1")[0])
    assert filed.all("nav.outline a")
    filed.press("u")
    filed.wait("the list", lambda: filed.all("table.rows tbody tr"))
    filed.driver.back()
    filed.wait("the trajectory again", lambda: filed.all("nav.outline a"))
    filed.check()


def test_a_group_is_compared_to_any_of_its_samples(filed, records):
    group = of_run(records, RUN)[0].group_id
    filed.open(f"/group/{group}")
    filed.wait("the comparison", lambda: filed.all("table.compare"))
    assert len(filed.all("table.compare thead th a[href*='/t/']")) == SAMPLES
    filed.click("table.compare thead a.quiet")
    filed.wait("another reference", lambda: "ref=" in filed.driver.current_url)
    filed.settle()
    assert filed.all("table.compare")
    assert filed.all(".problem") == []
    filed.check()


def test_no_link_leads_out_of_the_file(filed, records):
    for path in ("/", f"/t/{of_run(records, RUN)[0].trajectory_id}?tab=record"):
        filed.open(path)
        links = filed.run("return [...document.links].map((a) => a.getAttribute('href'));")
        assert links
        assert [each for each in links if not each.startswith("#/")] == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_in_the_file(filed, records, theme):
    filed.theme(theme)
    script = (TOOLS / "axe-core/axe.min.js").read_text()
    record = of_run(records, RUN)[0]
    for path in ("/", f"/group/{record.group_id}", f"/t/{record.trajectory_id}"):
        filed.open(path)
        assert filed.axe(script) == [], path
