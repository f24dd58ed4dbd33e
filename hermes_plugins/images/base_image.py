"""Base images made of Debian's packages, where no registry can be reached.

They are stand-ins: `python:3.11-slim` made here has the `python3` of a Debian release, not the one
of the official image. A name of one's own, and `ImageSettings.base_images`, say so in trajectories.
What would be another version or distribution than its name says is not made.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import shlex
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from hermes_plugins.images.dockerfile.evaluation import DEFAULT_PATH
from hermes_plugins.images.permission import full_name
from hermes_queue.disk.turn import build_turn
from hermes_queue.errors import ConfigurationError, InputError, SandboxRejected
from hermes_queue.images.spec import ImageConfig

TIMEOUT_S = 3600.0
TAIL_CHARS = 2000
ALWAYS = ("ca-certificates",)
SUITES = {"bookworm": ("12", "3.11"), "trixie": ("13", "3.13"), "bullseye": ("11", "3.9")}
"""Releases of Debian in names of images, with their numbers and their Python; the first one where a
name has none."""
PYTHON = ("python3", "python3-pip", "python3-venv")
_PYTHON_HOOKS = (
    'ln -sf python3 "$1/usr/bin/python"',
    'rm -f "$1"/usr/lib/python3*/EXTERNALLY-MANAGED',
    'chroot "$1" python3 - <"$HQ_RECORDS"',
)
_RECORDS = Path(__file__).with_name("record_packages.py")
_AUTHORITIES = "usr/local/share/ca-certificates"
_MAX_AUTHORITY_CHARS = 1 << 20
_WORD = re.compile(r"[a-z0-9][a-z0-9.+-]{0,100}")
_MIRROR = re.compile(r"(https?|file|copy)://[!-~]{1,500}")


@dataclass(frozen=True, slots=True)
class BaseImage:
    """What to make."""

    suite: str = "bookworm"
    """A release of Debian, e.g. trixie."""
    packages: tuple[str, ...] = ()
    """Beside the essential ones, apt and certificates."""
    mirror: str | None = None
    """Address of a mirror; None = that of this host's apt."""
    python_link: bool = False
    """Whether it stands for an image of Python: `python` is `python3`, and pip installs for root
    without asking for a virtual environment."""
    authorities: tuple[str, ...] = ()
    """PEM files of certificate authorities that programs in it trust beside Debian's."""

    @classmethod
    def named(
        cls,
        name: str,
        *,
        suite: str | None = None,
        packages: tuple[str, ...] = (),
        mirror: str | None = None,
        authorities: tuple[str, ...] = (),
    ) -> BaseImage:
        """What stands for the image `name`: of Python with pip, of the Debian release in its tag.

        Raises:
            SandboxRejected: it is not the name of an image.
            InputError: an image of this name would hold something else than it says.
        """
        full = full_name(name)
        if "@" in full:
            raise InputError(f"{name[:200]!r} {_HAS_DIGEST}")
        address, _, tag = full.rpartition(":")
        repository = address.removeprefix(_OFFICIAL)
        words = re.split(r"[-.]", tag)
        if repository == "python":
            suite = _suite_of_python(name, tag, suite or _suite_in(words))
            return cls(suite, (*PYTHON, *packages), mirror, True, authorities)
        if address.startswith(_OFFICIAL) and repository != "debian":
            raise InputError(f"{name[:200]!r} {_IS_NOT_DEBIAN}")
        numbered = next((each for each, (number, _) in SUITES.items() if number == words[0]), None)
        if repository == "debian" and words[0].isdigit() and numbered is None:
            raise InputError(f"{name[:200]!r} is not among Debian's releases {_releases(0)}")
        found = suite or numbered or _suite_in(words) or next(iter(SUITES))
        return cls(found, packages, mirror, False, authorities)

    def check(self) -> None:
        """Raises InputError: a field is not what it should be."""
        for word in (self.suite, *self.packages):
            if not _WORD.fullmatch(word):
                raise InputError(
                    f"{word[:100]!r} is not the name of a release or package of Debian"
                )
        if self.mirror is not None and not _MIRROR.fullmatch(self.mirror):
            raise InputError(f"--mirror {self.mirror[:200]!r} is not an http:// or file:// address")
        for path in self.authorities:
            if "-----BEGIN CERTIFICATE-----" not in _read_authority(path):
                raise InputError(f"--authority {path[:200]!r} is not a certificate in PEM format")

    @property
    def config(self) -> ImageConfig:
        """The configuration, as official images have it."""
        return ImageConfig({"PATH": DEFAULT_PATH}, "/", "", (), ("bash",))

    def command(self, archive: Path) -> list[str]:
        """The command that makes the archive: as small as the official slim images."""
        packages = ",".join([*ALWAYS, *self.packages])
        python = [f"--customize-hook={line}" for line in _PYTHON_HOOKS] if self.python_link else []
        return [
            *("mmdebstrap", "--quiet", "--variant=minbase", f"--include={packages}"),
            *("--format=tar", "--dpkgopt=force-unsafe-io"),
            '--aptopt=APT::Install-Recommends "0"',
            # Snapshots, and releases in development that a mirror has kept for long.
            '--aptopt=Acquire::Check-Valid-Until "false"',
            "--dpkgopt=path-exclude=/usr/share/man/*",
            "--dpkgopt=path-exclude=/usr/share/doc/*",
            "--dpkgopt=path-include=/usr/share/doc/*/copyright",
            "--dpkgopt=path-exclude=/usr/share/locale/*",
            *python,
            *_trust_hooks(self.authorities),
            self.suite,
            str(archive),
            *([self.mirror] if self.mirror else []),
        ]


_OFFICIAL = "docker.io/library/"
_OWN_NAME = (
    "make one under a name of your own (`hermes-queue images base debian:bookworm-local`), and put "
    "it in the other's place with HERMES_QUEUE_IMAGES_BASE_IMAGES, which trajectories record"
)
_HAS_DIGEST = f"names content by its digest, which no image made here has: {_OWN_NAME}"
_IS_NOT_DEBIAN = f"is not made of Debian's packages: {_OWN_NAME}"


def can_stand_for(name: str) -> bool:
    """Whether an image made of Debian's packages may have this name."""
    try:
        BaseImage.named(name)
    except (InputError, SandboxRejected):
        return False
    return True


def _suite_in(words: list[str]) -> str | None:
    return next((each for each in (*SUITES, "sid") if each in words), None)


def _suite_of_python(name: str, tag: str, suite: str | None) -> str:
    """The release, with the Python of a tag such as 3.13-slim; `suite` if that is given.

    Raises InputError: that release, or any, has another Python.
    """
    found = re.match(r"\d+(\.\d+)?", tag)
    python = found.group() if found else "3"
    fitting = [
        each for each, (_, own) in SUITES.items() if own == python or own.startswith(f"{python}.")
    ]
    if suite is None and fitting:
        return fitting[0]
    if suite in fitting or (suite == "sid" and python == "3"):
        return suite or ""
    raise InputError(
        f"{name[:200]!r}: {suite or 'Debian'} has no Python {python}; there are "
        f"{_releases(1)}: choose one of these, or {_OWN_NAME}"
    )


def _releases(column: int) -> str:
    return ", ".join(f"{numbers[column]} ({suite})" for suite, numbers in SUITES.items())


def _read_authority(path: str) -> str:
    """The file's text. Raises InputError."""
    try:
        with Path(path).open(encoding="ascii", errors="replace") as file:
            return file.read(_MAX_AUTHORITY_CHARS)
    except OSError as error:
        raise InputError(f"--authority {path[:200]!r} cannot be read: {error.strerror}") from error


def _trust_hooks(authorities: tuple[str, ...]) -> list[str]:
    """Arguments of mmdebstrap for these certificate authorities."""
    hooks = [
        f'install -D -m 644 {shlex.quote(path)} "$1/{_AUTHORITIES}/authority-{number}.crt"'
        for number, path in enumerate(authorities, 1)
    ]
    if hooks:
        hooks.append('chroot "$1" update-ca-certificates')
    return [f"--customize-hook={line}" for line in hooks]


async def make_base_image(
    base: BaseImage, cache: Path, report: Callable[[str], None] = lambda _: None
) -> Path:
    """The archive of a base image, in `cache`; made now unless it is there.

    It has an entry `./`, without which Podman gives the root directory no rights, and can be
    imported by every engine: `docker import FILE NAME`.

    Raises:
        InputError: a field of `base` is malformed.
        ConfigurationError: mmdebstrap is missing or failed; has the end of its output.
        EnvInfraError: suspended processes hold its lock.
    """
    base.check()
    if shutil.which("mmdebstrap") is None:
        raise ConfigurationError(
            "mmdebstrap, which makes base images, is not installed: apt install mmdebstrap; where "
            "it cannot be had, import an archive of a root file system (hermes-queue images import)"
        )
    fields = asdict(base)
    trusted = [_read_authority(path) for path in fields.pop("authorities")]
    made_by = [base.command(Path("archive")), _RECORDS.read_text()]
    text = json.dumps([fields, *made_by, *trusted], sort_keys=True)
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    place = cache / f"{base.suite}-{key}.tar"
    await asyncio.to_thread(cache.mkdir, parents=True, exist_ok=True)
    async with build_turn(place.with_suffix(".lock"), is_finished=place.is_file) as number:
        if number is not None and not place.is_file():
            report(f"{base.suite} from {base.mirror or 'the mirror of this host'}; takes minutes")
            unfinished = place.with_name(f".{place.stem}.{os.getpid()}.tar")
            try:
                await _run(base.command(unfinished))
                await asyncio.to_thread(_check_archive, unfinished)
                unfinished.rename(place)
            finally:
                unfinished.unlink(missing_ok=True)
    return place


async def _run(command: list[str]) -> None:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "HQ_RECORDS": str(_RECORDS)},
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(TIMEOUT_S):
            output, _ = await process.communicate()
    except BaseException:
        # It removes what it has made, mounts included, when it is asked to end.
        if process.returncode is None:
            process.terminate()
            await process.wait()
        raise
    if process.returncode:
        tail = output.decode(errors="replace").strip()[-TAIL_CHARS:]
        raise ConfigurationError(f"{command[0]} failed ({process.returncode}):\n{tail}")


def _check_archive(path: Path) -> None:
    with tarfile.open(path) as tar:
        if not any(member.name == "." and member.isdir() for member in tar):
            raise ConfigurationError("mmdebstrap wrote an archive without an entry ./")
