"""Checks of leftovers of dead workers."""

from __future__ import annotations

import asyncio
import secrets
import subprocess

from hermes_plugins.selfcheck.bench import CheckFailed, Trial, check, expect, same
from hermes_plugins.selfcheck.processes import COUNT


@check(slots=1)
async def a_killed_workers_sandbox_is_listed_and_can_be_terminated(bench: Trial) -> None:
    """List the sandboxes of killed workers, with their labels, and end each by its id, with
    everything in it: for the reaper, or for the next worker of the host.
    """
    worker = f"victim-{secrets.token_hex(6)}"
    # Our backend was started before: it does not reclaim anything by itself.
    sandbox_id = await asyncio.to_thread(_lease_and_die, *bench.victim(worker))
    listed = await bench.backend.list_sandboxes({"worker": worker})
    same([info.sandbox_id for info in listed], [sandbox_id], "sandboxes of the killed worker")
    labels = listed[0].labels
    expect({"deployment", "worker"} <= set(labels), f"its labels are {labels}")
    await bench.backend.terminate(sandbox_id)
    await bench.backend.terminate(sandbox_id)
    same(await bench.backend.list_sandboxes({"worker": worker}), [], "sandboxes after terminate")
    slot = await bench.slot()
    same(await bench.out(slot, COUNT), "0", "processes left")


def _lease_and_die(command: list[str], environment: dict[str, str]) -> str:
    """Id of the killed process's sandbox."""
    with subprocess.Popen(  # noqa: S603 - our own interpreter and module
        command, env=environment, stdout=subprocess.PIPE, text=True
    ) as victim:
        line = victim.stdout.readline() if victim.stdout else ""
        victim.kill()
    if not line:
        raise CheckFailed(f"a process that leases a slot ended with {victim.returncode}")
    return line.strip()
