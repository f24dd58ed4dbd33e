"""Isolation and files of one sandbox: a directory as its root, in separate namespaces.

Root inside has root's rights over files, users and processes inside, and no others: the mounts
and the network belong to an outer user namespace (see `user_namespaces`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import ClassVar

from hermes_queue.errors import SandboxError
from hermes_queue.sandbox.host import cgroups
from hermes_queue.sandbox.host.bubblewrap import (
    ETC_SHARED,
    INIT_PLACE,
    LEAVE,
    Bubblewrap,
    place_init,
)
from hermes_queue.sandbox.host.cgroups import ControlGroups
from hermes_queue.sandbox.host.execution import Child, Running
from hermes_queue.sandbox.host.interpreter import MOUNT as PYTHON_MOUNT
from hermes_queue.sandbox.host.isolation import host_python, top_level
from hermes_queue.sandbox.host.user_namespaces import UserNamespaces
from hermes_queue.sandbox.local.registry import record_slot
from localmodal.host import FILE_TOOL, Host
from localmodal.rooted.recipe import HeldImage

PATH = f"{PYTHON_MOUNT}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
DOCKER_CAPABILITIES = (
    *("audit_write", "chown", "dac_override", "fowner", "fsetid", "kill", "mknod"),
    *("net_bind_service", "net_raw", "setfcap", "setgid", "setpcap", "setuid", "sys_chroot"),
)
CAPABILITIES = {
    "docker": DOCKER_CAPABILITIES,
    "wide": (*DOCKER_CAPABILITIES, "dac_read_search", "sys_nice", "sys_ptrace", "sys_resource"),
}
"""Capabilities of root inside. "docker": the defaults of Docker's containers. Never those that open
more of the kernel, such as sys_admin and net_admin."""
EVENTS = {
    "memory.events": "/sys/fs/cgroup/memory.events",
    "memory.oom_control": "/sys/fs/cgroup/memory/memory.oom_control",
}
"""Files of a control group (version 2 and 1) that count processes killed for lack of memory ->
their path inside the sandbox."""
OWN_ETC = {
    "passwd": "root:x:0:0:root:/root:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "group": "root:x:0:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost\n::1 localhost\n",
}
DIRECTORIES = (
    *((name, "0755") for name in ("/etc", "/home", "/mnt", "/opt", "/run", "/srv", "/var")),
    *((name, "0755") for name in ("/__modal", "/__modal/.bin")),
    *((name, "1777") for name in ("/tmp", "/var/tmp")),
    ("/root", "0700"),
)
SHELL = f'{LEAVE}cd -- "$1" && shift && exec "$@"'


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume as mounted in one sandbox."""

    source: Path
    """Host directory with this sandbox's copy."""
    target: str
    read_only: bool


@dataclass(eq=False)
class Enclosure:
    """The processes and files of one sandbox on the host."""

    host: Host
    sandbox_id: str
    files: Path | None
    """Tree of a snapshot to start from."""
    network: bool
    memory_mb: int
    """Memory limit; 0 = unlimited."""
    max_pids: int
    capabilities: str
    """A key of `CAPABILITIES`."""
    volumes: tuple[Volume, ...]
    is_rooted: ClassVar[bool] = False
    """Whether its root is an image's."""

    def __post_init__(self) -> None:
        self.directory = self.host.directory / self.sandbox_id
        self.rootfs = self.directory / "rootfs"
        self.init = self.directory / "init"
        self.mount_points: list[str] = []
        """Paths inside at which something other than the sandbox's own files is mounted."""
        self._groups: ControlGroups | None = None
        self._users: UserNamespaces | None = None
        self._bubblewrap: Bubblewrap | None = None
        self.images: dict[str, HeldImage] = {}
        """Path inside -> image whose root file system is mounted there."""

    async def start(self) -> None:
        """Start the sandbox. The files of its volumes must be in `directory`.

        Raises:
            SandboxError, OSError: it did not start.
        """
        await self._furnish()
        self._users = await asyncio.to_thread(UserNamespaces, self.host.ids)
        self._groups = cgroups.create(
            f"hermes-queue-{self.sandbox_id}", memory_mb=self.memory_mb, max_pids=self.max_pids
        )
        await asyncio.to_thread(place_init, self.init, self.host.ids.host_id)
        self._bubblewrap = Bubblewrap(self.sandbox_id, self.host.tools, groups=self._groups)
        await self._bubblewrap.start(
            self._layout(self._users),
            environment={"PATH": PATH, "LANG": "C.UTF-8"},
            pass_fds=(self._users.outer, self._users.nested),
        )
        self._record(self._bubblewrap.init_pid, self._bubblewrap.init_started)

    def _record(self, pid: int, started: int) -> None:
        """Have the next server end the sandbox if this one dies."""
        directory, groups = self.host.directory, self._groups
        record_slot(directory, self.sandbox_id, pid=pid, started=started, groups=groups)

    async def _furnish(self) -> None:
        """Create the root with the files that are not mounted into it."""
        if self.files is not None:
            await self.host.copy(self.files, self.rootfs)
            return
        owned = self.host.owned_directory
        owned(self.rootfs, 0o755)
        etc = owned(self.rootfs / "etc", 0o755)
        for name, text in OWN_ETC.items():
            (etc / name).write_text(text)
            (etc / name).chmod(0o644)
            if os.geteuid() == 0:
                os.chown(etc / name, self.host.ids.host_id, self.host.ids.host_id)

    def _layout(self, users: UserNamespaces) -> list[str]:
        arguments = ["--userns", str(users.outer), "--userns2", str(users.nested)]
        arguments += ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
        arguments += [] if self.network else ["--unshare-net"]
        arguments += ["--hostname", "modal", "--bind", str(self.rootfs), "/", *self._mounts()]
        for group in self._groups.groups if self._groups else ():
            for name, place in EVENTS.items():
                arguments += ["--ro-bind-try", str(group / name), place]
        self.mount_points = _targets(arguments)
        return [*arguments, "--chdir", "/"]

    def _mounts(self) -> list[str]:
        """Mounts beside the sandbox's own files."""
        arguments: list[str] = []
        for name, mode in DIRECTORIES:
            arguments += ["--perms", mode, "--dir", name]
        arguments += ["--ro-bind", "/usr", "/usr", *self._top_level()]
        arguments += ["--proc", "/proc", "--dev", "/dev"]
        arguments += ["--perms", "1777", "--tmpfs", "/dev/shm"]
        arguments += ["--ro-bind", str(self.init), INIT_PLACE]
        for name in ETC_SHARED:
            arguments += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
        if self.network:
            arguments += ["--ro-bind-try", "/etc/resolv.conf", "/etc/resolv.conf"]
        for hidden in host_python().installed:
            arguments += ["--ro-bind", str(self.host.directory / "empty"), str(hidden)]
        arguments += ["--ro-bind", str(self.host.python.home), PYTHON_MOUNT]
        arguments += ["--ro-bind", str(self.host.file_tool), FILE_TOOL]
        for volume in self.volumes:
            for parent in reversed(PurePosixPath(volume.target).parents[:-1]):
                arguments += ["--perms", "0755", "--dir", str(parent)]
            bind = "--ro-bind" if volume.read_only else "--bind"
            arguments += [bind, str(volume.source), volume.target]
        self.mount_points = _targets(arguments)
        return arguments

    def _top_level(self) -> list[str]:
        """/bin and the like, unless a snapshot contains them."""
        words = top_level()
        arguments = []
        for flag, source, target in zip(words[::3], words[1::3], words[2::3], strict=True):
            if flag != "--symlink" or not os.path.lexists(self.rootfs / target.lstrip("/")):
                arguments += [flag, source, target]
        return arguments

    def bubblewrap(self) -> Bubblewrap:
        """What holds it. Raises SandboxError: there is no such thing."""
        if self._bubblewrap is None:
            raise SandboxError("images cannot be mounted in this kind of sandbox")
        return self._bubblewrap

    def is_alive(self) -> bool:
        """Whether it can run commands."""
        return self._bubblewrap is not None and self._bubblewrap.is_alive()

    def command(
        self, cwd: str, argv: Sequence[str], environment: Mapping[str, str]
    ) -> list[str | bytes]:
        """The host's command line for `argv` inside; run it with the same environment."""
        assert self._bubblewrap is not None
        capabilities = CAPABILITIES[self.capabilities]
        kept = ",".join(["-all", *(f"+{name}" for name in capabilities)])
        limited = [self.host.tools.setpriv, "--inh-caps=-all", f"--bounding-set={kept}"]
        shell = ["/bin/sh", "-c", SHELL, "sh", cwd]
        return [*self._bubblewrap.enter_prefix(), *limited, *shell, *argv]

    def start_command(
        self,
        cwd: str,
        argv: Sequence[str],
        environment: Mapping[str, str],
        streams: tuple[int, int, int],
    ) -> Running:
        """Start a command with these descriptors. Raises OSError, ValueError, SandboxError."""
        given, taken, errors = streams
        words = self.command(cwd, argv, environment)
        return Child(words, env=environment, stdin=given, stdout=taken, stderr=errors)

    def environment(self) -> dict[str, str]:
        """The base environment of commands."""
        return {"PATH": PATH, "HOME": "/root", "USER": "root", "LANG": "C.UTF-8"}

    async def kill_tree(self, pid: int) -> None:
        """Kill the process tree of one command, by its outermost host pid."""
        if self._bubblewrap is not None:
            await self._bubblewrap.kill_tree(None, pid)

    async def stop(self) -> None:
        """Kill everything inside; files stay. Idempotent."""
        if self._bubblewrap is not None:
            await self._bubblewrap.kill()
        if self._users is not None:
            self._users.close()
        if self._groups is not None:
            await asyncio.to_thread(self._groups.remove)
            self._groups = None
        self.let_go()

    def let_go(self) -> None:
        """Release the images that were mounted; all inside is dead."""
        while self.images:
            self.images.popitem()[1].release()

    def remove(self) -> None:
        """Delete its files. Blocking."""
        self.host.remove(self.directory)
        self.directory.with_name(f"{self.sandbox_id}.json").unlink(missing_ok=True)


def _targets(arguments: Sequence[str]) -> list[str]:
    """Targets of bubblewrap's mounts, without the root."""
    operands = {
        "--bind": 2,
        "--ro-bind": 2,
        "--ro-bind-try": 2,
        "--proc": 1,
        "--dev": 1,
        "--tmpfs": 1,
    }
    found = [
        arguments[at + operands[word]] for at, word in enumerate(arguments) if word in operands
    ]
    return [path for path in found if path != "/"]
