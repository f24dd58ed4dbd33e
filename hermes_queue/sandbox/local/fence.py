"""The isolation of one slot: a bubblewrap that holds its namespaces, which a spawner enters.

If the worker is root, everything first drops to an unprivileged uid. Inside, commands run as uid
1000 without capabilities and without a way to gain any, under a filter of system calls (see
`seccomp`). The namespaces die with their first process, and this one dies with the worker, so
nothing outlives either.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

from hermes_queue.sandbox.base import SLOT_ENVIRONMENT, WORKSPACE
from hermes_queue.sandbox.host.bubblewrap import (
    ETC_SHARED,
    INIT_PLACE,
    place_init,
)
from hermes_queue.sandbox.host.cgroups import ControlGroups, ProcessLimit
from hermes_queue.sandbox.host.interpreter import MOUNT as PYTHON_MOUNT
from hermes_queue.sandbox.host.interpreter import Interpreter
from hermes_queue.sandbox.host.isolation import (
    FencePrograms,
    has_mounts_below,
    host_python,
    top_level,
)
from hermes_queue.sandbox.host.paths import SLOT_UID, shared_directory, slot_directory
from hermes_queue.sandbox.host.spawned import SpawnedBubblewrap
from hermes_queue.sandbox.host.spawner import Confinement, SlotAccount, Spawners
from hermes_queue.sandbox.host.user_namespaces import drop_prefix

Bind = tuple[str, str, bool]
"""Path on the host, path inside, whether it is a directory; mounted read-only."""
HOME = "/home/agent"
INNER_ID = "1000"
PATH = f"{PYTHON_MOUNT}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
DIRECTORIES = ("/etc", "/home", "/opt", "/opt/assets", "/opt/python", "/var")
ETC_OWN = {
    "passwd": "root:x:0:0:root:/root:/bin/bash\n"
    f"agent:x:{INNER_ID}:{INNER_ID}:agent:{HOME}:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "group": f"root:x:0:\nagent:x:{INNER_ID}:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost\n::1 localhost\n",
}


class SlotDirectories:
    """The host directories behind a slot's writable places. Deleted with `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.workspace = root / "workspace"
        self.home = root / "home"
        self.tmp = root / "tmp"
        self.var_tmp = root / "var-tmp"
        self.init = root / "init"
        """The program of the first process."""
        self.etc = root / "etc"
        """Files over those of the host's /etc."""
        self.empty = root / "empty"
        self.blank = root / "blank"
        """An empty directory and an empty file, which hide others."""

    def create(self, *, fenced: bool, owner: int) -> None:
        """Make them, empty; isolated slots of a root worker run as the uid `owner`. Blocking."""
        slot_directory(self.root, 0o700, give=fenced, owner=owner)
        for place in (self.workspace, self.home):
            slot_directory(place, give=fenced, owner=owner)
        for place in (self.tmp, self.var_tmp):
            slot_directory(place, 0o1777, give=fenced, owner=owner)
        if fenced:
            self._furnish()

    def _furnish(self) -> None:
        """Make what commands only read: a lock on a shared file would reach other slots."""
        shared_directory(self.empty)
        shared_directory(self.etc)
        copied = {name: _etc_file(name) for name in ETC_SHARED}
        own = {name: text.encode() for name, text in ETC_OWN.items()}
        for name, data in {**copied, **own}.items():
            if data is not None:
                (self.etc / name).write_bytes(data)
                (self.etc / name).chmod(0o644)
        self.blank.touch()
        self.blank.chmod(0o644)


@dataclass(frozen=True, slots=True)
class FenceOptions:
    """Equipment of a slot."""

    interpreter: Interpreter
    assets: tuple[Bind, ...] = ()
    building: tuple[str, ...] = ()
    """Further bubblewrap arguments, for the build of an asset."""
    conceal: tuple[str, ...] = ()
    """Import names; see `SlotSpec.conceal`."""
    network: bool = False
    groups: ControlGroups | None = None
    limits: tuple[ProcessLimit, ...] = ()
    """Of each process."""
    uid: int = SLOT_UID
    """Host uid of the slot if the worker is root."""


class BubblewrapFence(SpawnedBubblewrap):
    """Holds one slot's commands together. `PlainFence` does the same without isolation."""

    def __init__(
        self,
        slot_id: str,
        tools: FencePrograms,
        directories: SlotDirectories,
        options: FenceOptions,
        spawners: Spawners,
    ) -> None:
        drop = drop_prefix(tools.setpriv, options.uid) if tools.drop else ()
        super().__init__(f"slot {slot_id}", tools, groups=options.groups, drop=drop)
        self.slot_id = slot_id
        self.workspace = WORKSPACE
        self.directories = directories
        self.options = options
        self._spawners = spawners

    async def begin(self) -> None:
        """Start it. Raises SandboxError or OSError."""
        environment = {"PATH": PATH, "LANG": "C.UTF-8"}
        await asyncio.to_thread(place_init, self.directories.init, self.options.uid)
        await self.start(self._layout(), environment=environment)
        with self.namespaces() as namespaces:
            confinement = Confinement(
                namespaces=namespaces,
                uid=self.options.uid if self._drop else None,
                groups=self.options.groups,
                limits=self.options.limits,
            )
            self._spawner = await self._spawners.make(confinement)

    account: SlotAccount | None = None
    """Whom commands run as, in slots with users of their own."""

    @property
    def uid(self) -> int:
        """Host uid of its commands."""
        return self.options.uid if self._drop else os.geteuid()

    def _layout(self) -> list[str]:
        places, options = self.directories, self.options
        arguments = ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
        arguments += ["--unshare-cgroup-try", "--uid", INNER_ID, "--gid", INNER_ID]
        arguments += [] if options.network else ["--unshare-net"]
        arguments += ["--disable-userns"] if self._tools.disable_userns else []
        arguments += ["--hostname", "slot"]
        for directory in DIRECTORIES:
            arguments += ["--perms", "0755", "--dir", directory]
        arguments += [*self._tree("/usr", "/usr"), *top_level()]
        arguments += ["--proc", "/proc", "--dev", "/dev"]
        arguments += ["--perms", "1777", "--tmpfs", "/dev/shm"]  # noqa: S108
        arguments += ["--ro-bind", str(places.init), INIT_PLACE, "--remount-ro", "/dev"]
        arguments += self._etc()
        for place, target in (
            (places.workspace, WORKSPACE),
            (places.home, HOME),
            (places.tmp, "/tmp"),  # noqa: S108 - the slot's own
            (places.var_tmp, "/var/tmp"),  # noqa: S108
        ):
            arguments += ["--bind", str(place), target]
        for hidden in host_python().installed:
            arguments += ["--ro-bind", str(places.empty), str(hidden)]
        for name in options.conceal:
            for stray in host_python().strays.get(name, ()):
                nothing = places.empty if stray.is_dir() else places.blank
                arguments += ["--ro-bind", str(nothing), str(stray)]
        arguments += [*self._tree(str(options.interpreter.home), PYTHON_MOUNT), *options.building]
        for source, target, _ in options.assets:
            arguments += self._tree(source, target)
        return [*arguments, "--remount-ro", "/", "--chdir", "/"]

    def _tree(self, source: str, target: str) -> list[str]:
        """Mount a directory that slots share, read-only, if possible with inodes of the slot's own.

        Locks and watches belong to inodes, and need no right to write.
        """
        if not self._tools.overlays or has_mounts_below(source):  # overlayfs leaves those out
            return ["--ro-bind", source, target]
        lower = ["--overlay-src", str(self.directories.empty), "--overlay-src", source]
        return [*lower, "--ro-overlay", target]

    def _etc(self) -> list[str]:
        arguments: list[str] = []
        own = self.directories.etc
        for name in ETC_SHARED:
            if Path("/etc", name).is_dir():
                arguments += self._tree(f"/etc/{name}", f"/etc/{name}")
        for name in (*ETC_SHARED, *ETC_OWN):
            source = own / name
            if name == "hosts" and self.options.network:
                source = Path("/etc/hosts")
            arguments += ["--ro-bind-try", str(source), f"/etc/{name}"]
        if self.options.network:
            arguments += ["--ro-bind-try", "/etc/resolv.conf", "/etc/resolv.conf"]
        return arguments

    def environment(self) -> dict[str, str]:
        """The clean environment that commands start with."""
        return {"PATH": PATH, "HOME": HOME, **SLOT_ENVIRONMENT, "TMPDIR": "/tmp"}  # noqa: S108


def _etc_file(name: str) -> bytes | None:
    """A file of the host's /etc; None if it is something else, or not there."""
    try:
        return Path("/etc", name).read_bytes()
    except OSError:
        return None
