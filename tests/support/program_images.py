"""Images and rows as SWE-bench has them for Django and SymPy, made of their sdists.

    python tests/support/program_images.py BASE.tar OUT      # *.tar and rows.json

The rows' tests are found as SWE-bench finds them: the programs run with and without the fix, and
what they print is read. So the ids are those programs' own. None of the images has pytest.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import swe_images

FIXES = Path(__file__).parent / "fixes"
PYTHON = "/usr/bin/python3"
SYMPY_TESTS = (
    "import sys; from sympy.testing.runtests import test; "
    "test(*sys.argv[1:], verbose=True, colors=False, subprocess=False)"
)
OLD_UNION = "return Or(*[s.contains(other) for s in self.args])"
NEW_UNION = "return And(*[s.contains(other) for s in self.args])"
ORDINALS_TEST = """

def test_union_contains():
    from sympy.sets.sets import FiniteSet, Interval
    assert (Interval(0, 1) + FiniteSet(5, 7)).contains(7) == True
"""
CONTAINS_TEST = """

def test_union_contains():
    found = [n for n in range(9) if n in Interval(2, 3) + FiniteSet(5, 7)]
    assert found == [2, 3, 5, 7]
"""
"""The same name in two files."""


@dataclass(frozen=True)
class Program:
    """A package with tests of its own kind."""

    sdist: str
    requirements: tuple[str, ...]
    command: tuple[str, ...]
    """Runs labels verbosely."""
    image: str


PROGRAMS = {
    "django": Program(
        "Django==4.2.1",
        ("asgiref==3.7.2", "sqlparse==0.4.4"),
        ("tests/runtests.py", "--verbosity=2", "--settings=test_sqlite", "--parallel=1"),
        "swebench/sweb.eval.x86_64.django_1776_django-34568:latest",
    ),
    "sympy": Program(
        "sympy==1.13.0",
        ("mpmath==1.3.0",),
        ("-c", SYMPY_TESTS),
        "swebench/sweb.eval.x86_64.sympy_1776_sympy-26799:latest",
    ),
    "unittest": Program(
        "", (), ("-m", "unittest", "-v"), "swebench/sweb.eval.x86_64.sched_1776_schedule-9:latest"
    ),
}
STATEMENTS = {
    "django-34568": "makemigrations --update should respect the --name option.",
    "django-34539": "get_prep_value is no longer called for a subclass of JSONField.",
    "sympy-26799": "Pretty printing of a zero vector fails with a TypeError.",
    "sympy-union": "A union of sets contains only what is in all of them.",
}


def fetch(sdist: str, place: Path) -> Path:
    """The sdist's files, below `place`."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=:all:"]
    command += ["--no-build-isolation", "--dest", str(place), sdist]
    subprocess.run(command, check=True)
    [archive] = place.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(place, filter="data")
    [root] = [path for path in place.iterdir() if path.is_dir()]
    return root


def put_sympy_bug(tree: Path) -> None:
    """The bug of the row that is not a historical one."""
    source = tree / "sympy/sets/sets.py"
    text = source.read_text()
    assert text.count(OLD_UNION) == 1
    source.write_text(text.replace(OLD_UNION, NEW_UNION))


def patches(case: str, tree: Path) -> tuple[str, str]:
    """The fix and the test patch of a case; `tree` is a git repository at the row's commit."""
    if case != "sympy-union":
        return tuple((FIXES / f"{case}{kind}.diff").read_text() for kind in ("", "-tests"))
    source = tree / "sympy/sets/sets.py"
    source.write_text(source.read_text().replace(NEW_UNION, OLD_UNION))
    fix = swe_images.git("diff", cwd=tree)
    swe_images.git("checkout", "-q", ".", cwd=tree)
    for name, text in (("test_ordinals.py", ORDINALS_TEST), ("test_contains.py", CONTAINS_TEST)):
        with (tree / "sympy/sets/tests" / name).open("a") as stream:
            stream.write(text)
    tests = swe_images.git("diff", cwd=tree)
    swe_images.git("checkout", "-q", ".", cwd=tree)
    return fix, tests


def read_unittest(log: str) -> dict[str, str]:
    """Outcomes as SWE-bench reads them from a log of Django's."""
    found = {}
    for line in map(str.strip, log.splitlines()):
        if " ... " in line:
            name, _, how = line.rpartition(" ... ")
            found[name] = how.split(" ")[0]
    return found


def read_sympy(log: str) -> dict[str, str]:
    """Outcomes as SWE-bench reads them from a log of SymPy's."""
    lines = [line.split() for line in log.splitlines() if line.startswith("test_")]
    return {words[0]: words[1] for words in lines if len(words) > 1}


def run(program: Program, tree: Path, labels: Sequence[str], site: Path) -> dict[str, str]:
    """Outcome by the program's own name of a test."""
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{tree}:{site}",
        "SYMPY_USE_CACHE": "no",
        "PYTHONDONTWRITEBYTECODE": "1",
        "LANG": "C.UTF-8",
    }
    done = subprocess.run(
        [PYTHON, *program.command, *labels],
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    found = (read_sympy if "sympy" in program.sdist else read_unittest)(done.stdout)
    if not found:
        raise RuntimeError(done.stdout[-2000:])
    return found


def columns(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    """FAIL_TO_PASS and PASS_TO_PASS of the outcomes without and with the fix."""
    passing = [test for test, how in after.items() if how == "ok"]
    return {
        "FAIL_TO_PASS": json.dumps([test for test in passing if before.get(test) != "ok"]),
        "PASS_TO_PASS": json.dumps([test for test in passing if before.get(test) == "ok"]),
    }


def labels_of(name: str, test_patch: str) -> list[str]:
    """The test files of a patch as arguments of the program."""
    files = re.findall(r"^\+\+\+ b/(\S+)$", test_patch, re.MULTILINE)
    if name == "sympy":
        return files
    return [file.removeprefix("tests/").removesuffix(".py").replace("/", ".") for file in files]


def make_row(name: str, case: str, tree: Path, site: Path) -> dict[str, Any]:
    """The row of a case; `tree` is left as it was."""
    fix, tests = patches(case, tree)
    outcomes = []
    for applied in ([tests], [tests, fix]):
        for patch in applied:
            subprocess.run(["git", "apply", "-"], cwd=tree, input=patch.encode(), check=True)
        outcomes.append(run(PROGRAMS[name], tree, labels_of(name, tests), site))
        swe_images.git("checkout", "-q", ".", cwd=tree)
    before, after = outcomes
    return {
        "repo": f"{name}/{name}",
        "instance_id": f"{name}__{case}",
        "base_commit": "0" * 40,
        "problem_statement": STATEMENTS[case],
        "patch": fix,
        "test_patch": tests,
        **columns(before, after),
        "version": "1.0",
        "image": PROGRAMS[name].image,
    }


def prepare(name: str, root: Path, place: Path) -> None:
    """Write an image's /testbed with one commit, and its environment."""
    program, testbed = PROGRAMS[name], root / "testbed"
    place.mkdir()
    shutil.copytree(fetch(program.sdist, place), testbed)
    if name == "sympy":
        put_sympy_bug(testbed)
    swe_images.git("init", "-q", "-b", "main", cwd=testbed)
    swe_images.git("config", "gc.auto", "0", cwd=testbed)  # which would go on in the background
    swe_images.git("add", "-A", "-f", cwd=testbed)
    swe_images.git("commit", "-q", "-m", "x", cwd=testbed)
    swe_images.write_environment(root / swe_images.CONDA, program.requirements)


CASES: Mapping[str, tuple[str, ...]] = {
    "django": ("django-34568", "django-34539"),
    "sympy": ("sympy-26799", "sympy-union"),
}


def unittest_row(sources: swe_images.Sources, tree: Path) -> dict[str, Any]:
    """A row of another package whose tests are unittest's."""
    row = swe_images.rows(sources)["swe-bench"]
    program = PROGRAMS["unittest"]
    hidden = [path.removesuffix(".py").replace("/", ".") for path in sources.item.hidden_files]
    before = run(program, sources.graded, hidden, tree)
    after = run(program, sources.fixed, hidden, tree)
    named = {"instance_id": "sched__schedule-9", "image": program.image}
    return {**row, **named, **columns(before, after)}


def make(base: Path, out: Path) -> dict[str, dict[str, Any]]:
    """Write all images as tars into `out`; returns the rows by case."""
    rows = {}
    for name, cases in CASES.items():
        root = out / f"{name}.root"
        prepare(name, root, out / f"{name}.sdist")
        [site] = (root / swe_images.CONDA).glob("lib/*/site-packages")
        for case in cases:
            rows[case] = make_row(name, case, root / "testbed", site)
        swe_images.write_tar(base, root, out / f"{name}.tar")
    sources = asyncio.run(swe_images.read_sources(out / "sources"))
    root = out / "unittest.root"
    swe_images.write_root("bench", sources, root)
    [site] = (root / swe_images.CONDA).glob("lib/*/site-packages")
    rows["unittest"] = unittest_row(sources, site)
    for name in ("pytest", "_pytest"):
        shutil.rmtree(site / name)
    swe_images.write_tar(base, root, out / "unittest.tar")
    return rows


def main() -> None:
    base, out = Path(sys.argv[1]), Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    (out / "rows.json").write_text(json.dumps(make(base, out)))


if __name__ == "__main__":
    main()
