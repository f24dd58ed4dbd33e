"""One sandbox: its commands, its entrypoint, its timeouts and its end."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from grpclib import GRPCError, Status
from modal_proto import api_pb2

from hermes_queue.errors import SandboxError
from localmodal.commands import Command
from localmodal.enclosure import Enclosure
from localmodal.faults.plan import Conduct
from localmodal.listener import Connections, Listener

Result = api_pb2.GenericResult
TERMINATED = Result(status=Result.GENERIC_STATUS_TERMINATED, exitcode=137)
LIFETIME_OVER = Result(
    status=Result.GENERIC_STATUS_TIMEOUT, exitcode=124, exception="the sandbox's lifetime is over"
)
IDLE = Result(status=Result.GENERIC_STATUS_IDLE_TIMEOUT, exitcode=0, exception="idle for too long")
WORKER_LOST = Result(
    status=Result.GENERIC_STATUS_INTERNAL_FAILURE, exitcode=1, exception="the worker was lost"
)
PROVIDER_ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    "UV_BREAK_SYSTEM_PACKAGES": "1",
    **{f"{kind}_NUM_THREADS": "1" for kind in ("OMP", "MKL", "OPENBLAS", "BLIS")},
}
"""Variables that Modal sets in every sandbox."""
OUTPUT_KEPT_S = 60.0
"""Time after a command's end for which its output can be read; longer for the most recent ones."""
COMMANDS_KEPT = 256
CLOCK_S = 0.25
"""Precision of lifetime and idle timeout."""


@dataclass
class ServedSandbox:
    """One sandbox. Its methods raise GRPCError as the SDK expects it."""

    sandbox_id: str
    task_id: str
    app_id: str
    definition: Any
    """The request's `Sandbox` message."""
    environment: Mapping[str, str]
    tags: dict[str, str]
    enclosure: Enclosure
    conduct: Conduct
    output_limit_bytes: int
    settle: Callable[[], Awaitable[None]]
    """Called after everything inside is dead and before its files are deleted."""
    created: float = field(default_factory=time.time)
    commands: dict[str, Command] = field(default_factory=dict)
    result: Any = None
    """`GenericResult` after its end."""
    lost: bool = False
    """Whether the worker has died unnoticed: no call to it is answered any more."""
    connections: Connections = field(default_factory=Connections)
    """Connections over which commands came."""
    worker: Listener | None = None
    """Address for commands if each sandbox has its own port."""
    entrypoint: Command | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    _ended_at: float = 0.0
    _active_at: float = field(default_factory=time.monotonic)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _ending: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start it, and run its entrypoint if it has one."""
        try:
            await self.enclosure.start()
            if self.definition.workdir:
                made = await self.spawn("workdir", ["mkdir", "-p", "--", self.definition.workdir])
                await made.done.wait()
        except (SandboxError, OSError) as error:
            await self.enclosure.stop()
            await asyncio.to_thread(self.enclosure.remove)
            problem = f"the sandbox did not start: {error}"
            raise GRPCError(Status.FAILED_PRECONDITION, problem) from error
        if self.definition.entrypoint_args:
            self.entrypoint = await self.spawn(
                "entrypoint", list(self.definition.entrypoint_args), cwd=self.definition.workdir
            )
            self._tasks.append(asyncio.create_task(self._follow_entrypoint(self.entrypoint)))
        self._active_at = time.monotonic()  # the start does not count as idle time
        self._tasks.append(asyncio.create_task(self._follow_clock()))

    async def spawn(
        self,
        exec_id: str,
        argv: Sequence[str],
        *,
        cwd: str = "",
        env: Mapping[str, str] | None = None,
        merge: bool = False,
        timeout_s: int = 0,
    ) -> Command:
        """Start a command, once per `exec_id`. `timeout_s` 0 = no limit.

        Raises:
            GRPCError: the sandbox has ended, or the host cannot start another process.
        """
        if not self.is_up():
            raise GRPCError(Status.NOT_FOUND, f"sandbox {self.sandbox_id} has finished")
        # No await up to `self.commands[exec_id] =`: the SDK repeats a call whose reply was lost,
        # and two calls that both find nothing would run the command twice.
        if exec_id in self.commands:
            return self.commands[exec_id]
        enclosure = self.enclosure
        environment = {
            **enclosure.environment(),
            **PROVIDER_ENVIRONMENT,
            "MODAL_SANDBOX_ID": self.sandbox_id,
            "MODAL_TASK_ID": self.task_id,
            **self.environment,
            **(env or {}),
        }
        try:
            command = Command(
                partial(enclosure.start_command, cwd or "/", argv, environment),
                kill_tree=enclosure.kill_tree,
                owner=enclosure.host.ids.host_id,
                directory=enclosure.host.logs,
                limit_bytes=self.output_limit_bytes,
                merge=merge,
            )
        except (OSError, ValueError) as error:
            raise GRPCError(Status.INVALID_ARGUMENT, f"cannot be run: {error}") from error
        except SandboxError as error:
            raise GRPCError(Status.NOT_FOUND, str(error)) from error
        self._forget_commands(COMMANDS_KEPT)
        self.commands[exec_id] = command
        self._active_at = time.monotonic()
        if timeout_s:
            self._tasks.append(asyncio.create_task(self._limit(command, timeout_s)))
        return command

    def _forget_commands(self, keep: int) -> None:
        """Free commands that ended long ago, except for the last `keep`."""
        old = time.monotonic() - OUTPUT_KEPT_S
        for exec_id, command in list(self.commands.items())[: max(0, len(self.commands) - keep)]:
            if 0 < command.ended < old:
                del self.commands[exec_id]
                command.close()

    def forget_output(self) -> None:
        """Free the output of commands if the sandbox ended long ago."""
        if self.result is not None:
            self._forget_commands(0)
            if not self.commands and self.worker is not None:
                self.worker.close()

    def close(self) -> None:
        """Free everything; the sandbox must have ended."""
        if self.worker is not None:
            self.worker.close()
        for command in self.commands.values():
            command.close()
        self.commands.clear()

    async def run(self, argv: Sequence[str], *, stdin: bytes = b"") -> None:
        """Run a command of ours inside.

        Raises:
            GRPCError: FAILED_PRECONDITION with its stderr, if it failed.
        """
        exec_id = f"own-{len(self.commands)}"
        command = await self.spawn(exec_id, argv)
        with contextlib.suppress(GRPCError):
            await command.input.write(0, stdin, eof=True)
        await command.done.wait()
        stderr = b"".join([piece async for piece in command.logs[2].read(0)])
        status = command.status()
        if status.get("code") != 0:
            problem = stderr.decode(errors="replace").strip()[-300:] or str(status)
            raise GRPCError(Status.FAILED_PRECONDITION, problem)

    async def _limit(self, command: Command, timeout_s: int) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(command.done.wait(), timeout_s + self.conduct.kill_slack_s)
            return
        await command.kill()

    async def _follow_entrypoint(self, entrypoint: Command) -> None:
        await entrypoint.done.wait()
        status = entrypoint.status()
        code = status.get("code", 128 + status.get("signal", 0))
        outcome = Result.GENERIC_STATUS_FAILURE if code else Result.GENERIC_STATUS_SUCCESS
        await self.end(Result(status=outcome, exitcode=code))

    async def _follow_clock(self) -> None:
        lifetime_s = self.definition.timeout_secs
        idle_s = self.definition.idle_timeout_secs
        while True:
            now = time.monotonic()
            if any(c.is_running for c in self.commands.values() if c is not self.entrypoint):
                self._active_at = now
            if lifetime_s and time.time() - self.created >= lifetime_s:
                await self.end(LIFETIME_OVER)
            elif idle_s and now - self._active_at >= idle_s:
                await self.end(IDLE)
            elif not self.enclosure.is_alive() and not self.lost:
                await self.end(WORKER_LOST)
            else:
                await asyncio.sleep(CLOCK_S)
                continue
            return

    @property
    def visible_result(self) -> Any:
        """The result as `poll` and `wait` report it; None before they do."""
        late = time.monotonic() - self._ended_at >= self.conduct.result_lag_s
        return self.result if self.result is not None and late else None

    async def wait_visible(self, timeout_s: float) -> Any:
        """`visible_result`, as soon as there is one or after `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        while self.visible_result is None and (left := deadline - time.monotonic()) > 0:
            if self.result is None:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.ended.wait(), left)
            else:
                await asyncio.sleep(min(0.05, left))
        return self.visible_result

    async def end(self, result: Any) -> None:
        """End the sandbox, once.

        The work belongs to the box: a client that hangs up does not stop it.
        """
        if self._ending is None:
            self._ending = asyncio.create_task(self._end(result))
        await asyncio.shield(self._ending)

    async def _end(self, result: Any) -> None:
        await self.enclosure.stop()
        waiting = [command.done.wait() for command in self.commands.values()]
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*waiting), 5)
        # Before the result is seen: who has seen the end finds what was committed by it.
        await self.settle()
        self.result = result
        self._ended_at = time.monotonic()
        self.ended.set()
        await asyncio.to_thread(self.enclosure.remove)
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()
        await asyncio.gather(
            *(task for task in self._tasks if task is not current), return_exceptions=True
        )

    async def lose_worker(self) -> None:
        """Kill everything inside while the control plane still lists the sandbox as running."""
        self.lost = True  # first: the clock would see the death and report it as an end
        if self.worker is not None:
            self.worker.close()
        self.connections.abort()
        await self.enclosure.stop()

    def is_up(self) -> bool:
        """Whether it accepts commands."""
        return self.result is None and self._ending is None
