"""pip for asset builds: a copy that slots can reach, and the worker's index settings."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from hermes_queue.errors import EnvInfraError
from hermes_queue.sandbox.host.paths import locked, open_tree, remove_tree, shared_directory
from hermes_queue.syntax import literal

MOUNT = "/opt/pip"
COMMAND = f"env PYTHONPATH={MOUNT} python3 -m pip"
SETTINGS = frozenset(
    "cert extra-index-url find-links index-url no-index proxy retries timeout trusted-host".split()
)
PASSED_ON = (
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "GIT_SSL_CAINFO"),
    *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
)


@dataclass(frozen=True, slots=True)
class PipSettings:
    """Everything a build needs so that pip works in it as for the worker."""

    package: Path
    """Host directory to mount at /opt/pip."""
    environment: tuple[tuple[str, str], ...]
    readable: tuple[Path, ...]
    """Host files and directories in the settings."""

    def mount_arguments(self) -> list[str]:
        """Bubblewrap's arguments for these mounts."""
        arguments = ["--ro-bind", str(self.package), MOUNT]
        for path in self.readable:
            arguments += ["--ro-bind-try", str(path), str(path)]
        return arguments


@functools.cache
def prepare(cache: Path) -> PipSettings:
    """Copy pip for slots, read the worker's settings. Blocking. Raises EnvInfraError: no pip."""
    environment = {name: os.environ[name] for name in PASSED_ON if os.environ.get(name)}
    environment |= _index_settings()
    environment["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    environment["PIP_NO_INPUT"] = "1"
    readable = sorted({path for value in environment.values() for path in _host_paths(value)})
    return PipSettings(_copy_pip(cache), tuple(environment.items()), tuple(readable))


def _index_settings() -> dict[str, str]:
    """The worker's `pip config`, as environment variables; the environment itself wins."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    found: dict[str, str] = {}
    for line in done.stdout.splitlines():
        key, _, value = line.partition("=")
        section, _, name = key.strip().rpartition(".")
        if section in {"global", "install", "download"} and name in SETTINGS:
            found[_variable(name)] = " ".join(str(literal(value)).split())
    for name in sorted(SETTINGS | {"default-timeout"}):
        if own := os.environ.get(_variable(name)):
            found[_variable(name)] = own
    return found


def _variable(name: str) -> str:
    return "PIP_" + name.upper().replace("-", "_")


def _host_paths(value: str) -> Iterator[Path]:
    """Absolute paths and file:// URLs in a setting that exist on this host."""
    for word in value.split():
        is_url = word.startswith("file://")
        path = Path(unquote(urlsplit(word).path)) if is_url else Path(word)
        if not path.is_absolute() or not path.exists():
            continue
        # The pages of a "simple" index commonly link to files beside it.
        path = path.parent if is_url and path.name == "simple" else path
        if len(path.parts) > 1 and not path.is_relative_to("/usr"):
            yield path


def _copy_pip(cache: Path) -> Path:
    source = _find_pip()
    place = shared_directory(cache / "pip") / f"{source.stem}-{source.stat().st_mtime_ns}"
    with locked(place.with_suffix(".lock")):
        if not place.is_dir():
            unfinished = place.with_suffix(".unfinished")
            remove_tree(unfinished)
            unfinished.mkdir()
            if source.suffix == ".whl":
                with zipfile.ZipFile(source) as wheel:
                    wheel.extractall(unfinished)
            else:
                # With its compiled files: slots cannot store any, and start slowly without.
                shutil.copytree(source, unfinished / "pip")
            open_tree(unfinished, most=0o755)
            unfinished.rename(place)
    return place


def _find_pip() -> Path:
    spec = importlib.util.find_spec("pip")
    if spec is not None and spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    ensurepip = importlib.util.find_spec("ensurepip")
    if ensurepip is not None and ensurepip.origin:
        bundled = Path(ensurepip.origin).parent / "_bundled"
        for wheel in (*bundled.glob("pip-*.whl"), *Path("/usr/share/python-wheels").glob("pip-*")):
            return wheel
    raise EnvInfraError(
        f"{sys.executable} has no pip, which builds of environments need: "
        "`python -m ensurepip`, or `uv pip install pip`"
    )
