"""The examples in docs/envs.md and docs/backends.md work: their commands do what they say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pages import ROOT, blocks, commands

PAGES = ROOT / "docs" / "envs.md", ROOT / "docs" / "backends.md"
BLOCKS = [block for page in PAGES for block in blocks(page)]
COMMANDS = [words for page in PAGES for block in blocks(page, "sh") for words in commands(block)]
RUNS = [words for words in COMMANDS if words[0] == "python"]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The files of the pages."""
    for block in BLOCKS:
        if name := block.says("file"):
            (tmp_path / name).write_text(block.text, encoding="utf-8")
    return tmp_path


def test_the_pages_have_what_their_titles_say() -> None:
    files = {block.says("file") for block in BLOCKS} - {None}
    assert files == {
        *("reverse.py", "texts.jsonl", "palindrome.py", "careful.py", "texts.py"),
        "directories.py",
    }
    assert {words[0] for words in COMMANDS} == {"export", "python", "hermes-queue"}
    assert len(RUNS) == 5


@pytest.mark.slow
@pytest.mark.parametrize("words", RUNS, ids=" ".join)
def test_a_command_of_the_page_does_what_it_says(words: list[str], directory: Path) -> None:
    """Each command has --expect-score: it exits with 0 only if every trajectory has that score."""
    assert "--expect-score" in words
    done = run([*words[1:], "--quiet"], directory, PYTHONPATH=f"{directory}:{ROOT}")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_backend_of_the_page_passes_the_checks_that_the_page_names(directory: Path) -> None:
    [words] = [words for words in COMMANDS if words[:3] == ["hermes-queue", "sandboxes", "check"]]
    settings = {"PYTHONPATH": str(ROOT), "HERMES_QUEUE_PATHS_CACHE": str(directory / "cache")}
    done = run(["-m", "hermes_queue.cli", *words[1:]], directory, **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ": 38 passed, 0 failed, 16 skipped" in done.stdout


def run(words: list[str], directory: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    """Python with these arguments, beside the files, with these settings alone."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HERMES_QUEUE_")}
    return subprocess.run(
        [sys.executable, *words],
        cwd=directory,
        env={**clean, **settings},
        capture_output=True,
        text=True,
        timeout=170,
    )
