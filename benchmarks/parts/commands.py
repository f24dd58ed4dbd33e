"""A command (`true`) in a slot of the local sandbox, beside a bare `bash -c true`; and a port.

Bare is an asyncio subprocess with both outputs read. Ours is `execute_batch` of the local backend
with its default settings: namespaces, limits and end marks included. CPU time is that of all
processes, in the slots and here. Slots are opened before the time is taken. A port is opened by
`listen` and closed, beside a server of asyncio on this process's own loopback interface.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.measuring import Cases, Part, Turn, metered
from hermes_queue.errors import SandboxError
from hermes_queue.sandbox.base import LOOPBACK, ExecutionRequest, SandboxBackend, Slot, SlotSpec

COUNT = 160
AT_ONCE = 8
Run = Callable[[int], Awaitable[None]]
"""Run one command that does nothing; the number spreads them over slots."""


async def bare(_: int) -> None:
    """As a child of this process."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        "/bin/bash", "-c", "true", stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
    )
    await process.communicate()


async def bare_port(_: int) -> None:
    """Opened and closed, outside of any slot."""
    server = await asyncio.get_running_loop().create_server(asyncio.Protocol, LOOPBACK, 0)
    server.close()
    await server.wait_closed()


async def in_slot(backend: SandboxBackend, slot: Slot, command: str = "true") -> None:
    """Run a command that must succeed."""
    [result] = await backend.execute_batch([ExecutionRequest(slot, command)])
    if isinstance(result, SandboxError):
        raise result
    if not result.ok:
        raise RuntimeError(f"{command}: {result}")


def commands(runner: asyncio.Runner, run: Run, at_once: int, count: int, **pids: int) -> Turn:
    """So many commands, `at_once` at a time."""

    async def all_of_them() -> None:
        for _ in range(max(1, count // at_once)):
            await asyncio.gather(*map(run, range(at_once)))

    with metered(**pids) as meter:
        runner.run(all_of_them())
    return meter.turn(max(1, count // at_once) * at_once)


@contextmanager
def cases(scale: float) -> Iterator[Cases]:
    """One after the other, and several at once."""
    from hermes_queue.sandbox.local.backend import LocalBackend

    count = int(COUNT * scale)
    with tempfile.TemporaryDirectory(prefix="hq-bench-") as directory, asyncio.Runner() as runner:
        Path(directory).chmod(0o755)
        backend = LocalBackend(slots=AT_ONCE, cache=Path(directory))
        runner.run(backend.start())
        try:
            slots = [runner.run(backend.acquire(f"t{n}", SlotSpec())) for n in range(AT_ONCE)]

            async def ours(number: int) -> None:
                await in_slot(backend, slots[number])

            async def port(number: int) -> None:
                await (await backend.listen(slots[number], asyncio.Protocol)).close()

            yield {
                name: {
                    "bare bash": partial(commands, runner, bare, at_once, count),
                    "ours": partial(commands, runner, ours, at_once, count),
                }
                for name, at_once in (("in series", 1), (f"{AT_ONCE} at once", AT_ONCE))
            } | {
                "a port": {
                    "bare server": partial(commands, runner, bare_port, 1, count),
                    "ours": partial(commands, runner, port, 1, count),
                }
            }
        finally:
            runner.run(backend.stop())


PART = Part("command", cases)
