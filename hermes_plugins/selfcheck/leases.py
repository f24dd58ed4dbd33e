"""Checks of leases: waiting, releasing, renewing, resizing, and ends of sandboxes and workers."""

from __future__ import annotations

import asyncio
import secrets
import subprocess

from hermes_plugins.selfcheck.bench import CheckFailed, Trial, check, expect, raising, same
from hermes_plugins.selfcheck.processes import COUNT
from hermes_queue.errors import SandboxError, SandboxRejected, SlotLost
from hermes_queue.sandbox.base import ExecutionResult, Slot, SlotSpec

LITTER = (
    'mkdir -p a/b; echo s >a/b/secret; touch .hidden ~/x ~/.bashrc "$TMPDIR/x"; '
    "mkdir closed; touch closed/x; chmod 000 closed; chmod 500 a/b; ln -s / link; "
    "setsid sleep 4242 & sleep 4242 & true"
)
LOOK = 'find . ~ "$TMPDIR" -mindepth 1; ' + COUNT
LOOK_IN_IMAGE = "ls -d a .hidden closed link ~/x /x /tmp/x 2>/dev/null; " + COUNT
"""An image has files of its own there."""


@check()
async def acquire_waits_for_a_free_slot(bench: Trial) -> None:
    """Let `acquire` wait while all slots are leased, and give each lease a new id."""
    first, _ = await bench.slot(), await bench.slot()
    same(bench.backend.free_slots, 0, "free_slots")
    waiting = asyncio.create_task(bench.slot())
    await asyncio.wait({waiting}, timeout=0.05)
    expect(not waiting.done(), "a third slot of two was leased")
    await bench.backend.release(first)
    third = await waiting
    expect(third.slot_id != first.slot_id, "a slot id was used again")
    same(bench.backend.free_slots, 0, "free_slots")


@check()
async def a_cancelled_acquire_takes_no_slot(bench: Trial) -> None:
    """Free the place of an `acquire` that is cancelled while it waits."""
    slots = [await bench.slot(), await bench.slot()]
    waiting = asyncio.create_task(bench.slot())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    for slot in slots:
        await bench.backend.release(slot)
    same(bench.backend.free_slots, 2, "free_slots")


@check()
async def resize_changes_how_many_slots_may_be_leased(bench: Trial) -> None:
    """Wake a waiting `acquire` if there are more slots; with fewer, leave leased ones alone and
    lease no more until enough of them are released.
    """
    held = [await bench.slot(), await bench.slot()]
    waiting = asyncio.create_task(bench.slot())
    await asyncio.wait({waiting}, timeout=0.05)
    bench.backend.resize(3)
    held.append(await waiting)
    same(bench.backend.free_slots, 0, "free_slots after resize(3), with 3 leased")
    bench.backend.resize(1)
    same(await bench.out(held[2], "echo alive"), "alive")
    for slot in held:
        same(bench.backend.free_slots, 0, "free_slots after resize(1), with a slot leased")
        await bench.backend.release(slot)
    same(bench.backend.free_slots, 1, "free_slots after resize(1), with none leased")


@check()
async def releasing_twice_frees_one_slot(bench: Trial) -> None:
    """Ignore the second release of a slot."""
    slot, _ = await bench.slot(), await bench.slot()
    await bench.backend.release(slot)
    await bench.backend.release(slot)
    same(bench.backend.free_slots, 1, "free_slots")


@check()
async def a_released_slot_is_lost_in_place(bench: Trial) -> None:
    """Answer for an unleased slot with `SlotLost`: in place in a batch, so that its other commands
    are answered, and raised by the other methods.
    """
    gone, live = await bench.slot(), await bench.slot()
    await bench.backend.release(gone)
    dead, answer = await asyncio.gather(bench.answer(gone, "true"), bench.answer(live, "true"))
    expect(isinstance(dead, SlotLost), f"found {dead!r}")
    expect(isinstance(answer, ExecutionResult), f"found {answer!r}")
    with raising(SlotLost, of="read_file:"):
        await bench.backend.read_file(gone, "/etc/passwd")
    with raising(SlotLost, of="renew:"):
        await bench.backend.renew(gone)


@check()
async def a_terminated_sandbox_is_lost_in_place_and_replaced(bench: Trial, slot: Slot) -> None:
    """Answer with a SandboxError for slots whose sandbox was ended, and lease from a new one."""
    await bench.backend.terminate(slot.sandbox_id)
    answer = await bench.answer(slot, "true")
    expect(isinstance(answer, SandboxError), f"found {answer!r}")
    await bench.backend.release(slot)
    again = await bench.slot()
    same(await bench.out(again, "echo alive"), "alive")
    expect(again.sandbox_id != slot.sandbox_id, "the ended sandbox's id was used again")


@check(slots=1)
async def a_release_leaves_nothing(bench: Trial, slot: Slot) -> None:
    """Kill everything in a released slot, and delete all its files of any mode."""
    await bench.out(slot, LITTER)
    await bench.backend.release(slot)
    again = await bench.slot()
    look = LOOK if bench.subject.image is None else LOOK_IN_IMAGE
    same(await bench.out(again, look), "0", "files and processes left")
    same(bench.backend.free_slots, 0, "free_slots")


@check(slots=1)
async def renewing_leaves_nothing_but_the_lease(bench: Trial, slot: Slot) -> None:
    """Empty the slot like a release, keep the lease, and return a `Slot` with a new id; the old one
    is void.
    """
    await bench.out(slot, LITTER)
    again = await bench.backend.renew(slot)
    expect(again.slot_id != slot.slot_id, "the slot id was used again")
    same((again.trajectory_id, again.spec), (slot.trajectory_id, slot.spec))
    answer = await bench.answer(slot, "true")
    expect(isinstance(answer, SlotLost), f"the old slot answered {answer!r}")
    look = LOOK if bench.subject.image is None else LOOK_IN_IMAGE
    same(await bench.out(again, look), "0", "files and processes left")
    same(bench.backend.free_slots, 0, "free_slots")


@check()
async def stopping_ends_every_slot_and_may_be_repeated(bench: Trial, slot: Slot) -> None:
    """End all sandboxes in `stop`, ignore a second call, and work again after `start`."""
    await bench.out(slot, "sleep 4242 & true")
    await bench.backend.stop()
    await bench.backend.stop()
    answer = await bench.answer(slot, "true")
    expect(isinstance(answer, SandboxError), f"found {answer!r}")
    same(await bench.backend.list_sandboxes(bench.labels), [], "sandboxes after stop")
    await bench.backend.start()
    same(bench.backend.free_slots, 2, "free_slots")


@check()
async def a_profile_nobody_described_is_refused_with_those_there_are(bench: Trial) -> None:
    """Raise SandboxRejected for an unknown profile, with the known ones, from `prepare` and
    `acquire`; see `hermes_queue.sandbox.profiles` for backends with one kind of slot.
    """
    free = bench.backend.free_slots
    for lease in (bench.backend.prepare, lambda spec: bench.backend.acquire("t", spec)):
        with raising(SandboxRejected, "'gpu' is unknown .*known: default") as caught:
            await lease(SlotSpec(profile="gpu"))
        expect(caught[0].consequences.attempts is None, "the failure is marked as retryable")
    same(bench.backend.free_slots, free, "free_slots")


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
