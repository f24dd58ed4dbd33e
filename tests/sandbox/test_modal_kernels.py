"""What a Modal sandbox's kernel and root's rights inside allow, and what is done without."""

from __future__ import annotations

import asyncio
import os

import pytest
from modal_slots import acquire, answer, out

from hermes_queue.errors import SandboxError, SlotLost
from hermes_queue.sandbox.base import ExecutionRequest
from hermes_queue.sandbox.host import cgroups

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root may map a range of uids everywhere"
)
STUBBORN = (
    "trap '' TERM INT HUP; setsid --fork sleep 4243; (setsid sh -c 'sleep 4243 & sleep 4243' &); "
    "env -i setsid --wait sleep 4243"
)
COUNT = "pgrep -u $(id -u) -fc '[s]leep 4243' || true"


@pytest.mark.parametrize("capabilities", ["wide", "docker"])
async def test_a_timeout_kills_what_only_its_command_began(
    start_modal, server_variant, capabilities
):
    server_variant(capabilities=capabilities)
    backend = await start_modal(slots=2)
    slot, neighbour = await acquire(backend, 2)
    await out(backend, neighbour, "sleep 4243 & true")
    other = ExecutionRequest(slot, "while ! [ -e done ]; do sleep 0.05; done; echo whole")
    stuck = ExecutionRequest(slot, STUBBORN, timeout_s=1)
    running = asyncio.create_task(backend.execute_batch([other]))
    [killed] = await backend.execute_batch([stuck])
    assert killed.timed_out
    assert await out(backend, slot, f"{COUNT}; touch done") == "0"
    [whole] = await running
    assert whole.stdout == b"whole\n"
    assert await out(backend, neighbour, COUNT) == "1"


@pytest.mark.fleet
async def test_a_tree_whose_end_cannot_be_confirmed_is_a_failure(start_modal, monkeypatch):
    backend = await start_modal(slots=1)
    [slot] = await acquire(backend)
    found = backend._held[slot.slot_id].box
    broken = "sed -i 's/kill -KILL/true -KILL/; s/{1..500}/1/' /.hq/slot.sh && echo done"
    process = await found.sandbox.exec.aio("bash", "-c", broken)
    assert await process.stdout.read.aio() == "done\n"
    result = await answer(backend, slot, "setsid --fork sleep 4243; sleep 4243", timeout_s=0.5)
    assert isinstance(result, SandboxError)
    assert "are left" in str(result)


async def test_a_kill_for_want_of_memory_in_a_shared_sandbox_is_a_failure(start_modal):
    if not cgroups.available():
        pytest.skip("no control group may be made here")
    limits = {"memory_mb": 128, "memory_limit_mb": 160, "slot_memory_mb": 0}
    backend = await start_modal(slots=2, slots_per_sandbox=2, **limits)
    [slot] = await acquire(backend)
    result = await answer(backend, slot, "exec python3 -c 'bytearray(400 << 20)'")
    assert isinstance(result, SandboxError)
    if not isinstance(result, SlotLost):  # as in gVisor, where the whole sandbox is killed
        assert "out of memory" in str(result)
        assert (await answer(backend, slot, "exit 137")).exit_code == 137


async def test_a_command_killed_with_what_waits_for_it_is_a_failure(start_modal):
    backend = await start_modal(slots=1, share_root=True)
    [slot] = await acquire(backend)
    found = backend._held[slot.slot_id].box
    running = asyncio.create_task(answer(backend, slot, "touch begun; sleep 4243"))
    while (await answer(backend, slot, "test -e begun")).exit_code:
        await asyncio.sleep(0.02)
    process = await found.sandbox.exec.aio("pkill", "-9", "-f", "slot.sh (run|inside)")
    await process.wait.aio()
    result = await running
    assert isinstance(result, SandboxError)
    assert "its wrapper" in str(result)


async def test_a_command_cannot_take_the_mark_of_its_end_from_its_output(start_modal):
    backend = await start_modal(slots=1)
    [slot] = await acquire(backend)
    steal = "exec 6>&2; for fd in 1 6; do (exec 5</proc/self/fd/$fd) 2>/dev/null && echo open; done"
    assert await out(backend, slot, f"{steal}; true") == ""
