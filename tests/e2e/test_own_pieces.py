"""The example in docs/envs.md works: its files in one directory, its commands run there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pages import ROOT, blocks, commands

PAGE = ROOT / "docs" / "envs.md"
COMMANDS = [words for block in blocks(PAGE, "sh") for words in commands(block)]
RUNS = [words for words in COMMANDS if words[0] == "python"]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The files of the page."""
    for block in blocks(PAGE):
        if name := block.says("file"):
            (tmp_path / name).write_text(block.text, encoding="utf-8")
    return tmp_path


def test_the_page_has_what_its_title_says() -> None:
    files = {block.says("file") for block in blocks(PAGE)} - {None}
    assert files == {
        *("reverse.py", "texts.jsonl", "palindrome.py", "careful.py", "texts.py"),
        "directories.py",
    }
    assert {words[0] for words in COMMANDS} == {"export", "python"}
    assert len(RUNS) == 5


@pytest.mark.slow("a Redis and a worker of its own")
@pytest.mark.parametrize("words", RUNS, ids=" ".join)
def test_a_command_of_the_page_does_what_it_says(words: list[str], directory: Path) -> None:
    """Each command has --expect-score: it exits with 0 only if every trajectory has that score."""
    assert "--expect-score" in words
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HERMES_QUEUE_")}
    done = subprocess.run(
        [sys.executable, *words[1:], "--quiet"],
        cwd=directory,
        env={**clean, "PYTHONPATH": os.pathsep.join([str(directory), str(ROOT)])},
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stdout + done.stderr
