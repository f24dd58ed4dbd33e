"""The example in docs/extensions.md works: its files in one directory, or installed as a plugin."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pages import ROOT, blocks, commands
from zygote import run_forked

PAGE = ROOT / "docs" / "extensions.md"
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
        *("directories.py", "sqlite_rows.py", "line_calls.py", "plain_server.py"),
        *("my_extensions.py", "pyproject.toml"),
    }
    assert {words[0] for words in COMMANDS} == {"export", "python", "hermes-queue"}
    assert len(RUNS) == 6


@pytest.fixture
def site(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `pip install` has put what the page's project is."""
    target = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    local = ["--no-build-isolation", "--no-deps", "--no-index", "--target", str(target)]
    subprocess.run([*pip, *local, str(directory)], check=True, timeout=170)
    return target


def run(words: list[str], directory: Path, modules: Path) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HERMES_QUEUE_")}
    return subprocess.run(
        [sys.executable, *words[1:], "--quiet"],
        cwd=directory,
        env={**clean, "PYTHONPATH": os.pathsep.join([str(modules), str(ROOT)])},
        capture_output=True,
        text=True,
        timeout=170,
    )


def run_in_a_fork(words: list[str], directory: Path) -> subprocess.CompletedProcess[str]:
    """The same in a fork that has imported our packages; `python file.py` as the module `file`."""
    module, *flags = words[2:] if words[1] == "-m" else [words[1].removesuffix(".py"), *words[2:]]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HERMES_QUEUE_")}
    path = os.pathsep.join([str(directory), str(ROOT)])
    return run_forked(
        *(module, *flags, "--quiet"),
        environment={**clean, "PYTHONPATH": path},
        directory=directory,
        timeout_s=170,
    )


@pytest.mark.fleet
@pytest.mark.parametrize("words", [w for w in RUNS if "producers" not in w], ids=" ".join)
def test_a_command_of_the_page_does_what_it_says(words: list[str], directory: Path) -> None:
    """Each command has --expect-score: it exits with 0 only if every trajectory has that score."""
    assert "--expect-score" in words
    done = run_in_a_fork(words, directory)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.fleet
def test_the_backend_of_the_page_passes_the_checks_of_backends(directory: Path) -> None:
    [words] = [words for words in COMMANDS if words[:3] == ["hermes-queue", "sandboxes", "check"]]
    cache = {"HERMES_QUEUE_PATHS_CACHE": str(directory / "cache")}
    done = subprocess.run(
        [sys.executable, "-m", "hermes_queue.cli", *words[1:]],
        cwd=directory,
        env={**os.environ, **cache, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert ": 41 passed, 0 failed, 31 skipped" in done.stdout


@pytest.mark.fleet
def test_installed_as_a_plugin_names_are_enough(
    directory: Path, site: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    [words] = [words for words in RUNS if "producers" in words]
    elsewhere = tmp_path_factory.mktemp("elsewhere")  # where only what is installed is found
    shutil.copy(directory / "texts.jsonl", elsewhere)
    done = run(words, elsewhere, site)
    assert done.returncode == 0, done.stdout + done.stderr
