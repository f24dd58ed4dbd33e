"""The verifier kit: uv and Python packages for tests that fetch them where there is no network.

The packages that a task's scripts name are downloaded once per set and interpreter, as wheels, in
the sandbox that builds assets. They are put into the box after the agent's files, with uv and with
programs in front of PATH that answer for uv's installer alone.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import re
import shlex
import tarfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from envs.harbor_task.grading.needs import Needs
from envs.harbor_task.grading.places import STANDARD_PATH
from hermes_queue.errors import EnvBug, EnvInfraError
from hermes_queue.sandbox.archives import ROOT, FilesRefused, write_archive
from hermes_queue.sandbox.base import AssetSpec
from hermes_queue.sandbox.context import SlotContext

PLACE = "/opt/verifier-kit"
_RECIPE = "1"
_MAX_BYTES = 512 << 20
_UV = "uv>=0.5,<1"

_LOOK = """\
for name in python3 python; do
  command -v $name >/dev/null 2>&1 || continue
  $name -I -c 'import sys; print("python %d.%d" % sys.version_info[:2])' 2>/dev/null && break
done
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

    @property
    def platforms(self) -> tuple[str, ...]:
        """Tags of wheels, newest first."""
        if not self.libc.startswith("glibc"):
            return tuple(f"musllinux_1_{minor}_{self.machine}" for minor in (2, 1))
        minor = int(self.libc.rpartition(".")[2])
        tags = [f"manylinux_2_{each}_{self.machine}" for each in _GLIBC_TAGS if each <= minor]
        return (*reversed(tags), f"manylinux2014_{self.machine}", f"linux_{self.machine}")


async def install(context: SlotContext, needs: Needs) -> dict[str, str]:
    """Put the kit into a box; returns the variables with which tests find it.

    Raises:
        EnvBug: the image has no Python for it, or a package is not to be had as a wheel.
        EnvInfraError: it cannot be downloaded.
        FilesRefused: the packages cannot be installed in the box.
        SandboxError: the sandbox failed.
    """
    found = await _look(context)
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
    await write_archive(context, PLACE, await asyncio.to_thread(_shims))
    await _check(context, needs)
    return variables(context)


def variables(context: SlotContext) -> dict[str, str]:
    """Variables of the tests with the kit."""
    config = context.slot.image_config
    path = config.env.get("PATH", STANDARD_PATH) if config else STANDARD_PATH
    return {
        "PATH": f"{PLACE}/shims:{path}",
        "UV_CONFIG_FILE": f"{PLACE}/uv.toml",
        "UV_CACHE_DIR": f"{PLACE}/cache",
        "UV_PYTHON_DOWNLOADS": "never",
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
    packages = shlex.join([*quiet, *fit, "-d", "wheels", *needs.packages])
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


async def _look(context: SlotContext) -> BoxPython:
    result = await context.run(_LOOK, cwd="/", user=ROOT, timeout_s=60.0)
    text = result.stdout.decode(errors="replace")
    version = re.search(r"^python (3\.\d+)$", text, re.MULTILINE)
    machine = re.search(r"^machine (x86_64|aarch64)$", text, re.MULTILINE)
    libc = re.search(r"^glibc \d+\.\d+", text, re.MULTILINE)
    if version is None or machine is None:
        raise EnvBug(
            "the verifier fetches Python packages, there is no network for it, and the image has "
            "no python3 that could run them: set HERMES_QUEUE_IMAGES_NETWORK=open, or put "
            "python3 into the image"
        )
    return BoxPython(version[1], machine[1], libc[0] if libc else "musl")


async def _check(context: SlotContext, needs: Needs) -> None:
    """Install the packages once: what is missing must not look like tests that fail."""
    if not needs.packages:
        return
    venv = f"{PLACE}/check"
    words = shlex.join(["--python", f"{venv}/bin/python", *needs.packages])
    command = (
        f"{PLACE}/shims/uv venv -q {venv} && {PLACE}/shims/uv pip install -q {words} && "
        f"rm -rf {venv} && chmod -R a+rwX {PLACE}/cache && "
        f": >{PLACE}/served && chmod a+rw {PLACE}/served"
    )
    result = await context.run(command, cwd="/", user=ROOT, timeout_s=300.0, env=variables(context))
    if not result.ok:
        failure = EnvInfraError if result.timed_out else FilesRefused
        raise failure(f"the verifier kit does not work in this image: {result.output[-1000:]}")


@cache
def _shims() -> bytes:
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
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.mode = 0o644 if name == "uv.toml" else 0o755
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()
