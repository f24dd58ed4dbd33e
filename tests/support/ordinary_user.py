"""Run a part of the suite as a user without rights. Needs root."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from hermes_queue.sandbox.host import interpreter
from hermes_queue.sandbox.host.paths import is_reachable

ROOT = Path(__file__).parents[2]
USER = 54321


def reachable(path: Path, place: Path, binds: list[str]) -> Path:
    """`path`, or where to bind it when it lies behind a closed directory."""
    if is_reachable(path):
        return path
    place.mkdir(exist_ok=True)
    binds.append(f"mount --bind '{path}' '{place}'")
    return place


def pytest_as_user(
    cache: Path, *arguments: str, prepare: Sequence[str] = (), path: str = "/usr/bin"
) -> subprocess.CompletedProcess[str]:
    """Run pytest as `USER`, with the packages of the running interpreter.

    Args:
        cache: a directory that every user can pass through.
        arguments: of pytest.
        prepare: shell lines that root runs before, in a mount namespace of their own.
        path: a directory whose programs are found before others.
    """
    python = interpreter.prepare(None, cache)
    home = cache / "home"
    home.mkdir(exist_ok=True)
    shutil.chown(home, USER, USER)
    spec = importlib.util.find_spec("pytest")
    assert spec is not None
    assert spec.origin is not None
    lines = [*prepare]
    packages = reachable(Path(spec.origin).parents[1], cache / "packages", lines)
    root = reachable(ROOT, cache / "root", lines)
    drop = f"setpriv --reuid={USER} --regid={USER} --clear-groups"
    command = f"'{python.executable}' -m pytest -q -x -p no:cacheprovider"
    script = "\n".join(
        [
            "set -e",
            *lines,
            f"cd '{root}'",
            f"exec {drop} {command} --basetemp='{home}/pytest' {' '.join(arguments)}",
        ]
    )
    return subprocess.run(
        [*(["unshare", "--mount"] if lines else []), "sh", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env={
            "PATH": f"{path}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(home),
            "TMPDIR": str(home),
            "PYTHONPATH": str(packages),
            "PYTHONDONTWRITEBYTECODE": "1",
        },
    )
