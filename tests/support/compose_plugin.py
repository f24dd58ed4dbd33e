"""Docker Compose 2, which Debian has since trixie: that of this machine, or trixie's package."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PLUGIN = "usr/libexec/docker/cli-plugins/docker-compose"
SOURCE = (
    "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] "
    "http://deb.debian.org/debian trixie main\n"
)


def compose_command(directory: Path) -> list[str]:
    """The beginning of its command line; a package is fetched to `directory`, not installed."""
    installed = ["docker", "compose"]
    if shutil.which("docker") and not _run([*installed, "version"]).returncode:
        return installed
    plugin = directory / "unpacked" / PLUGIN
    if not plugin.exists():
        with _apt_of_trixie(directory) as apt:
            _checked([*apt, "update"], directory)
            _checked([*apt, "download", "docker-compose"], directory)
        [package] = directory.glob("docker-compose_*.deb")
        _checked(["dpkg", "-x", str(package), str(directory / "unpacked")], directory)
    return [str(plugin)]


@contextmanager
def _apt_of_trixie(directory: Path) -> Iterator[list[str]]:
    """apt-get with lists of its own, which verifies trixie's signature like any other."""
    for name in ("lists/partial", "cache/archives/partial"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    sources = directory / "sources.list"
    sources.write_text(SOURCE)
    places = {
        "Dir::Etc::SourceList": sources,
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": directory / "lists",
        "Dir::Cache": directory / "cache",
    }
    options = [word for name, path in places.items() for word in ("-o", f"{name}={path}")]
    yield ["apt-get", "--quiet", "-o", "APT::Sandbox::User=root", *options]
    shutil.rmtree(directory / "lists")
    shutil.rmtree(directory / "cache")


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _checked(command: list[str], directory: Path) -> None:
    done = subprocess.run(
        command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout[-2000:]}"
