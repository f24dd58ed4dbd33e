"""Commands and trajectories in Modal sandboxes, on a Modal-compatible server on this machine.

A command that does nothing, by a bare subprocess, by the bare SDK as its documentation shows it
(`sandbox.exec`, both streams, `wait`), and through our backend. A trajectory of four commands: ours
in slots that are used again, the other side in a sandbox each. CPU time is that of this process, of
the server, and of all commands; the network, and the time that Modal takes to start a sandbox, come
on top.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measuring import Cases, Part, Side, Turn, metered
from benchmarks.parts.commands import bare, commands, in_slot
from benchmarks.processes import QUIET, process
from hermes_queue.sandbox.base import SlotSpec
from hermes_queue.settings import ModalSettings

SUPPORT = Path(__file__).parents[2] / "tests/support"
COMMANDS, TRAJECTORIES = 100, 12
AT_ONCE = 4


@contextmanager
def modal_server() -> Iterator[int]:
    """Its pid; the SDK of this process and its children talks to it. Gone at the end."""
    command = [sys.executable, "-m", "localmodal", "--worker-ports", "--root"]
    with tempfile.TemporaryDirectory(prefix="hq-bench-modal-") as directory:
        Path(directory).chmod(0o755)
        environment = {**os.environ, "PYTHONPATH": str(SUPPORT)}
        started = process(
            [*command, directory], stdout=subprocess.PIPE, stderr=QUIET, env=environment
        )
        with started as server:
            assert server.stdout
            for _ in range(3):
                name, given, value = server.stdout.readline().partition("=")
                if not given:
                    raise RuntimeError("the Modal-compatible server does not start here")
                os.environ[name.removeprefix("export ")] = value.strip()
            yield server.pid


@asynccontextmanager
async def backend(slots: int, **settings: Any) -> Any:
    """A started backend."""
    from hermes_queue.sandbox.modal.backend import ModalBackend

    section = ModalSettings(**{"creates_per_s": 1e6, "max_starting": 10**6, **settings})
    with tempfile.TemporaryDirectory(prefix="hq-bench-") as cache:
        made = ModalBackend(section, slots=slots, cache=Path(cache))
        await made.start()
        try:
            yield made
        finally:
            await made.stop()


async def through_sdk(sandbox: Any) -> None:
    """As the SDK's documentation shows it."""
    process = await sandbox.exec.aio("/bin/bash", "-c", "true", timeout=120, text=False)
    _, _, code = await asyncio.gather(
        process.stdout.read.aio(), process.stderr.read.aio(), process.wait.aio()
    )
    if code:
        raise RuntimeError(f"exit code {code}")


async def trajectory(made: Any, *, own_sandbox: bool) -> None:
    """Lease, work, renew, verify, release; with `own_sandbox` the sandbox ends with it."""
    slot = await made.acquire("t", SlotSpec())
    for command in ("true", *["echo x >>file; cat file"] * 2):
        await in_slot(made, slot, command)
    slot = await made.renew(slot)
    await in_slot(made, slot)
    if own_sandbox:
        await made.terminate(slot.sandbox_id)
    await made.release(slot)


def trajectories(runner: asyncio.Runner, server: int, count: int, own_sandbox: bool) -> Turn:
    """So many in a new backend, `AT_ONCE` at a time."""

    async def many(made: Any) -> None:
        for _ in range(count // AT_ONCE):
            await trajectory(made, own_sandbox=own_sandbox)

    async def measured() -> Turn:
        per_sandbox = 1 if own_sandbox else 10
        async with backend(AT_ONCE, slots_per_sandbox=per_sandbox) as made:
            with metered(server=server) as meter:
                await asyncio.gather(*(many(made) for _ in range(AT_ONCE)))
        return meter.turn(count // AT_ONCE * AT_ONCE)

    return runner.run(measured())


@contextmanager
def cases(scale: float) -> Iterator[Cases]:
    """See the module."""
    logging.getLogger("hermes_queue").setLevel(logging.ERROR)  # sandboxes end under their slots
    with modal_server() as server, asyncio.Runner() as runner:
        import modal

        stack = AsyncExitStack()
        made = runner.run(stack.enter_async_context(backend(20, slots_per_sandbox=10)))
        app = runner.run(modal.App.lookup.aio("bench", create_if_missing=True))
        image = modal.Image.debian_slim()
        box = runner.run(modal.Sandbox.create.aio(app=app, image=image, timeout=3600))
        slots = [runner.run(made.acquire(f"t{n}", SlotSpec())) for n in range(20)]
        kinds = {
            "bare subprocess": bare,
            "bare SDK": lambda _: through_sdk(box),
            "ours": lambda n: in_slot(made, slots[n % 20]),
        }
        found: dict[str, dict[str, Side | str]] = {
            "a command in series" if at_once == 1 else f"{at_once} commands at once": {
                name: partial(commands, runner, kind, at_once, int(COMMANDS * scale), server=server)
                for name, kind in kinds.items()
            }
            for at_once in (1, 50)
        }
        many = partial(trajectories, runner, server, max(AT_ONCE, int(TRAJECTORIES * scale)))
        found["a trajectory of 4 commands"] = {
            "a sandbox each": partial(many, True),
            "ours": partial(many, False),
        }
        yield found
        runner.run(box.terminate.aio())
        runner.run(stack.aclose())


PART = Part("unit", cases)
