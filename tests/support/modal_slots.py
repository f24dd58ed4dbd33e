"""Slots of a Modal backend: leasing them, and commands in them."""

from __future__ import annotations

import asyncio
import secrets

from hermes_queue.errors import SandboxError
from hermes_queue.sandbox.base import AssetSpec, ExecutionRequest, SlotSpec


async def answer(backend, slot, command, **options):
    [found] = await backend.execute_batch([ExecutionRequest(slot, command, **options)])
    return found


async def out(backend, slot, command, **options):
    result = await answer(backend, slot, command, **options)
    assert not isinstance(result, SandboxError), result
    assert result.exit_code == 0, result
    return result.stdout.decode().rstrip("\n")


async def acquire(backend, count=1, **spec):
    slots = [backend.acquire(f"t{n}", SlotSpec(**spec)) for n in range(count)]
    return await asyncio.gather(*slots)


def age(localmodal, sandbox_id, *, life_s=0.0, idle_s=0.0):
    """Make a sandbox look older, and idle for longer, to the server by these seconds."""

    async def age():
        box = localmodal._background.server.store.box(sandbox_id)
        box.created -= life_s
        box._active_at -= idle_s

    localmodal._background.call(age())


def asset(script="echo text >file"):
    key = secrets.token_hex(8)
    return AssetSpec("test", key, script, f"/opt/assets/test-{key}")
