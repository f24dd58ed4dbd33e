"""How sdists are fetched, as far as that needs no network and no sandbox."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from hashlib import sha256
from pathlib import Path

import pytest

from envs.swe.item import SdistSource
from envs.swe.sources import sdist_asset

PROJECT = """
[build-system]
requires = ["a-build-backend-that-does-not-exist"]
build-backend = "nothing"
"""


@pytest.fixture
def index(tmp_path: Path) -> tuple[Path, SdistSource]:
    """A directory with one sdist, which nobody could build."""
    place = tmp_path / "index"
    place.mkdir()
    path = place / "kept-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, text in {
            "PKG-INFO": "Metadata-Version: 2.1\nName: kept\nVersion: 1.0\n",
            "pyproject.toml": PROJECT,
        }.items():
            member = tarfile.TarInfo(f"kept-1.0/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    digest = sha256(path.read_bytes()).hexdigest()
    source = SdistSource(
        type="sdist", name="kept", version="1.0", filename=path.name, sha256=digest
    )
    return place, source


def run(script: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/bash", "-eu", "-c", script],
        cwd=cwd,
        env={"PATH": os.environ["PATH"], "PIP_DISABLE_PIP_VERSION_CHECK": "1", **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_an_sdist_is_fetched_without_its_build_backend(
    index: tuple[Path, SdistSource], tmp_path: Path
) -> None:
    place, source = index
    target = tmp_path / "asset"
    target.mkdir()
    done = run(
        sdist_asset(source, None).script,
        target,
        HQ_PIP=f"{sys.executable} -m pip",
        PIP_NO_INDEX="1",
        PIP_FIND_LINKS=str(place),
    )
    assert done.returncode == 0, done.stderr
    assert (target / source.filename).read_bytes() == (place / source.filename).read_bytes()


def test_where_pip_has_changed_it_fetches_sdists_in_its_own_way(
    index: tuple[Path, SdistSource], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    pip = tmp_path / "pip"
    pip.write_text(f'#!/bin/bash\necho "$1" >>{log}\n[ "$1" != -c ]\n')
    pip.chmod(0o755)
    done = run(sdist_asset(index[1], None).script, tmp_path, HQ_PIP=f"{pip} -m pip")
    assert done.returncode == 0
    assert log.read_text().split() == ["-c", "-m"]
