"""A running bubblewrap: the first process of a set of namespaces, and the way into them.

The namespaces die with that process, and it dies with the thread that started it
(`--die-with-parent`, and its standard input ends), so nothing outlives either.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import signal
from collections.abc import Sequence
from typing import Any

from hermes_queue.errors import SandboxError
from hermes_queue.sandbox.execution import Child, memory_file
from hermes_queue.sandbox.isolation import Tools
from hermes_queue.sandbox.processes import is_running, kill_process, kill_tree, read_stat

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 30.0
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
"""Below /etc: what programs of the host's /usr need and nobody has to hide."""
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


class Bubblewrap:
    """One bubblewrap, from its start to its end.

    Its namespaces belong to an outer user namespace that no process is left in; commands
    run in one nested in it, without rights over them. The arguments have to see to that:
    `--unshare-user --disable-userns` (or a `--uid` that differs from the outer one), or
    `--userns` with `--userns2`.
    """

    def __init__(self, name: str, tools: Tools, *, prefix: Sequence[str] = ()) -> None:
        self.name = name
        """For messages."""
        self.init_pid = 0
        self.init_started = 0
        self._tools = tools
        self._prefix = [*prefix, *tools.drop]
        self._child: Child | None = None
        self._hold = -1
        self._outer_user = -1
        self._pid_namespace = ""
        self._enter: list[str | bytes] = []
        self._forked_too_fast = False
        self._killed = False

    async def start(
        self, arguments: Sequence[str], *, environment: dict[str, str], pass_fds: Sequence[int] = ()
    ) -> None:
        """Start bubblewrap with `arguments` and wait until its mounts are in place.

        Raises:
            SandboxError: it ended instead, or was not ready in time.
        """
        errors = memory_file(b"")
        info, info_writer = os.pipe()
        ready, ready_writer = os.pipe()
        stdin, self._hold = os.pipe()
        own = [
            "--die-with-parent",
            "--as-pid-1",
            "--cap-drop",
            "ALL",
            "--info-fd",
            f"{info_writer}",
        ]
        argv = [*self._prefix, self._tools.bwrap, *own, *arguments, "--", "/bin/bash", "-c", INIT]
        try:
            try:
                self._child = Child(
                    argv,
                    env=environment,
                    stdin=stdin,
                    stdout=ready_writer,
                    stderr=errors,
                    pass_fds=(info_writer, *pass_fds),
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
            raise SandboxError("the sandbox's first process ended at once")
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
        self._outer_user = _parent_namespace(f"/proc/{pid}/ns/user")
        self._enter = [
            *self._prefix,
            self._tools.nsenter,
            f"--user=/proc/self/fd/{self._outer_user}",
            *options,
            "--preserve-credentials",
            self._tools.nsenter,
            "--user=/proc/1/ns/user",
            "--preserve-credentials",
        ]

    def is_alive(self) -> bool:
        """Whether commands can run in it."""
        return self.init_pid > 0 and is_running(self.init_pid, self.init_started)

    async def ended_from_inside(self) -> bool:
        """Whether what ran inside has ended it.

        It made process 1 end by itself, or forked too fast to be stopped otherwise. A signal from
        inside does not reach process 1; one from the host (the kernel's when memory is short, a
        supervisor's, ours) ends it with SIGKILL, or the bubblewrap around it.
        """
        if self._forked_too_fast:
            return True
        if (
            self._child is None
            or self._killed
            or not await self._child.ended_within(START_TIMEOUT_S)
        ):
            return False
        code = self._child.exited.result()
        return code >= 0 and code != 128 + signal.SIGKILL

    def enter_prefix(self) -> list[str | bytes]:
        """What runs a command inside, in the control groups, with the nested namespace's rights."""
        return [*self._enter]

    def descriptors(self) -> list[int]:
        """What `enter_prefix` needs to inherit."""
        return [self._outer_user]

    async def kill_tree(self, marker: str | None, pid: int) -> None:
        """Kill one command's tree; see `processes.kill_tree`.

        A command that cannot be caught takes everything else inside with it.
        """
        if not await asyncio.to_thread(kill_tree, marker, pid, self._pid_namespace):
            logger.warning(
                "%s forks too fast to be stopped; killing it",
                self.name,
                extra={"action": "fork_bomb_killed"},
            )
            self._forked_too_fast = True
            await self.kill()

    async def kill(self) -> None:
        """Kill everything inside. Idempotent; returns when nothing runs any more."""
        self._killed = True
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
