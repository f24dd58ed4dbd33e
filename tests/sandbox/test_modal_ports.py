"""Ports in Modal slots: the relay in the sandbox, and the service between it and the worker."""

from __future__ import annotations

import asyncio
from functools import partial
from types import SimpleNamespace

import pytest
from modal_slots import answer, out

from hermes_queue.errors import SandboxRejected, SlotLost
from hermes_queue.sandbox.base import SlotSpec
from hermes_queue.sandbox.listening import relay
from hermes_queue.sandbox.modal import process, wire
from hermes_queue.sandbox.modal.box import Lease, ModalSandbox
from hermes_queue.settings import ModalSettings

RELAYS = "[R]elayServer"
"""Pattern of the relay's command line, which has its text."""


@pytest.fixture
def start(start_modal):
    return partial(start_modal, slots=2)


class Greeter(asyncio.Protocol):
    """Greets whoever connects."""

    def connection_made(self, transport):
        transport.write(b"hello\n")


async def greeting(backend, slot, port: int) -> str:
    """What a connection from the slot receives."""
    return await out(backend, slot, f"exec 3<>/dev/tcp/127.0.0.1/{port} && head -n 1 <&3")


async def as_root(backend, slot, *argv: str) -> str:
    """Output of a command of the sandbox's root."""
    command = await backend._held[slot.slot_id].box.sandbox.exec.aio(*argv)
    return (await command.stdout.read.aio()).strip()


async def why(listening):
    return await asyncio.wait_for(asyncio.shield(listening.lost), 60)


async def test_a_killed_relay_is_started_once_more_on_its_port(start, caplog):
    backend = await start()
    slot = await backend.acquire("t", SlotSpec())
    listening = await backend.listen(slot, Greeter)
    first = listening._relay
    await as_root(backend, slot, "pkill", "-KILL", "-f", RELAYS)
    while listening._relay is first:
        await asyncio.sleep(0.02)
    assert await greeting(backend, slot, listening.port) == "hello"
    assert not listening.lost.done()
    await as_root(backend, slot, "pkill", "-KILL", "-f", RELAYS)
    assert isinstance(await why(listening), SlotLost)
    assert backend._held[slot.slot_id].box.spent
    assert "relay_lost" in [getattr(record, "action", "") for record in caplog.records]


@pytest.mark.rights
async def test_a_slot_cannot_signal_its_relay_and_none_is_left_after_its_release(start):
    backend = await start()
    slot, other = [await backend.acquire(name, SlotSpec()) for name in "ab"]
    listening = await backend.listen(slot, Greeter)
    shared = backend.capabilities.isolation
    await answer(backend, slot, f"pkill -KILL -f '{RELAYS}'; kill -9 -1")
    if shared:
        assert await greeting(backend, slot, listening.port) == "hello"
    await backend.release(slot)
    assert isinstance(await why(listening), SlotLost)
    assert await as_root(backend, other, "pgrep", "-f", RELAYS) == ""


@pytest.mark.exhaustive
async def test_a_service_that_is_away_for_a_moment_loses_no_connection(start, localmodal):
    backend = await start()
    slot = await backend.acquire("t", SlotSpec())
    listening = await backend.listen(slot, Greeter)
    for call in ("TaskExecStdioRead", "TaskExecStdinWrite", "TaskExecStdinWriteStream"):
        localmodal.faults.inject(call, status="UNAVAILABLE")
    assert await greeting(backend, slot, listening.port) == "hello"
    assert not listening.lost.done()


@pytest.mark.exhaustive
async def test_a_machine_that_dies_is_a_lost_slot(start, localmodal, monkeypatch):
    monkeypatch.setattr(process, "START_S", 0.5)
    monkeypatch.setattr(relay, "BEAT_S", 0.1)
    monkeypatch.setattr(relay, "SILENT_S", 0.5)
    monkeypatch.setattr(wire, "EOF_S", 0.5)
    backend = await start()
    slot = await backend.acquire("t", SlotSpec())
    listening = await backend.listen(slot, Greeter)
    localmodal.lose_worker(slot.sandbox_id)
    assert isinstance(await why(listening), SlotLost)


async def test_an_image_without_python_is_refused_with_what_it_lacks():
    box = ModalSandbox(SimpleNamespace(object_id="sb-1"), ModalSettings(image="alpine"))
    with pytest.raises(SandboxRejected, match="image alpine has no python3"):
        await box.listen(Lease("slot", "name", 20_000, "/workspace", "/workspace"), Greeter)


@pytest.mark.exhaustive
async def test_a_cancelled_start_leaves_no_relay(start):
    backend = await start()
    slot = await backend.acquire("t", SlotSpec())
    for pause_s in (0.0, 0.01, 0.05):
        opening = asyncio.create_task(backend.listen(slot, Greeter))
        await asyncio.sleep(pause_s)
        opening.cancel()
        await asyncio.wait([opening])
        if not opening.cancelled():
            await opening.result().close()
    while await as_root(backend, slot, "pgrep", "-f", RELAYS):
        await asyncio.sleep(0.05)
