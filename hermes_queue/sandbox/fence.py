"""One slot's fence: a bubblewrap that holds its namespaces, entered with nsenter.

When the worker is root, everything first drops to an unprivileged uid. Inside, commands
run as uid 1000 without capabilities and without a way to gain any. The namespaces die
with their first process, and that one dies with the worker (`--die-with-parent`, and its
standard input ends), so nothing outlives either.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hermes_queue.errors import SandboxError
from hermes_queue.sandbox.base import WORKSPACE
from hermes_queue.sandbox.cgroups import ControlGroups
from hermes_queue.sandbox.execution import Child, memory_file
from hermes_queue.sandbox.host_paths import shared_directory, slot_directory
from hermes_queue.sandbox.interpreter import MOUNT as PYTHON_MOUNT
from hermes_queue.sandbox.interpreter import Interpreter
from hermes_queue.sandbox.isolation import Tools, host_python, top_level
from hermes_queue.sandbox.processes import is_running, kill_process, kill_tree, read_stat

logger = logging.getLogger(__name__)

HOME = "/home/agent"
INNER_ID = "1000"
START_TIMEOUT_S = 30.0
PATH = f"{PYTHON_MOUNT}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
DIRECTORIES = ("/etc", "/home", "/opt", "/opt/assets", "/opt/python", "/var")
ETC_SHARED = (
    "alternatives",
    "ca-certificates",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "nsswitch.conf",
    "pki",
    "protocols",
    "services",
    "ssl",
)
ETC_OWN = {
    "passwd": "root:x:0:0:root:/root:/bin/bash\n"
    f"agent:x:{INNER_ID}:{INNER_ID}:agent:{HOME}:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "group": f"root:x:0:\nagent:x:{INNER_ID}:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost\n::1 localhost\n",
}
# Bash as process 1 reaps orphans and, being process 1, cannot be killed from inside. It
# ends when the worker's end of its standard input does.
INIT = 'trap "" HUP INT QUIT ILL ABRT BUS FPE USR1 SEGV USR2 PIPE ALRM TERM; echo up; read -r _'
NS_GET_PARENT = 0xB702
"""ioctl_ns(2); Python has no name for it."""
NAMESPACES = (
    ("mnt", "--mount"),
    ("pid", "--pid"),
    ("ipc", "--ipc"),
    ("uts", "--uts"),
    ("net", "--net"),
    ("cgroup", "--cgroup"),
)


@dataclass(frozen=True, slots=True)
class SlotDirectories:
    """The host directories behind a slot's writable places. Deleted with `root`."""

    root: Path

    @property
    def workspace(self) -> Path:
        """Mounted at /workspace."""
        return self.root / "workspace"

    @property
    def home(self) -> Path:
        """Mounted at /home/agent."""
        return self.root / "home"

    @property
    def tmp(self) -> Path:
        """Mounted at /tmp."""
        return self.root / "tmp"

    @property
    def var_tmp(self) -> Path:
        """Mounted at /var/tmp."""
        return self.root / "var-tmp"

    def create(self, *, fenced: bool) -> None:
        """Make them, empty; fenced slots run as a uid of their own. Blocking."""
        slot_directory(self.root, 0o700, give=fenced)
        for place in (self.workspace, self.home):
            slot_directory(place, give=fenced)
        for place in (self.tmp, self.var_tmp):
            slot_directory(place, 0o1777, give=fenced)


class Fence(Protocol):
    """What keeps one slot's commands together."""

    slot_id: str
    workspace: str

    async def start(self) -> None:
        """Bring it up. Raises SandboxError."""

    def is_alive(self) -> bool:
        """Whether commands can run in it."""
        ...

    def command(self, cwd: str, argv: Sequence[str | bytes]) -> list[str | bytes]:
        """The host's argv that runs `argv` inside."""
        ...

    def descriptors(self) -> list[int]:
        """What `command` needs to inherit."""
        ...

    def environment(self) -> dict[str, str]:
        """The clean environment commands start from."""
        ...

    async def kill_command(self, command_id: str, pid: int) -> None:
        """Kill one command's tree, given the id in its environment and its outermost pid."""

    async def kill(self) -> None:
        """Kill everything inside. Idempotent; returns when nothing runs any more."""


@dataclass(frozen=True, slots=True)
class FenceOptions:
    """How a slot is furnished."""

    interpreter: Interpreter
    mounts: tuple[str, ...] = ()
    conceal: tuple[str, ...] = ()
    """Import names; see `SlotSpec.conceal`."""
    """Further bubblewrap arguments, for assets."""
    network: bool = False
    groups: ControlGroups | None = None
    limits: tuple[str, ...] = ()
    """Prefix that sets per-process limits where there are no control groups."""


class BubblewrapFence:
    """One bubblewrap, see the module."""

    def __init__(
        self, slot_id: str, tools: Tools, directories: SlotDirectories, options: FenceOptions
    ) -> None:
        self.slot_id = slot_id
        self.workspace = WORKSPACE
        self.init_pid = 0
        self.init_started = 0
        self._tools = tools
        self._directories = directories
        self._options = options
        self._child: Child | None = None
        self._hold = -1
        self._outer_user = -1
        self._pid_namespace = ""
        self._enter: list[str] = []

    async def start(self) -> None:
        """Start bubblewrap and wait until its mounts are in place.

        Raises:
            SandboxError: it ended instead, or was not ready in time.
        """
        errors = memory_file(b"")
        info, info_writer = os.pipe()
        ready, ready_writer = os.pipe()
        stdin, self._hold = os.pipe()
        try:
            try:
                self._child = Child(
                    [*self._prefix(), self._tools.bwrap, *self._layout(info_writer)],
                    env={"PATH": PATH, "LANG": "C.UTF-8"},
                    stdin=stdin,
                    stdout=ready_writer,
                    stderr=errors,
                    pass_fds=(info_writer,),
                )
            finally:
                for descriptor in (info_writer, ready_writer, stdin):
                    os.close(descriptor)
            # Entering before this line would show the host's files.
            if not await _first_byte(ready, self._child):
                raise SandboxError(f"bubblewrap did not start: {_text(errors) or 'no message'}")
            self._learn(int(json.loads(os.read(info, 4096))["child-pid"]))
        except OSError as error:
            await self.kill()
            raise SandboxError(f"bubblewrap did not start: {error}") from error
        except BaseException:
            await asyncio.shield(self.kill())
            raise
        finally:
            for descriptor in (errors, info, ready):
                os.close(descriptor)

    def _learn(self, pid: int) -> None:
        stat = read_stat(pid)
        if stat is None:
            raise SandboxError("the slot's first process ended at once")
        self.init_pid, self.init_started = pid, stat.started
        self._pid_namespace = os.readlink(f"/proc/{pid}/ns/pid")
        # Entering a namespace that is also ours would be refused: net when it is shared,
        # cgroup where the kernel has none.
        options = [
            f"{option}=/proc/{pid}/ns/{name}"
            for name, option in NAMESPACES
            if os.path.exists(f"/proc/self/ns/{name}")
            and os.readlink(f"/proc/{pid}/ns/{name}") != os.readlink(f"/proc/self/ns/{name}")
        ]
        # bubblewrap's namespaces belong to an outer user namespace that no process is left
        # in; the slot's own one, without rights over them, is nested in it.
        self._outer_user = _parent_namespace(f"/proc/{pid}/ns/user")
        self._enter = [
            *self._prefix(),
            self._tools.nsenter,
            f"--user=/proc/self/fd/{self._outer_user}",
            *options,
            "--preserve-credentials",
            self._tools.nsenter,
            "--user=/proc/1/ns/user",
            "--preserve-credentials",
            self._tools.setpriv,
            "--inh-caps=-all",
            "--no-new-privs",
            *self._options.limits,
        ]

    def _prefix(self) -> list[str]:
        groups = self._options.groups
        return [*(groups.enter_prefix() if groups else []), *self._tools.drop]

    def _layout(self, info: int) -> list[str]:
        places, options = self._directories, self._options
        arguments = ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
        arguments += ["--unshare-cgroup-try", "--uid", INNER_ID, "--gid", INNER_ID]
        arguments += [] if options.network else ["--unshare-net"]
        arguments += ["--disable-userns"] if self._tools.disable_userns else []
        arguments += ["--hostname", "slot", "--die-with-parent", "--as-pid-1"]
        arguments += ["--cap-drop", "ALL", "--info-fd", str(info)]
        for directory in DIRECTORIES:
            arguments += ["--perms", "0755", "--dir", directory]
        arguments += ["--ro-bind", "/usr", "/usr", *top_level()]
        arguments += ["--proc", "/proc", "--dev", "/dev"]
        arguments += ["--perms", "1777", "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]  # noqa: S108
        arguments += self._etc()
        for place, target in (
            (places.workspace, WORKSPACE),
            (places.home, HOME),
            (places.tmp, "/tmp"),  # noqa: S108 - the slot's own
            (places.var_tmp, "/var/tmp"),  # noqa: S108
        ):
            arguments += ["--bind", str(place), target]
        empty = places.root.parent / "empty"
        for hidden in host_python().installed:
            arguments += ["--ro-bind", str(empty), str(hidden)]
        for name in options.conceal:
            for stray in host_python().strays.get(name, ()):
                blank = str(empty if stray.is_dir() else empty.with_name("blank"))
                arguments += ["--ro-bind", blank, str(stray)]
        arguments += ["--ro-bind", str(options.interpreter.home), PYTHON_MOUNT, *options.mounts]
        return [*arguments, "--remount-ro", "/", "--chdir", "/", "--", "/bin/bash", "-c", INIT]

    def _etc(self) -> list[str]:
        arguments = []
        for name in ETC_SHARED:
            arguments += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
        for name in ETC_OWN:
            source = self._directories.root.parent / "etc" / name
            if name == "hosts" and self._options.network:
                source = Path("/etc/hosts")
            arguments += ["--ro-bind", str(source), f"/etc/{name}"]
        if self._options.network:
            arguments += ["--ro-bind-try", "/etc/resolv.conf", "/etc/resolv.conf"]
        return arguments

    def is_alive(self) -> bool:
        """See `Fence`."""
        return self.init_pid > 0 and is_running(self.init_pid, self.init_started)

    def command(self, cwd: str, argv: Sequence[str | bytes]) -> list[str | bytes]:
        """See `Fence`."""
        return [*self._enter, "/usr/bin/env", "-C", cwd, *argv]

    def descriptors(self) -> list[int]:
        """See `Fence`."""
        return [self._outer_user]

    def environment(self) -> dict[str, str]:
        """See `Fence`."""
        return {
            "PATH": PATH,
            "HOME": HOME,
            "USER": "agent",
            "LOGNAME": "agent",
            "LANG": "C.UTF-8",
            "TMPDIR": "/tmp",  # noqa: S108
        }

    async def kill_command(self, command_id: str, pid: int) -> None:
        """See `Fence`. A command that cannot be caught takes the whole slot with it."""
        if not await asyncio.to_thread(kill_tree, command_id, pid, self._pid_namespace):
            logger.warning("slot %s forks too fast to be stopped; killing it", self.slot_id)
            await self.kill()

    async def kill(self) -> None:
        """See `Fence`."""
        for descriptor in (self._hold, self._outer_user):
            if descriptor >= 0:
                os.close(descriptor)
        self._hold = self._outer_user = -1
        if self._child is None:
            return
        if self.init_pid:
            kill_process(self.init_pid, self.init_started)
        else:
            self._child.signal(signal.SIGKILL)
        if not await self._child.ended_within(START_TIMEOUT_S):
            self._child.signal(signal.SIGKILL)
            await self._child.wait()


def _parent_namespace(path: str) -> int:
    """A descriptor of the user namespace that the one at `path` was made in."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return fcntl.ioctl(descriptor, NS_GET_PARENT)
    finally:
        os.close(descriptor)


async def _first_byte(descriptor: int, child: Child) -> bool:
    """Whether `child` wrote something before it ended."""
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()

    def on_readable() -> None:
        loop.remove_reader(descriptor)
        readable.set_result(None)

    loop.add_reader(descriptor, on_readable)
    try:
        waiting: set[asyncio.Future[Any]] = {readable, child.exited}
        await asyncio.wait(waiting, timeout=START_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
    finally:
        loop.remove_reader(descriptor)
    return readable.done() and os.read(descriptor, 1) != b""


def _text(descriptor: int) -> str:
    return os.pread(descriptor, 4096, 0).decode(errors="replace").strip()


def furnish(directory: Path) -> None:
    """Make what all slots below `directory` share: an empty directory and /etc files."""
    shared_directory(directory / "empty")
    (directory / "blank").touch()
    (directory / "blank").chmod(0o644)
    etc = shared_directory(directory / "etc")
    for name, text in ETC_OWN.items():
        (etc / name).write_text(text)
        (etc / name).chmod(0o644)
