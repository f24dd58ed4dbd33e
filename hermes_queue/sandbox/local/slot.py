"""A running slot of the local backend: commands, and its end."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from hermes_queue.cancellation import end_tasks
from hermes_queue.errors import SandboxError, SlotKilled, SlotLost
from hermes_queue.sandbox.base import MAX_OUTPUT_BYTES, ExecutionResult
from hermes_queue.sandbox.host.cgroups import ControlGroups
from hermes_queue.sandbox.host.execution import OutputPipe, follow, memory_file
from hermes_queue.sandbox.host.paths import remove_tree
from hermes_queue.sandbox.host.processes import COMMAND_VARIABLE
from hermes_queue.sandbox.host.spawner import SCRIPT_PATH, SlotAccount, SpawnedCommand, Spawner
from hermes_queue.sandbox.listening.sockets import SocketListening

logger = logging.getLogger(__name__)

INLINE_COMMAND_BYTES = 64 << 10
"""Longer command lines reach bash as a file: one argument has 128 KiB at most."""
MOST_LEFT_OPEN = 32
"""Pipes per slot that background processes hold open; each is a descriptor of the worker."""
LEFT_OPEN_NOTICE = (
    "output of earlier background processes is no longer read, because more than "
    f"{MOST_LEFT_OPEN} of their streams are open; they end when they write to it. Redirect the "
    "output of background processes to files: command >log 2>&1 &"
)


def _with_script(
    argv: Sequence[str], script: str | None
) -> tuple[Sequence[str | bytes], list[int]]:
    """The words of a shell that runs `script`, and the descriptors that they name."""
    if script is None:
        return argv, []
    code = script.encode("utf-8", "surrogatepass")
    if len(code) <= INLINE_COMMAND_BYTES and b"\0" not in code:
        return [*argv, "-c", code], []
    return [*argv, SCRIPT_PATH], [memory_file(code)]


class FencedDirectories(Protocol):
    """Files of a slot on this host."""

    root: Path


class FenceLimits(Protocol):
    """What a fence was begun with."""

    @property
    def groups(self) -> ControlGroups | None:
        """Control groups of all in it."""
        ...

    @property
    def uid(self) -> int:
        """Host uid of the slot."""
        ...


class SlotFence(Protocol):
    """Holds the commands of one slot together: `BubblewrapFence` says how."""

    slot_id: str
    init_pid: int
    init_started: int
    account: SlotAccount | None

    @property
    def directories(self) -> FencedDirectories:
        """Its files on the host."""
        ...

    @property
    def options(self) -> FenceLimits:
        """What it was begun with."""
        ...

    @property
    def workspace(self) -> str:
        """Where commands run."""
        ...

    @property
    def spawner(self) -> Spawner:
        """What starts commands in it, once it has begun."""
        ...

    @property
    def has_own_network(self) -> bool:
        """Whether the slot has a loopback interface of its own."""
        ...

    @property
    def uid(self) -> int:
        """Host uid of its commands."""
        ...

    def ends(self) -> list[asyncio.Future[Any]]:
        """Futures of which one is done when it has died."""
        ...

    def is_alive(self) -> bool:
        """Whether commands can be started."""
        ...

    async def ended_from_inside(self) -> bool:
        """Whether a process in it has ended it."""
        ...

    def environment(self) -> dict[str, str]:
        """The clean environment that commands start with."""
        ...

    async def kill_tree(self, marker: str, pid: int, /) -> None:
        """Kill a command that has this mark, and what it started."""
        ...

    async def kill(self) -> None:
        """Kill everything in it."""
        ...


class LocalSlot:
    """A running fence, and the resources to free with it."""

    def __init__(
        self,
        fence: SlotFence,
        record: Path,
        *,
        remove: Callable[[Path], None] = remove_tree,
    ) -> None:
        """`remove` deletes its directories; see `HostRegistry`."""
        self.fence = fence
        self._remove = remove
        self.record = record
        """With it other workers end the slot, see `registry`."""
        self.has_capacity = False
        """Whether it counts as one of the backend's slots; asset builds do not."""
        self.on_end: Callable[[], None] = lambda: None
        self._commands = 0
        self._left_open: list[OutputPipe] = []
        """Streams of ended commands, read until their last writer ends; oldest first."""
        self._listening: list[SocketListening] = []
        self._watching: asyncio.Task[None] | None = None
        """Ends what listens when the slot dies."""

    async def run(
        self,
        argv: Sequence[str],
        *,
        script: str | None = None,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str,
        timeout_s: float,
        max_output_bytes: int = MAX_OUTPUT_BYTES,
        source: int | None = None,
        output: int | None = None,
        account: SlotAccount | None = None,
        one_stream: bool = False,
    ) -> ExecutionResult:
        """Run `argv`, with `script` as bash's command line, in the slot.

        `source` and `output` are descriptors of files in place of stdin and stdout; `account` is
        for slots with users of their own, None = the slot's; `one_stream` sends stderr to stdout.

        Raises:
            SlotKilled: a process in the slot has ended it, before or during the command.
            SlotLost: the slot died for another reason.
            SandboxError: the command could not be started.
        """
        fence, groups = self.fence, self.fence.options.groups
        if not fence.is_alive():
            raise await self._lost("died")
        self._commands += 1
        command_id = f"{fence.slot_id}.{self._commands}"
        # PWD keeps the name of a working directory that is reached through links.
        account = account or fence.account
        home = {"HOME": account.home} if account else {}
        environment = {**home, **fence.environment(), "PWD": cwd, **(env or {})}
        environment[COMMAND_VARIABLE] = command_id
        words, descriptors = _with_script(argv, script)

        def start(given: int, taken: int, errors: int) -> SpawnedCommand:
            own = given if source is None else source, taken if output is None else output
            streams = (*own, own[1] if one_stream else errors, *descriptors)
            return fence.spawner.start(
                words, env=environment, cwd=cwd, streams=streams, account=account
            )

        try:
            result = await follow(
                start,
                kill_tree=lambda pid: fence.kill_tree(command_id, pid),
                timeout_s=timeout_s,
                stdin=stdin,
                max_output_bytes=max_output_bytes,
                owner=account.host_uid if account else fence.options.uid,
                cpu_time=groups.cpu_s if groups else lambda: None,
                keep=self._keep_reading,
            )
        except SlotLost as error:  # it says only that its commands are unknown, and not why
            raise await self._lost("died under a command") from error
        except (OSError, ValueError) as error:
            raise SandboxError(f"the command could not be started: {error}") from error
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        if not fence.is_alive():
            raise await self._lost("died under a command")
        return result

    async def open_port(self) -> socket.socket:
        """A socket that listens on the slot's loopback interface; the caller closes it.

        Raises SlotKilled or SlotLost as `run` does, or SandboxError: it cannot be made.
        """
        if not self.fence.is_alive():
            raise await self._lost("died")
        try:
            return await self.fence.spawner.listen()
        except SlotLost as error:
            raise await self._lost("died") from error
        except OSError as error:
            raise SandboxError(f"no port could be opened in the slot: {error}") from error

    async def listen(self, factory: Callable[[], asyncio.BaseProtocol]) -> SocketListening:
        """See `SandboxBackend`. In the worker's network namespace only the slot's uid connects."""
        listener = await self.open_port()
        uid = None if self.fence.has_own_network else self.fence.uid
        listening = SocketListening(listener, factory, uid=uid)
        self._listening = [each for each in self._listening if not each.lost.done()]
        self._listening.append(listening)
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())
        return listening

    async def _watch(self) -> None:
        await asyncio.wait(self.fence.ends(), return_when=asyncio.FIRST_COMPLETED)
        error = await self._lost("died")
        await asyncio.gather(*(each.lose(error) for each in self._listening))

    async def _stop_listening(self) -> None:
        if self._watching is not None:
            await end_tasks(self._watching)
        error = SlotLost(f"slot {self.fence.slot_id} was released")
        await asyncio.gather(*(each.lose(error) for each in self._listening))

    def _keep_reading(self, pipes: Sequence[OutputPipe]) -> str:
        """Keep the pipes of an ended command; returns a notice if older ones had to be closed."""
        pipes = [pipe for pipe in (*self._left_open, *pipes) if not pipe.ended.done()]
        surplus, self._left_open = pipes[:-MOST_LEFT_OPEN], pipes[-MOST_LEFT_OPEN:]
        for pipe in surplus:
            pipe.close()
        return LEFT_OPEN_NOTICE if surplus else ""

    async def _lost(self, how: str) -> SlotLost:
        kind = SlotKilled if await self.fence.ended_from_inside() else SlotLost
        return kind(f"slot {self.fence.slot_id} {how}")

    async def end(self) -> bool:
        """Free all that the slot has; returns whether all in it is dead. Never raises."""
        is_dead = True
        await self._stop_listening()
        try:
            await self.fence.kill()
        except Exception:
            is_dead = False
            logger.exception(
                "cannot kill slot %s", self.fence.slot_id, extra={"action": "slot_not_killed"}
            )
        for pipe in self._left_open:
            pipe.close()
        await asyncio.to_thread(self._clear)
        self.on_end()
        return is_dead

    def _clear(self) -> None:
        try:
            if groups := self.fence.options.groups:
                groups.remove()
            self._remove(self.fence.directories.root)
            self.record.unlink(missing_ok=True)
        except OSError as error:
            # The directories are never used again; the record lets the next start retry.
            name, extra = self.fence.slot_id, {"action": "slot_left_something"}
            logger.warning("cannot delete everything of slot %s: %s", name, error, extra=extra)
