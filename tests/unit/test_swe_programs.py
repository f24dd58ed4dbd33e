"""Rows whose tests are of unittest, Django or SymPy: their columns, their ids, and their runs."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from collections.abc import Mapping
from importlib.resources import as_file, files
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from pydantic import ValidationError
from sample_package import fix_patch, make_row

from envs.swe.cheats import tamper
from envs.swe.cheats.lies import package_lies
from envs.swe.grading.places import TestFunction
from envs.swe.grading.plants import Planter
from envs.swe.images.commands import parse_command
from envs.swe.images.node_ids import with_node_ids
from envs.swe.item import Item
from envs.swe.repository import Repository
from envs.swe_smith import ENV
from hermes_queue.errors import EnvBug

if TYPE_CHECKING:
    from envs.swe.images.facts import ImageFacts

EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
ROW = make_row(patch=fix_patch(), environment=None, version="1.0", image="x/y:1")
LABELS = "".join(f"--- a/{path}\n+++ b/{path}\n@@ -0,0 +1 @@\n+x\n" for path in ("t.py", "u.py"))


def row(*tests: str, **columns: Any) -> dict[str, Any]:
    """A row with these tests in FAIL_TO_PASS."""
    return {**ROW, "FAIL_TO_PASS": list(tests), "PASS_TO_PASS": [], "test_patch": LABELS, **columns}


def runner(*tests: str, **columns: Any) -> str:
    return Item.model_validate(row(*tests, **columns)).runner


# --- columns ------------------------------------------------------------------------------------


def test_the_program_is_known_by_the_parser_the_repository_or_the_ids() -> None:
    verbose = "test_a (app.tests.T)"
    assert runner("t.py::test_a", repo="django/django") == "pytest"
    assert runner("Docs only:: /a/../b", repo="django/django") == "django"
    assert runner("test_a", repo="sympy/sympy") == "sympy"
    assert runner(verbose, repo="a/b") == "unittest"
    assert runner(verbose, repo="a/b", log_parser="parse_log_django") == "django"
    assert runner("t.py::test_a", log_parser="parse_log_matplotlib") == "pytest"


def test_a_source_may_state_the_program() -> None:
    source = {"type": "image", "reference": "x"}
    assert runner("test_a", repo="a/b", source={**source, "runner": "sympy"}) == "sympy"
    assert runner("test_a (t.T)", repo="a/b", source=source) == "unittest"
    with pytest.raises(ValidationError, match="runner"):
        Item.model_validate(row("test_a", source={**source, "runner": "jest"}))


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"FAIL_TO_PASS": ["test_a"], "repo": "a/b"}, "'test_a' is not the id of a test of pytest"),
        ({"FAIL_TO_PASS": ["a test"], "repo": "sympy/sympy"}, "is not the id of a test of sympy"),
        ({"FAIL_TO_PASS": ["a/../t.py::test_a"]}, "FAIL_TO_PASS: 'a/../t.py'"),
        ({"log_parser": "parse_log_jest"}, "log_parser: 'parse_log_jest'"),
        (
            {"repo": "a/b", "source": {"type": "image", "reference": "x", "runner": "unittest"}}
            | {"environment": {"pytest_args": ["-x"]}},
            "environment.pytest_args",
        ),
    ],
)
def test_a_row_of_another_program_is_refused_by_its_column(
    columns: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValidationError, match=re.escape(said)):
        Item.model_validate({**row("t.py::test_a"), **columns})


@pytest.mark.parametrize(
    ("command", "program", "env"),
    [
        ("./tests/runtests.py --verbosity 2 --parallel 1 app.tests", "django", {}),
        (
            "PYTHONWARNINGS=ignore bin/test -C --verbose sympy/x.py",
            "sympy",
            {"PYTHONWARNINGS": "ignore", "SYMPY_USE_CACHE": "no"},
        ),
        ("cd x && python3 -m unittest -v tests.test_a", "unittest", {}),
        (
            ".venv/bin/python -W ignore r2e_tests/tornado_unittest_runner.py",
            "unittest",
            {"PYTHONWARNINGS": "ignore"},
        ),
    ],
)
def test_a_test_command_names_its_program(command: str, program: str, env: dict[str, str]) -> None:
    found = parse_command(command)
    assert (found.runner, found.env, found.arguments) == (program, env, ())


def test_the_agent_is_told_how_the_tests_run() -> None:
    for tests, repo, said in (
        (["A test."], "django/django", "tests/runtests.py --settings=test_sqlite"),
        (["test_a"], "sympy/sympy", "bin/test -C"),
        (["test_a (t.T)"], "a/b", "-m unittest"),
    ):
        item = Item.model_validate(row(*tests, repo=repo))
        assert said in ENV.task(item)
        assert Item.model_validate(item.model_dump(mode="json")) == item


def test_cheats_are_of_the_rows_program() -> None:
    cases = {
        repo: tamper.cases(Item.model_validate(row(test, repo=repo))).keys()
        for repo, test in (("django/django", "test_a (t.T)"), ("sympy/sympy", "test_a"))
    }
    assert "django_runner_replaced" in cases["django/django"] - cases["sympy/sympy"]
    assert "sympy_raises_anything" in cases["sympy/sympy"] - cases["django/django"]
    assert all("package_patches_runtest" not in names for names in cases.values())


# --- ids ----------------------------------------------------------------------------------------

TESTS = b'''
class Base:
    def test_shared(self):
        """Shared words."""

class T(Base):
    class Inner:
        def test_deep(self): pass
    def test_a(self):
        """
        What it does,
        in two lines.
        """
    def test_b(self):
        """The same words."""

class U:
    def test_c(self):
        """The same words."""

def test_plain(): pass

@XFAIL
def test_marked(): pass
'''


async def ids(path: Path, given: dict[str, Any], **sources: bytes) -> tuple[str, ...]:
    """The node ids of a row whose tree has these files; `__` in their names is a slash."""
    repository = await Repository.create(path / "r.git")
    await repository.git("hash-object", "-w", "-t", "tree", "/dev/null")
    named = {f"{name.replace('__', '/')}.py": text for name, text in sources.items()}
    tree = await repository.replace(EMPTY_TREE, named)
    facts = cast("ImageFacts", SimpleNamespace(repository=repository))
    for _ in range(2):  # found, and remembered
        item = await with_node_ids(Item.model_validate(given), facts, tree)
    return item.FAIL_TO_PASS


async def test_verbose_names_and_descriptions_become_node_ids(tmp_path: Path) -> None:
    given = row(
        "test_a (app.tests.T)",
        "test_b (app.tests.T.test_b)",
        "test_deep (app.tests.T.Inner)",
        "What it does,",
        "Shared words.",
        "The same words.",
        "Words of another file.",
        repo="django/django",
        test_patch=LABELS.replace("t.py", "tests/app/tests.py").replace("u.py", "tests/app/a.py"),
    )
    found = await ids(tmp_path, given, tests__app__tests=TESTS, tests__app__a=b"class Model: 1\n")
    assert found == (
        "tests/app/tests.py::T::test_a",
        "tests/app/tests.py::T::test_b",
        "tests/app/tests.py::T::Inner::test_deep",
        # Two classes run it, two methods have it, or none: the run says which.
        "tests/app/tests.py::Shared words.",
        "tests/app/tests.py::The same words.",
        "tests/app/tests.py::Words of another file.",
    )


async def test_a_module_is_found_below_the_directory_of_its_tests(tmp_path: Path) -> None:
    given = row("test_a (pkg.test_x.T)", "test_b (test_y.T)", repo="a/b", test_patch="")
    found = await ids(tmp_path, given, lib__pkg__test_x=TESTS, tests__test_y=TESTS)
    assert found == ("lib/pkg/test_x.py::T::test_a", "tests/test_y.py::T::test_b")


async def test_a_bare_name_is_of_every_file_that_has_it_and_runs_it(tmp_path: Path) -> None:
    given = row("test_plain", "test_marked", repo="sympy/sympy")
    plain = TESTS.replace(b"@XFAIL\n", b"")
    found = await ids(tmp_path, given, t=TESTS, u=plain, v=plain)
    assert found == ("t.py::test_plain", "u.py::test_plain", "u.py::test_marked")


@pytest.mark.parametrize("program", ["pytest", "unittest"])
async def test_hidden_tests_of_a_directory_are_named_later(tmp_path: Path, program: str) -> None:
    source = {"type": "image", "reference": "x", "tests": "/r2e_tests", "runner": program}
    given = row("r2e_tests::T::test_a", repo="tornado", source=source)
    assert await ids(tmp_path, given, t=TESTS) == ("r2e_tests::T::test_a",)


async def test_a_name_of_no_test_is_the_rows_fault(tmp_path: Path) -> None:
    given = row("test_missing", repo="sympy/sympy")
    with pytest.raises(EnvBug, match="FAIL_TO_PASS: no file of test_patch has a test"):
        await ids(tmp_path, given, t=TESTS)


# --- runs ---------------------------------------------------------------------------------------

CASES = b'''
import unittest

class T(unittest.TestCase):
    def test_passes(self):
        """Passes well."""
    def test_fails(self):
        self.assertEqual(1 + 1,
                         3)
    def test_raises(self): raise OSError("gone")
    def test_exits(self): raise SystemExit(0)
    def test_skipped(self): self.skipTest("x")
    @unittest.expectedFailure
    def test_expected(self): self.fail()
    @unittest.expectedFailure
    def test_unexpected(self): pass
    def test_parts(self):
        for n in range(3):
            with self.subTest(n=n):
                self.assertNotEqual(n, 1)
    def test_runs_tests(self):
        class Other(unittest.TestCase):
            def test_other(self): self.fail()
        suite = unittest.defaultTestLoader.loadTestsFromTestCase(Other)
        self.assertEqual(len(unittest.TextTestRunner().run(suite).failures), 1)

class Unprepared(unittest.TestCase):
    @classmethod
    def setUpClass(cls): raise ValueError("no class")
    def test_never(self): pass
'''
SYMPY = b"""
class XFail(Exception): pass
class XPass(Exception): pass
class Skipped(Exception): pass
def test_passes(): assert __file__
def test_fails(): assert 1 == 2
def test_expected(): raise XFail("x")
def test_unexpected(): raise XPass("x")
def test_skipped(): raise Skipped("x")
def test_slow(): assert False
test_slow._slow = True
def test_steps():
    yield (lambda n: None), 1
    yield (lambda n: 1 / 0), 1
"""


def run(path: Path, program: str, sources: Mapping[str, bytes], **job: Any) -> list[dict[str, Any]]:
    """What run_tests.py writes about these files."""
    for name, text in sources.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(text)
    given = {"runner": program, "arguments": [], "targets": list(sources), "only": None}
    given |= {"distributions": None, "limit_s": 60.0, "longest_s": 60.0, "most_ids": 1000}
    given |= {"token": "t", **job}
    with as_file(files("envs.swe.grading.slot")) as scripts:
        done = subprocess.run(
            [sys.executable, "-I", str(scripts / "run_tests.py")],
            input=json.dumps(given).encode(),
            stdout=subprocess.PIPE,
            cwd=path,
            check=True,
        )
    return [json.loads(line) for line in done.stdout.splitlines()]


def outcomes(lines: list[dict[str, Any]], file: str) -> dict[str, str]:
    found = {line["id"].partition("::")[2]: line["outcome"] for line in lines[:-1]}
    assert all(line["id"].startswith(file) for line in lines[:-1])
    return found


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """A run of the test cases of unittest."""
    return run(tmp_path_factory.mktemp("run"), "unittest", {"tests/test_t.py": CASES})


def test_each_test_case_is_reported_by_its_outcome(report: list[dict[str, Any]]) -> None:
    assert outcomes(report, "tests/test_t.py") == {
        "T::test_passes": "passed",
        "Passes well.": "passed",
        "T::test_fails": "failed",
        "T::test_raises": "error",
        "T::test_exits": "error",
        "T::test_skipped": "skipped",
        "T::test_expected": "xfailed",
        "T::test_unexpected": "xpassed",
        "T::test_parts": "failed",
        "T::test_runs_tests": "passed",
        "Unprepared::test_never": "error",
    }
    assert (report[-1]["exit_status"], report[-1]["finished"]) == (1, True)


def test_a_message_names_the_line_of_the_test(report: list[dict[str, Any]]) -> None:
    messages = {line["id"].rpartition("::")[2]: line["message"] for line in report[:-1]}
    assert messages["test_fails"].startswith("AssertionError: 2 != 3")
    assert "\ntests/test_t.py:8: in test_fails" in messages["test_fails"]
    assert messages["test_never"].startswith("ValueError: no class")


def test_only_the_named_functions_run(tmp_path: Path) -> None:
    only = ["test_t.py::T::test_fails", "test_t.py::Passes well."]
    lines = run(tmp_path, "unittest", {"test_t.py": CASES}, only=only)
    assert outcomes(lines, "test_t.py").keys() == {
        "T::test_fails",
        "T::test_passes",
        "Passes well.",
    }


def test_a_module_that_cannot_be_imported_hides_no_other(tmp_path: Path) -> None:
    sources = {"test_a.py": b"import nowhere\n", "test_b.py": CASES}
    lines = run(tmp_path, "unittest", sources, only=["test_b.py::T::test_passes"])
    assert [line["outcome"] for line in lines[:-1] if line["id"] == "test_a.py"] == ["error"]
    assert [line["outcome"] for line in lines[:-1] if line["id"].endswith("passes")] == ["passed"]
    assert lines[-1]["exit_status"] == 1


@pytest.mark.parametrize(
    "code",
    [
        b"import os; os._exit(0)\n",
        b"raise SystemExit(0)\n",
        b"import atexit, os\natexit.register(os._exit, 0)\nraise KeyError\n",
    ],
)
def test_a_run_that_a_module_ends_is_not_complete(tmp_path: Path, code: bytes) -> None:
    end = run(tmp_path, "unittest", {"test_a.py": code})[-1]
    assert (end["finished"], end["exit_status"]) != (True, 0)


def test_functions_of_sympy_are_called_without_its_runner(tmp_path: Path) -> None:
    lines = run(tmp_path, "sympy", {"pkg/tests/test_s.py": SYMPY})
    assert outcomes(lines, "pkg/tests/test_s.py") == {
        "test_passes": "passed",
        "test_fails": "failed",
        "test_expected": "xfailed",
        "test_unexpected": "xpassed",
        "test_skipped": "skipped",
        "test_slow": "skipped",
        "test_steps": "error",
    }


RUNTESTS = b"""
import argparse, sys, unittest
parser = argparse.ArgumentParser()
parser.add_argument("--settings"); parser.add_argument("--verbosity")
parser.add_argument('--parallel'); parser.add_argument("labels", nargs="*")
given = parser.parse_args()
assert (given.settings, given.parallel) == ("test_sqlite", "1")
loader = unittest.defaultTestLoader
suite = unittest.TestSuite(loader.loadTestsFromName(label) for label in given.labels)
unittest.TextTestRunner(verbosity=0).run(suite)
sys.exit(0)
"""


def test_the_script_of_django_runs_with_our_results(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/runtests.py").write_bytes(RUNTESTS)
    lines = run(tmp_path, "django", {"tests/app/tests.py": CASES})
    assert outcomes(lines, "tests/app/tests.py")["T::test_runs_tests"] == "passed"
    assert outcomes(lines, "tests/app/tests.py")["T::test_fails"] == "failed"
    assert lines[-1]["exit_status"] == 1  # whatever the script says


@pytest.mark.parametrize("lie", ["reporter_class_replaced", "plants_told_by_their_messages"])
def test_a_lie_finds_the_reporter_behind_the_script_of_django(tmp_path: Path, lie: str) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/runtests.py").write_bytes(RUNTESTS)
    code = package_lies(["tests/app/tests.py::T::test_fails"], "django")[lie].encode()
    test = b"class T(unittest.TestCase):\n    def test_fails(self): self.assertIs(1 == 2, True)\n"
    lines = run(tmp_path, "django", {"tests/app/tests.py": b"import unittest\n" + code + test})
    assert outcomes(lines, "tests/app/tests.py") == {"T::test_fails": "passed"}


def test_a_script_that_runs_nothing_has_given_up(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/runtests.py").write_bytes(b"raise SystemExit(0)\n")
    end = run(tmp_path, "django", {"tests/app/tests.py": CASES})[-1]
    assert (end["exit_status"], end["finished"]) == (4, False)


def test_tests_that_are_added_beside_hidden_ones_are_methods(tmp_path: Path) -> None:
    hidden = "tests/app/tests.py"
    planter = Planter({}, [hidden], [f"{hidden}::T::test_a"], random.Random(1), classes=True)
    [view, *_] = planter.views([], [])
    [(file, text)] = view.files.items()
    lines = run(tmp_path, "unittest", {file: text})
    wanted = dict.fromkeys(view.added, "passed") | dict.fromkeys(view.planted, "failed")
    assert {TestFunction.of(line["id"]): line["outcome"] for line in lines[:-1]} == wanted
