"""The verifier kit: uv and Python packages for tests that fetch them where there is no network.

The packages that a task's scripts name are downloaded once per set and interpreter, as wheels, in
the sandbox that builds assets. They are put into the box after the agent's files, with uv and with
programs in front of PATH that answer for uv's installer alone. All of it, and the interpreters that
it uses, is settled before any of the agent's files can be found by it.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import re
import shlex
import tarfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from hermes_plugins.harbor.grading.imported import Imported, measured
from hermes_plugins.harbor.grading.needs import Needs
from hermes_plugins.harbor.grading.pythons import Python, search_path
from hermes_queue.errors import EnvBug, EnvInfraError
from hermes_queue.sandbox.archives import ROOT, FilesRefused, write_archive
from hermes_queue.sandbox.base import AssetSpec
from hermes_queue.sandbox.context import SlotContext

PLACE = "/opt/verifier-kit"
_RECIPE = "2"
_MAX_BYTES = 512 << 20
_UV = "uv>=0.5,<1"
_OF_OTHER_PLATFORMS = ("colorama",)
"""`uv add` resolves for all platforms at once, and pytest wants this one on Windows."""

_LOOK = f"""\
rm -rf {PLACE} && [ ! -e {PLACE} ] && [ ! -L {PLACE} ] || exit 65
echo "machine $(uname -m)"
getconf GNU_LIBC_VERSION 2>/dev/null || echo musl
"""
_CONFIG = f"""\
offline = true
no-index = true
find-links = ["{PLACE}/wheels"]
python-downloads = "never"
link-mode = "copy"
"""
_GLIBC_TAGS = (5, 12, 17, 24, 26, 27, 28, 31, 34, 35, 36, 38, 39, 40, 41)


@dataclass(frozen=True, slots=True)
class BoxPython:
    """What wheels must fit."""

    version: str
    """Such as "3.11"."""
    machine: str
    libc: str
    """Such as "glibc 2.36", or "musl"."""
    pythons: tuple[Python, ...] = ()
    """All interpreters of the image, the one with this version first."""

    @property
    def platforms(self) -> tuple[str, ...]:
        """Tags of wheels, newest first."""
        if not self.libc.startswith("glibc"):
            return tuple(f"musllinux_1_{minor}_{self.machine}" for minor in (2, 1))
        minor = int(self.libc.rpartition(".")[2])
        tags = [f"manylinux_2_{each}_{self.machine}" for each in _GLIBC_TAGS if each <= minor]
        return (*reversed(tags), f"manylinux2014_{self.machine}", f"linux_{self.machine}")


@dataclass(frozen=True, slots=True)
class Kit:
    """A kit in its box."""

    variables: dict[str, str] = field(default_factory=dict)
    """With which tests find it."""
    imported: Imported = field(default_factory=Imported)
    """What Python imports with its packages."""
    packages: tuple[str, ...] = ()
    """Names of what tests install from it among the packages of the box."""


async def install(
    context: SlotContext,
    needs: Needs,
    pythons: Sequence[Python],
    *,
    user: str,
    asked: Collection[str],
) -> Kit:
    """Put the kit into a box, in place of anything that is there.

    Args:
        context: the box.
        needs: what the tests fetch.
        pythons: interpreters of the image, which the kit uses and no other.
        user: who runs the tests.
        asked: modules that the tests import.

    Raises:
        EnvBug: the image has no Python for it, or a package is not to be had as a wheel.
        EnvInfraError: it cannot be downloaded.
        FilesRefused: the box keeps what is at the kit's place, or packages cannot be installed.
        SandboxError: the sandbox failed.
    """
    found = await _look(context, pythons)
    asset = kit_asset(needs, found)
    try:
        await context.prepare_asset(asset)
    except EnvInfraError as error:
        text = str(error)
        if "No matching distribution" in text and "from versions: none" not in text:
            raise EnvBug(f"the verifier's packages are not to be had as wheels: {text}") from error
        raise
    wheels = await context.read_asset(asset, "kit.tar", max_bytes=_MAX_BYTES)
    await write_archive(context, PLACE, wheels)
    await write_archive(context, PLACE, await asyncio.to_thread(_shims, found.pythons))
    imported = await _check(context, needs, user, asked)
    packages = await _packages(context) if needs.installed else ()
    return Kit(variables(context), imported, packages)


def variables(context: SlotContext) -> dict[str, str]:
    """Variables of the tests with the kit."""
    return {
        "PATH": f"{PLACE}/shims:{search_path(context)}",
        "UV_CONFIG_FILE": f"{PLACE}/uv.toml",
        "UV_CACHE_DIR": f"{PLACE}/cache",
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_PYTHON_INSTALL_DIR": f"{PLACE}/pythons.d",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": f"{PLACE}/wheels",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


async def served(context: SlotContext) -> list[str]:
    """What the kit has done beside giving packages, for the report. Raises SandboxError."""
    result = await context.run(
        f"sort -u {PLACE}/served | head -n 20", cwd="/", user=ROOT, max_output_bytes=4096
    )
    return result.stdout.decode(errors="replace").splitlines() if result.ok else []


def kit_asset(needs: Needs, found: BoxPython) -> AssetSpec:
    """The kit for a set of packages and an interpreter, as one tar."""
    platforms = [word for tag in found.platforms for word in ("--platform", tag)]
    major, _, minor = found.version.partition(".")
    fit = ["--python-version", found.version, "--implementation", "cp"]
    fit += ["--abi", f"cp{major}{minor}", "--abi", "abi3", "--abi", "none", *platforms]
    quiet = ["--quiet", "--only-binary=:all:"]
    uv = shlex.join([*quiet, "--no-deps", *fit, "-d", "tool", _UV])
    wanted = [*needs.packages, *(_OF_OTHER_PLATFORMS if needs.added else ())]
    packages = shlex.join([*quiet, *fit, "-d", "wheels", *wanted])
    script = (
        "mkdir wheels tool\n"
        f"$HQ_PIP download {uv}\n"
        + (f"$HQ_PIP download {packages}\n" if needs.packages else "")
        + "python3 -m zipfile -e tool/uv-*.whl tool\n"
        "cp tool/uv-*.data/scripts/uv uv\n"
        "chmod 755 uv\n"
        "tar -cf kit.tar uv wheels\n"
        "rm -rf tool wheels uv\n"
    )
    key = hashlib.sha256(f"{_RECIPE}\0{script}".encode()).hexdigest()
    mount = f"/opt/assets/verifier-kit-{key[:16]}"
    return AssetSpec(kind="verifier-kit", key=key, script=script, mount=mount)


async def _look(context: SlotContext, pythons: Sequence[Python]) -> BoxPython:
    result = await context.run(_LOOK, cwd="/", user=ROOT, timeout_s=120.0)
    if not result.ok:
        raise FilesRefused(f"{PLACE} cannot be removed: {result.output[-500:]}")
    text = result.stdout.decode(errors="replace")
    machine = re.search(r"^machine (x86_64|aarch64)$", text, re.MULTILINE)
    libc = re.search(r"^glibc \d+\.\d+", text, re.MULTILINE)
    if not pythons or machine is None:
        raise EnvBug(
            "the verifier fetches Python packages, there is no network for it, and the image has "
            "no python3 that could run them: set HERMES_QUEUE_IMAGES_NETWORK=open, or put "
            "python3 into the image"
        )
    return BoxPython(pythons[0].version, machine[1], libc[0] if libc else "musl", tuple(pythons))


async def _check(context: SlotContext, needs: Needs, user: str, asked: Collection[str]) -> Imported:
    """Install the packages once: what is missing must not look like tests that fail."""
    if not needs.packages:
        return Imported()
    venv, project = f"{PLACE}/check", f"{PLACE}/check-project"
    uv = f"{PLACE}/shims/uv"
    words = shlex.join(["--python", f"{venv}/bin/python", *needs.packages])
    command = f"{uv} venv -q {venv} && {uv} pip install -q {words}"
    if needs.added:  # for all platforms, and so with more packages than the box installs
        added = shlex.join(needs.added)
        command += (
            f" && mkdir {project} && cd {project} && {uv} init -q --bare && {uv} add -q {added}"
        )
    await _must_work(context, command)
    imported = await measured(context, f"{venv}/bin/python", asked)
    command = f"rm -rf {venv} {project} && : >{PLACE}/served"
    if user not in ("0", "root"):  # a user of the tests; others may be the agent's code
        command += f" && chown -R {shlex.quote(user)} {PLACE}/cache {PLACE}/served"
    await _must_work(context, command)
    return imported


async def _packages(context: SlotContext) -> tuple[str, ...]:
    """Names of the kit's wheels: what was asked for, and what that needs."""
    result = await context.run(f"ls {PLACE}/wheels", cwd="/", user=ROOT)
    return tuple(name.partition("-")[0] for name in result.stdout.decode().split())


async def _must_work(context: SlotContext, command: str) -> None:
    result = await context.run(command, cwd="/", user=ROOT, timeout_s=300.0, env=variables(context))
    if not result.ok:
        failure = EnvInfraError if result.timed_out else FilesRefused
        raise failure(f"the verifier kit does not work in this image: {result.output[-1000:]}")


@cache
def _shims(pythons: tuple[Python, ...]) -> bytes:
    """The kit's programs and settings, as a tar."""
    folder = Path(__file__).parent / "shims"
    names = {"curl": "curl wget", "uv": "uv uvx", "apt-get": "apt-get apt"}
    files = {
        f"shims/{name}": (folder / source).read_bytes()
        for source, several in names.items()
        for name in several.split()
    }
    files["install.sh"] = (folder / "install.sh").read_bytes()
    files["uv.toml"] = _CONFIG.encode()
    files["pythons"] = "".join(f"{each.version} {each.path}\n" for each in pythons).encode()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.mode = 0o755 if name.endswith(".sh") or "/" in name else 0o644
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()
