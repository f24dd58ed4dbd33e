"""The Python that slots see as `python3`: found on the host, copied to where slots can reach it.

An interpreter below /usr is used as it is. Any other one (pyenv, uv, conda) may be in a closed
home directory, so its needed parts are copied once to `<cache>/python/<key>`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from hermes_queue.errors import EnvInfraError
from hermes_queue.sandbox.host.paths import locked, open_tree, remove_tree, shared_directory

MOUNT = "/opt/python"
OWN_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"

LEFT_OUT = (
    "site-packages dist-packages test tests ensurepip idlelib idle_test tkinter turtledemo "
    "*.a *.opt-[12].pyc"
).split()


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python that slots can run."""

    version: str
    """Major and minor, e.g. "3.11"."""
    home: Path
    """Host directory to mount at /opt/python; its bin holds python, python3 and pythonX.Y."""

    @property
    def executable(self) -> Path:
        """Path on the host."""
        return self.home / "bin" / f"python{self.version}"


@functools.cache
def prepare(version: str | None, cache: Path) -> Interpreter:
    """A slot's Python, copied into the cache if necessary. Raises EnvInfraError: it is not here."""
    version = version or OWN_VERSION
    if not re.fullmatch(r"3\.\d{1,2}", version):
        raise EnvInfraError(f'Python version {version!r} is not of the form "3.11"')
    executable, base_prefix = _find(version)
    stat = executable.stat()
    identity = f"{base_prefix}\0{stat.st_size}\0{stat.st_mtime_ns}".encode()
    home = cache / "python" / f"{version}-{hashlib.sha256(identity).hexdigest()[:16]}"
    if not home.is_dir():
        shared_directory(home.parent)
        with locked(home.with_suffix(".lock")):
            if not home.is_dir():
                _furnish(version, executable, base_prefix, home)
    return Interpreter(version, home)


def _find(version: str) -> tuple[Path, Path]:
    """Executable and base prefix of this Python version."""
    own = Path(sys.base_prefix) / "bin" / f"python{version}"
    if version == OWN_VERSION and own.exists():
        return own, Path(sys.base_prefix).resolve()
    for candidate in _candidates(version):
        if found := _ask(candidate, version):
            return found
    raise EnvInfraError(
        f"Python {version} is required but not on this worker's host; install it "
        f"(`apt install python{version}`, `uv python install {version}` or "
        f"`pyenv install {version}`) or put `python{version}` on the worker's PATH"
    )


def _candidates(version: str) -> list[Path]:
    name = f"python{version}"
    found = []
    if on_path := shutil.which(name):
        found.append(Path(on_path))
    home = Path(os.environ.get("HOME") or "/nonexistent")
    roots = (
        (Path(os.environ.get("PYENV_ROOT") or home / ".pyenv") / "versions", f"{version}.*"),
        (home / ".local/share/uv/python", f"cpython-{version}.*"),
    )
    for root, pattern in roots:
        found += sorted(root.glob(f"{pattern}/bin/{name}"), reverse=True)
    found += [Path("/usr/bin") / name, Path("/usr/local/bin") / name]
    return [path for path in found if path.exists()]


def _ask(candidate: Path, version: str) -> tuple[Path, Path] | None:
    """Executable and base prefix that it reports; a shim on PATH may start another version."""
    script = (
        "import json, sys; print(json.dumps([sys.base_prefix, "
        "getattr(sys, '_base_executable', sys.executable), '%d.%d' % sys.version_info[:2]]))"
    )
    try:
        done = subprocess.run(  # noqa: S603
            [candidate, "-I", "-c", script], capture_output=True, timeout=30, check=True
        )
        base_prefix, executable, actual = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    if actual != version:
        return None
    own = Path(base_prefix) / "bin" / f"python{version}"
    return (own if own.exists() else Path(executable)), Path(base_prefix).resolve()


def _furnish(version: str, executable: Path, base_prefix: Path, home: Path) -> None:
    unfinished = home.with_suffix(".unfinished")
    remove_tree(unfinished)
    binary = unfinished / "bin" / f"python{version}"
    try:
        shared_directory(binary.parent)
        for name in ("python3", "python"):
            binary.with_name(name).symlink_to(binary.name)
        if base_prefix.is_relative_to("/usr"):
            binary.symlink_to(executable)
        else:
            copy_parts(version, executable.resolve(), base_prefix, unfinished)
    except (OSError, shutil.Error, subprocess.SubprocessError) as error:
        raise EnvInfraError(
            f"Python {version} in {base_prefix} cannot be copied to {home}: {error}"
        ) from error
    unfinished.rename(home)


def copy_parts(version: str, executable: Path, base_prefix: Path, target: Path) -> None:
    """Copy the parts needed to run to `target`, whose bin directory exists."""
    binary, libraries = target / "bin" / f"python{version}", target / "lib"
    libraries.mkdir()
    # The run path of a shared build names the original prefix, which slots do not see.
    old = f"{base_prefix}/lib\0".encode()
    new = b"$ORIGIN/../lib\0"
    content = executable.read_bytes()
    if len(old) >= len(new):
        content = content.replace(old, new.ljust(len(old), b"\0"))
    binary.write_bytes(content)
    binary.chmod(0o755)
    for library in (base_prefix / "lib").glob("lib*.so*"):
        shutil.copy2(library, libraries / library.name, follow_symlinks=False)
    stdlib = libraries / f"python{version}"
    shutil.copytree(
        base_prefix / "lib" / stdlib.name,
        stdlib,
        symlinks=True,
        ignore=shutil.ignore_patterns(*LEFT_OUT),
    )
    (stdlib / "site-packages").mkdir()
    open_tree(target, most=0o755)
    subprocess.run(  # noqa: S603
        [binary, "-I", "-c", "import encodings, json, subprocess"],
        capture_output=True,
        timeout=60,
        check=True,
    )


@functools.cache
def host_image(python: str | None) -> str:
    """System, kernel and Python of a slot with `python` (None = the worker's own).

    Slots see the host's /usr, so there is no image with a digest.
    """
    try:
        system = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        system = platform.system()
    own = python in (None, OWN_VERSION)
    version = platform.python_version() if own else python
    return f"{system}, {platform.release()} {platform.machine()}, Python {version}"
