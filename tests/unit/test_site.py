"""The documentation builds into a site that is complete and needs nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from pages import ROOT

LOADING = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src")}


class Page(HTMLParser):
    """What a page loads, and the text of its paragraphs."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.paragraphs: list[str] = []
        self._inside = False
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if values.get("rel") != "canonical":
            self.loads += [str(values[name]) for t, name in LOADING if t == tag and name in values]
        if tag == "p":
            self._inside = True
            self.paragraphs.append("")
        elif tag in ("code", "pre"):
            self._inside = False

    def handle_endtag(self, tag: str) -> None:
        self._inside = tag == "code" if self.paragraphs and tag != "p" else False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.paragraphs[-1] += data


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. `--strict` ends at a broken link or anchor; with `--quiet` it would not."""
    place = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", place],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return place


def pages(site: Path) -> Iterator[tuple[str, Page]]:
    for path in sorted(site.glob("*.html")):
        yield path.name, Page(path)


def test_every_page_is_in_it(site: Path) -> None:
    written = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert written <= {path.stem for path in site.glob("*.html")}


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    loads = {(name, url) for name, page in pages(site) for url in page.loads}
    assert len(loads) > 20
    assert {entry for entry in loads if re.match(r"(\w+:)?//", entry[1])} == set()
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert re.findall(r"url\([\"']?(?:https?:)?//|@import", styles) == []


def test_markdown_that_the_site_understands_otherwise_than_github_is_found(site: Path) -> None:
    """A list without an empty line before it, a fence that is indented too little, a lone row."""
    broken = [
        (name, text)
        for name, page in pages(site)
        for text in page.paragraphs
        if re.search(r"```|^\s*(\||\d+\. |[-*] )|\n\s*([-*] |\|)", text)
    ]
    assert broken == []


def test_generators_are_not_part_of_the_site(site: Path) -> None:
    assert list(site.rglob("*.py")) == []
