"""Containers, and what runs programs in them: an engine, a scheduler, a provider of sandboxes.

Errors are those of `hermes_queue.errors`: `SlotLost` if the container is gone or not running,
`SandboxUnavailable` if the host has no room or does not answer while a container is made,
`SandboxRejected` if it would refuse the same request again, else `SandboxError`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from hermes_queue.sandbox.services import ServiceVolume

KILLED = 137
"""The exit code of a program that SIGKILL has ended."""
ROOT_USERS = frozenset({"", "0", "root"})
"""What a request may say of its user if commands are to run as root."""
STDOUT, STDERR = 1, 2
"""Streams of an `ExecStream`."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A directory of the host in a container."""

    source: str
    target: str
    writable: bool = False


@dataclass(frozen=True, slots=True)
class NetworkLink:
    """A container's place in the network of a slot and its services."""

    network: str
    address: str
    names: tuple[str, ...]
    """Its own; the first one is its host name."""
    hosts: tuple[tuple[str, str], ...] = ()
    """Names and addresses of all in the network."""
    is_open: bool = False
    """Whether it also reaches others."""


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """A container whose first process is `command`, run as root."""

    image: str
    """Id or name that the host knows."""
    command: tuple[str, ...]
    labels: Mapping[str, str]
    cpus: float
    memory_mb: int
    """Memory and swap together."""
    pids: int
    shm_mb: int
    disk_mb: int = 0
    """What it may write to its root file system; 0 = unlimited."""
    network: str = "none"
    """"none", or the name of a network of the host; never that of the host itself."""
    capabilities: tuple[str, ...] | None = None
    """Of root; None = the host's defaults."""
    no_new_privileges: bool = True
    mounts: tuple[Mount, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    user: str = "0"
    """Of the first process; "" = the image's, which is root, too. Podman writes entries for a user
    that is named to the container's /etc/passwd and /etc/group, whenever it starts."""
    is_service: bool = False
    """Whether it stands beside a slot. The first process of a slot is always root."""
    name: str = ""
    """Chosen by us, so that a container can be removed whose id never reached us."""
    link: NetworkLink | None = None
    """In place of `network`."""
    workdir: str = ""
    """Of the first process; "" = the image's."""
    volumes: tuple[ServiceVolume, ...] = ()
    """By the names that the host knows."""
    tmpfs: tuple[str, ...] = ()
    keeps_log: bool = False
    """Whether the end of the first process's output is kept, for messages."""


@dataclass(frozen=True, slots=True)
class ContainerState:
    """Whether a container lives, and else why not."""

    running: bool
    out_of_memory: bool = False
    """Whether the kernel has killed a process of it for lack of memory."""
    written_bytes: int | None = None
    exit_code: int | None = None
    """Of the first process, if it has ended."""

    @property
    def was_killed(self) -> bool:
        """Whether somebody outside has ended it: no process in it can kill the first one.

        The kernel may have done so for lack of memory, but not because of the container's limit.
        """
        return not self.running and not self.out_of_memory and self.exit_code == KILLED

    def how_it_ended(self) -> str:
        """For messages: how a container that does not run has ended."""
        memory = ", out of memory" if self.out_of_memory else ""
        killed = ", killed from outside its container" if self.was_killed else ""
        return f"ended with {self.exit_code}{memory}{killed}"


@dataclass(frozen=True, slots=True)
class ExecFacts:
    """How a host runs programs in containers."""

    name: str
    """For people, e.g. "Docker Engine 20.10.24"."""
    closes_streams: bool = False
    """Whether it closes a program's output at the program's end, though others may write to it."""
    ptrace: bool = True
    """Whether root of slots without an image of their own sees what others run (SYS_PTRACE)."""
    argument_bytes: int = 96 << 10
    """Longest single argument (Linux takes 128 KiB); longer command lines go through standard
    input."""
    arguments_bytes: int = 1 << 20
    """Of all arguments of a command together, beside our scripts."""


class ExecStream(Protocol):
    """A running program in a container."""

    async def read(self) -> tuple[int, bytes] | None:
        """The next output, with its stream; None = it has ended. Raises SandboxError."""
        ...

    async def write(self, data: bytes) -> None:
        """Give it input; waits until that has been sent. Raises SandboxError."""

    async def write_eof(self) -> None:
        """End its input. Idempotent, never raises."""

    async def exit_code(self) -> int | None:
        """After its end: its exit code, or None if the host does not know it (any more)."""
        ...


class ExecHost(Protocol):
    """Runs programs in containers. Belongs to one event loop."""

    @property
    def facts(self) -> ExecFacts:
        """Known once it is open."""
        ...

    def exec(
        self,
        container: str,
        argv: Sequence[str],
        *,
        user: str,
        env: Mapping[str, str],
        stdin: bool = False,
    ) -> AbstractAsyncContextManager[ExecStream]:
        """Run a program, whose output is lost at the end of the block; it may still be running."""
        ...

    async def state(self, container: str) -> ContainerState:
        """Raises SlotLost: it does not exist."""
        ...

    async def trap_in(self, container: str) -> str:
        """What among its files keeps programs from starting in it; "" = nothing that the host sees.

        Only its own commands can have brought that about. Raises SandboxError.
        """
        ...

    async def restart(self, container: str) -> None:
        """Kill all its processes, and start its first process again, with the same files.

        Raises FilesRefused: it cannot start with them.
        """
