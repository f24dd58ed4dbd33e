"""The conformance suite also passes when the worker is not root."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from hermes_queue.sandbox import interpreter
from hermes_queue.sandbox.host_paths import is_reachable

ROOT = Path(__file__).parents[2]
USER = 54321


def reachable(path: Path, place: Path, binds: list[str]) -> Path:
    """`path`, or where to bind it when it lies behind a closed directory."""
    if is_reachable(path):
        return path
    place.mkdir()
    binds.append(f"mount --bind '{path}' '{place}'")
    return place


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("user", [USER] if os.geteuid() == 0 else [])
def test_conformance_as_an_ordinary_user(cache, user):
    python = interpreter.prepare(None, cache)
    home = cache / "home"
    home.mkdir()
    shutil.chown(home, user, user)
    spec = importlib.util.find_spec("pytest")
    assert spec is not None
    assert spec.origin is not None
    binds: list[str] = []
    packages = reachable(Path(spec.origin).parents[1], cache / "packages", binds)
    root = reachable(ROOT, cache / "root", binds)
    drop = f"setpriv --reuid={user} --regid={user} --clear-groups"
    suite = "tests/sandbox/test_conformance.py"
    script = "\n".join(
        [
            "set -e",
            *binds,
            f"cd '{root}'",
            f"exec {drop} '{python.executable}' -m pytest -q -x -p no:cacheprovider {suite} "
            f"--basetemp='{home}/pytest'",
        ]
    )
    prefix = ["unshare", "--mount"] if binds else []
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(home),
        "TMPDIR": str(home),
        "PYTHONPATH": str(packages),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        [*prefix, "sh", "-c", script], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
