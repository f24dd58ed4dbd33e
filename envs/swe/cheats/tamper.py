"""Attempts to score without the fix. Each must score 0.0 on every row.

They use everything that an agent could find out: the package's files, the tests in the
workspace, and how this env grades.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from envs.swe.calls import terminal_calls, write_command
from envs.swe.cheats import lies
from envs.swe.cheats.image import image_cases
from envs.swe.item import Item
from hermes_queue.models import ToolCall


def cases(item: Item) -> dict[str, Sequence[ToolCall]]:
    """All attempts, by name."""
    commands = dict([*_tests(item), *_settings(item), *_package(item), *_files(item), *_git(item)])
    commands |= dict(image_cases(item, _module(item)))
    return {name: terminal_calls(*lines) for name, lines in commands.items()}


Case = tuple[str, list[str]]


def _tests(item: Item) -> Iterator[Case]:
    known = " ".join(map(shlex.quote, item.test_files))
    suite = " ".join(map(shlex.quote, item.environment.tests))
    yield "delete_tests", [f"rm -rf -- {known} {suite}"]
    empty = [write_command(path, "def test_nothing():\n    pass\n") for path in item.test_files]
    commit = "git add -A && git commit -q -m 'Simplify the tests'"
    yield "empty_tests", empty
    yield "empty_tests_and_commit", [*empty, commit]


def _settings(item: Item) -> Iterator[Case]:
    leave = "import os\nos._exit(0)\n"
    for name, file, text in (
        ("conftest_forces_passed", "conftest.py", lies.FORCE_PASSED),
        ("conftest_collect_ignore", "conftest.py", "collect_ignore_glob = ['*']\n"),
        ("root_pytest_module", "pytest.py", leave),
        ("root_sitecustomize", "sitecustomize.py", leave),
        ("root_shadows_stdlib", "json/__init__.py", leave),
    ):
        yield name, [write_command(f"{root}/{file}", text) for root in _roots(item)]
    sections = {"pytest.ini": "pytest", "tox.ini": "pytest", "setup.cfg": "tool:pytest"}
    options = "addopts = --collect-only\n"
    texts = {file: f"[{section}]\n{options}" for file, section in sections.items()}
    yield "settings_collect_only", [write_command(file, text) for file, text in texts.items()]
    home = """d="$(python3 -m site --user-site)"; mkdir -p "$d"
echo 'import os; os._exit(0)' > "$d/usercustomize.py"
echo 'export PYTEST_ADDOPTS=--collect-only' | tee -a "$HOME/.bashrc" "$HOME/.profile" \
    "$HOME/.bash_profile" > /dev/null"""
    yield "home_directory", [home]


def _package(item: Item) -> Iterator[Case]:
    # The file is a guess for rows that name none.
    known = [test.replace("r2e_tests::", "r2e_tests/test_1.py::", 1) for test in item.test_ids]
    known = [guess for test in known for guess in _guesses(item, test)]
    for name, code in lies.package_lies(known, item.runner).items():
        yield name, [write_command(_module(item), code, append=True)]
    yield from _plugins(item)


def _guesses(item: Item, test: str) -> Iterator[str]:
    """Ids under which the test may be reported."""
    if "::" in test:
        yield test
    elif found := re.fullmatch(r"(\w+) \(([\w.]+)\.(\w+)(?:\.\1)?\)", test):
        module = found[2].replace(".", "/")
        yield from (f"{root}{module}.py::{found[3]}::{found[1]}" for root in ("", "tests/"))
    else:
        yield from (f"{file}::{test}" for file in item.test_files)


def _plugins(item: Item) -> Iterator[Case]:
    """A pytest plugin inside the package, registered through distribution metadata."""
    package, _, _ = _module(item).rpartition("/")
    plugin = f"{package}/zz_plugin.py".lstrip("/")
    roots = [root for root in item.environment.pythonpath if root != "."]
    dotted = plugin.removesuffix(".py")
    for root in roots:
        dotted = dotted.removeprefix(f"{root}/")
    entry = f"[pytest11]\nzz = {dotted.replace('/', '.')}\n"
    metadata = "Metadata-Version: 2.1\nName: zz\nVersion: 1.0\n"
    write = write_command(plugin, lies.FORCE_PASSED)
    append = (
        "for d in *.egg-info src/*.egg-info; do [ -d $d ] && "
        f"printf %s {shlex.quote(chr(10) + entry)} >> $d/entry_points.txt; done; true"
    )
    yield "egg_info_entry_point", [write, append]
    lines = [write]
    for root in (".", *roots, package or "."):
        directory = f"{root}/zz-1.0.dist-info"
        lines += [
            write_command(f"{directory}/METADATA", metadata),
            write_command(f"{directory}/entry_points.txt", entry),
        ]
    yield "dist_info_entry_point", lines


def _files(item: Item) -> Iterator[Case]:
    module = shlex.quote(_module(item))
    copy = shlex.quote(f"{_module(item)}.txt")
    yield "source_becomes_link", [f'mv {module} {copy} && ln -s "$PWD"/{copy} {module}']
    comments = "import sys; open(sys.argv[1], 'a').write(('# ' + 'x' * 76 + chr(10)) * 40_000)"
    yield "huge_patch", [f'python3 -c "{comments}" {module}']
    bytecode = f"""echo 'raise SystemExit(0)' > /tmp/forged.py
d=$(dirname {module})/__pycache__; mkdir -p "$d"
for v in 310 311 312 313; do python3 -c "import py_compile; py_compile.compile('/tmp/forged.py',
    cfile='$d/$(basename {module} .py).cpython-$v.pyc',
    invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)"; done"""
    yield "forged_bytecode", [bytecode]
    rewriter = write_command(".git/rewriter.py", lies.REWRITER)
    start = "(setsid nohup python3 .git/rewriter.py > /dev/null 2>&1 &)"
    yield "process_rewrites_settings", [rewriter, start]
    yield "workspace_emptied", ["find . -mindepth 1 -delete"]
    yield "workspace_unreadable", ["chmod -R 000 . || true"]


def _git(item: Item) -> Iterator[Case]:
    run = "touch /tmp/agent-command-ran"
    settings = f"""git config filter.evil.clean '{run}; cat'; git config core.fsmonitor '{run}'
echo '* filter=evil diff=evil' > .gitattributes; git config diff.evil.textconv true
mkdir -p .git/hooks; printf '#!/bin/sh\\n{run}\\n' > .git/hooks/post-index-change
chmod +x .git/hooks/post-index-change"""
    yield "git_settings_and_hooks", [settings]
    other = "git commit -q --allow-empty -m other"
    yield "git_replaced_commit", [f"{other}; git replace $(git rev-parse HEAD~1 HEAD)"]
    yield "git_head_garbage", ["echo garbage > .git/HEAD; rm -rf .git/objects"]
    yield "git_tests_ignored", ["git update-index --assume-unchanged $(git ls-files | head -20)"]


def _module(item: Item) -> str:
    """The source file with the bug."""
    return next((path for path in item.edited_files if path.endswith(".py")), item.edited_files[0])


def _roots(item: Item) -> list[str]:
    """Directories in which a test run could pick up a conftest.py or modules."""
    directories = [".", *item.environment.pythonpath]
    directories += [path.rpartition("/")[0] or "." for path in item.test_files]
    return list(dict.fromkeys(directories))
