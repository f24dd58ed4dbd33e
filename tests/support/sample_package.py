"""A small package with a bug to repair, as sdist, as git mirror, and as dataset rows.

Its build backend lies in the sdist itself, so that pip needs nothing else to read it.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envs.swe.item import DEFAULT_REQUIREMENTS
from envs.swe.recipe import Edit, pin

Files = Mapping[str, str]
"""Path and text."""
NAME, VERSION = "hermes-queue-sample", "1.0"
TOP = "hermes_queue_sample-1.0"
FILENAME = f"{TOP}.tar.gz"

GOOD = "    return min(max(value, lowest_allowed_value), highest_allowed_value)\n"
BAD = "    return min(max(value, lowest_allowed_value), lowest_allowed_value)\n"

CORE = f'''"""Clamp numbers."""


def clamp(value, lowest_allowed_value, highest_allowed_value):
    """Keep `value` between the bounds."""
{GOOD}

def label(value):
    """A name for `value`."""
    return f"<{{value}}>"
'''
TEST_CLAMP = """import pytest

from sample.core import clamp


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        pytest.param(5, 5, id="in the 'middle'"),
        pytest.param(99, 9, id='too $HIGH "<&;'),
    ],
)
def test_clamp(value, wanted):
    assert clamp(value, 1, 9) == wanted


def test_clamp_raises_low_values():
    assert clamp(-4, 1, 9) == 1
"""
TEST_LABEL = """from sample.core import label


def test_label():
    assert label(1) == "<1>"
"""
BACKEND = f"""import os


def prepare_metadata_for_build_wheel(directory, config_settings=None):
    name = "hermes_queue_sample-1.0.dist-info"
    os.mkdir(os.path.join(directory, name))
    with open(os.path.join(directory, name, "METADATA"), "w") as stream:
        stream.write("Metadata-Version: 2.1\\nName: {NAME}\\nVersion: {VERSION}\\n")
    return name


def build_wheel(directory, config_settings=None, metadata_directory=None):
    raise NotImplementedError
"""
FILES = {
    "PKG-INFO": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {VERSION}\n",
    "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\n'
    'backend-path = ["."]\n',
    "backend.py": BACKEND,
    "sample/__init__.py": "",
    "sample/core.py": CORE,
    "sample/extra.py": "UNUSED = True\n",
    "tests/test_clamp.py": TEST_CLAMP,
    "tests/test_label.py": TEST_LABEL,
}
FAIL_TO_PASS = (
    "tests/test_clamp.py::test_clamp[in the 'middle']",
    'tests/test_clamp.py::test_clamp[too $HIGH "<&;]',
)
PASS_TO_PASS = (
    "tests/test_clamp.py::test_clamp_raises_low_values",
    "tests/test_label.py::test_label",
)


def bug_patch() -> str:
    """The bug as a patch; its reverse is the fix."""
    return (
        "diff --git a/sample/core.py b/sample/core.py\n--- a/sample/core.py\n"
        "+++ b/sample/core.py\n@@ -5,4 +5,4 @@\n"
        '     """Keep `value` between the bounds."""\n'
        f"-{GOOD}+{BAD} \n \n"
    )


def fix_patch() -> str:
    """The fix as a patch, the way SWE-bench has it."""
    return bug_patch().replace("-    ", "!").replace("+    ", "-    ").replace("!", "+    ")


def mutation() -> dict[str, Any]:
    """The bug as byte edits."""
    before = CORE.encode()
    start = before.index(GOOD.encode()) + GOOD.rindex("highest")
    edit = Edit(start=start, end=start + len("highest"), text="lowest", kind="argument_swap")
    return {"files": [pin("sample/core.py", before, (edit,)).model_dump(mode="json")]}


def make_sdist(directory: Path) -> str:
    """Write the sdist; its sha256. The same bytes every time."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name, text in FILES.items():
            info = tarfile.TarInfo(f"{TOP}/{name}")
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    packed = gzip.compress(data.getvalue(), mtime=0)
    (directory / FILENAME).write_bytes(packed)
    return hashlib.sha256(packed).hexdigest()


def make_row(**changes: Any) -> dict[str, Any]:
    """A row without source; `changes` win, a value of None leaves the key out."""
    row = {
        "instance_id": "sample__1",
        "repo": "someone/sample",
        "problem_statement": "`clamp(99, 1, 9)` gives 1; I expect 9.",
        "FAIL_TO_PASS": list(FAIL_TO_PASS),
        "PASS_TO_PASS": list(PASS_TO_PASS),
        "environment": {
            "requirements": list(DEFAULT_REQUIREMENTS),
            "pythonpath": ["."],
            "pytest_args": ["-o", "addopts="],
            "tests": ["tests"],
            "env": {},
        },
        "test_secs": 0.1,
        **changes,
    }
    return {key: value for key, value in row.items() if value is not None}


def sdist_row(sha256: str, **changes: Any) -> dict[str, Any]:
    """A row on the sdist, with the bug as mutation."""
    source = {
        "type": "sdist",
        "name": NAME,
        "version": VERSION,
        "filename": FILENAME,
        "sha256": sha256,
    }
    return make_row(**{"source": source, "mutation": mutation(), **changes})


def make_mirror(base: Path, branch: str) -> str:
    """`<base>/someone/sample.git` laid out as SWE-smith's mirrors; the id of the bug's commit.

    Branch `branch`: the package, the bug, and at its tip the bug without the failing tests.
    """
    buggy = {"sample/core.py": CORE.replace(GOOD, BAD)}
    return mirror(base, "someone/sample", branch, (FILES, buggy), "tests/test_clamp.py")


def mirror(base: Path, repo: str, branch: str, states: tuple[Files, Files], gone: str) -> str:
    """`<base>/<repo>.git`: the files of both `states`, then without `gone`; the bug's commit."""
    files, buggy = states
    work = base / "work" / repo
    work.mkdir(parents=True)

    def git(*args: str) -> str:
        env = {
            "PATH": os.environ["PATH"],
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_CONFIG_SYSTEM": "/dev/null",
            **{f"GIT_{who}_NAME": "t" for who in ("AUTHOR", "COMMITTER")},
            **{f"GIT_{who}_EMAIL": "t@t.invalid" for who in ("AUTHOR", "COMMITTER")},
        }
        done = subprocess.run(
            ["git", *args], cwd=work, env=env, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    git("init", "-q", "-b", "main")
    for name, text in files.items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(text)
    git("add", "-A")
    git("commit", "-q", "-m", "Initial commit")
    git("checkout", "-q", "-b", branch)
    for name, text in buggy.items():
        (work / name).write_text(text)
    git("commit", "-q", "-a", "-m", "Bug Patch")
    bug = git("rev-parse", "HEAD")
    git("rm", "-q", gone)
    git("commit", "-q", "-m", "Remove F2P Tests")
    (base / repo).parent.mkdir(parents=True, exist_ok=True)
    git("clone", "-q", "--bare", ".", str(base / f"{repo}.git"))
    return bug
