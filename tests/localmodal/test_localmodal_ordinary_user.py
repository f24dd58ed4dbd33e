"""The server also works when it is not root: with one id inside, or with newuidmap's range."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from ordinary_user import USER, pytest_as_user

SUITES = [
    f"tests/localmodal/test_localmodal_{name}.py" for name in ("users", "files", "commands", "life")
]
OF_RIGHTS = SUITES[:2]
"""Those whose answers depend on whom the server and its sandboxes run as."""
ROOT = os.geteuid() == 0
NEWUIDMAP = shutil.which("newuidmap")
FILES = ("/etc/subuid", "/etc/subgid")
RANGES = [NEWUIDMAP] if ROOT and NEWUIDMAP and all(map(os.path.exists, FILES)) else []
V1_ONLY = ("-k", "'v1 and not memory_limit or beside_other_loops'")
"""The other version differs in the control plane alone; control groups are root's mostly."""


@pytest.fixture
def open_directory() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="hermes-queue-test-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.mark.fleet
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "suites",
    [OF_RIGHTS, pytest.param(SUITES, marks=pytest.mark.exhaustive)] if ROOT else [],
    ids=["rights", "all"] if ROOT else [],
)
def test_the_server_works_with_one_id_inside(open_directory, suites):
    nothing = "mount --bind /dev/null /etc/subuid"
    prepare = [nothing] if Path("/etc/subuid").exists() else []
    done = pytest_as_user(open_directory, *suites, *V1_ONLY, prepare=prepare)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " skipped" in done.stdout, "what needs several users inside cannot have run"


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@pytest.mark.parametrize("tool", RANGES)
def test_the_server_maps_a_range_by_newuidmap(open_directory, tool):
    (open_directory / "subid").write_text(f"{USER}:1000000:65536\n")
    (open_directory / "subid").chmod(0o644)
    known = Path("/etc/passwd").read_text() + f"tester:x:{USER}:{USER}::/nonexistent:/bin/sh\n"
    (open_directory / "passwd").write_text(known)
    (open_directory / "passwd").chmod(0o644)
    prepare = [f"mount --bind '{open_directory}/subid' {name}" for name in FILES]
    prepare.append(f"mount --bind '{open_directory}/passwd' /etc/passwd")
    path = os.path.dirname(tool)
    done = pytest_as_user(open_directory, *SUITES, *V1_ONLY, prepare=prepare, path=path)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " skipped" not in done.stdout, "users inside were not tried"
