"""Compose, promtool and kubectl out of Debian's packages, unpacked and not installed.

    python tests/support/debian_tools.py promtool check rules FILE    runs one of them

A program of this machine is taken instead if there is one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class DebianTool:
    """A program of a package.

    Args:
        installed: the command of this machine that is as good, if it answers to `version`.
        package: name and version, as apt-get takes them.
        path: of the program in the package.
    """

    installed: tuple[str, ...]
    version: str
    release: str
    package: str
    path: str


COMPOSE = DebianTool(
    ("docker", "compose"),
    "version",
    "trixie",
    "docker-compose=2.26.*",
    "usr/libexec/docker/cli-plugins/docker-compose",
)
PROMTOOL = DebianTool(
    ("promtool",), "--version", "bookworm", "prometheus=2.42.*", "usr/bin/promtool"
)

KUBECTL = DebianTool(
    ("kubectl",), "version --client", "trixie", "kubernetes-client=1.*", "usr/bin/kubectl"
)
TOOLS = {"compose": COMPOSE, "promtool": PROMTOOL, "kubectl": KUBECTL}


def command_of(tool: DebianTool) -> list[str]:
    """The beginning of its command line. Raises CalledProcessError: it cannot be had here."""
    program = shutil.which(tool.installed[0])
    command = [program or "", *tool.installed[1:]]
    if program and not _run([*command, *tool.version.split()]).returncode:
        return command
    place = _tools() / tool.package.replace("*", "x")
    if not (place / tool.path).exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as scratch:
            _unpack(tool, Path(scratch))
            with suppress(OSError):  # another process was faster
                (Path(scratch) / "unpacked").rename(place)
    return [str(place / tool.path)]


def _tools() -> Path:
    cache = os.environ.get("HERMES_QUEUE_PATHS_CACHE") or Path.home() / ".cache/hermes-queue"
    return Path(cache) / "test-tools"


def _unpack(tool: DebianTool, scratch: Path) -> None:
    """Fetch the package with lists of its own, of which apt verifies the signature."""
    for name in ("lists/partial", "cache/archives/partial", "unpacked"):
        (scratch / name).mkdir(parents=True)
    keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
    (scratch / "sources.list").write_text(
        f"deb [signed-by={keyring}] http://deb.debian.org/debian {tool.release} main\n"
    )
    places = {
        "Dir::Etc::SourceList": scratch / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": scratch / "lists",
        "Dir::Cache": scratch / "cache",
        "Acquire::Languages": "none",
        "APT::Sandbox::User": "root",
    }
    apt = ["apt-get", "--quiet"]
    apt += [word for name, value in places.items() for word in ("-o", f"{name}={value}")]
    for command in ([*apt, "update"], [*apt, "download", tool.package]):
        _run(command, scratch).check_returncode()
    [package] = scratch.glob("*.deb")
    _run(["dpkg", "-x", str(package), str(scratch / "unpacked")]).check_returncode()


def _run(command: list[str], directory: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)


def main() -> None:
    """Run a tool with the arguments of the command line, if any; its exit code is ours."""
    name, *arguments = sys.argv[1:]
    try:
        command = command_of(TOOLS[name])
    except (OSError, subprocess.CalledProcessError) as error:
        output = getattr(error, "stderr", "") or str(error)
        sys.exit(f"{TOOLS[name].package}, a package of Debian, is not to be had: {output[-500:]}")
    if arguments:
        sys.exit(subprocess.run([*command, *arguments], check=False).returncode)


if __name__ == "__main__":
    main()
