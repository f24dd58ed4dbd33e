"""Root of a slot puts a trap in place of files that engines read to start its commands."""

from __future__ import annotations

import shlex

import pytest
from container_engines import BASE

from hermes_plugins.images.containers import box
from hermes_queue.errors import SlotKilled
from hermes_queue.images.spec import ImageSpec
from hermes_queue.sandbox.archives import FilesRefused
from hermes_queue.sandbox.base import ExecutionResult, SlotSpec

SPEC = SlotSpec(image=ImageSpec(BASE))
IN_MEMORY = "a link to where only the slot finds a pipe"
"""What is in memory is gone when a slot starts again."""
TRAPS = {
    "a pipe": "rm /etc/passwd; mkfifo /etc/passwd",
    "a pipe for groups": "rm /etc/group; mkfifo /etc/group",
    "a link to a pipe": "mkfifo /p; ln -sf /p /etc/passwd",
    IN_MEMORY: "mkfifo /dev/shm/p; ln -sf /dev/shm/p /etc/group",
    "a device without an end": "rm /etc/passwd; mknod /etc/passwd c 1 9",
    "a huge file": "truncate -s 1T /etc/passwd",
}


@pytest.mark.parametrize("trap", TRAPS)
async def test_a_command_for_a_named_user_is_the_end_of_the_slot_by_its_own_hand(bench, trap):
    slot = await bench.slot(SPEC)
    await bench.sh(slot, TRAPS[trap], timeout_s=60)
    assert isinstance(await bench.answer(slot, "true", user="1234:1234"), SlotKilled)
    await bench.backend.release(slot)
    assert await bench.out(await bench.slot(SPEC), "echo alive") == "alive"


@pytest.mark.parametrize("trap", [name for name in TRAPS if name != IN_MEMORY])
async def test_a_trapped_slot_does_not_start_again_and_is_made_anew(bench, trap):
    slot = await bench.slot(SPEC)
    await bench.sh(slot, TRAPS[trap], timeout_s=60)
    with pytest.raises(FilesRefused, match=r"no file|longer than"):
        await bench.backend.restart(slot)
    again = await bench.backend.renew(slot)
    assert await bench.out(again, "echo alive") == "alive"


async def test_a_command_of_root_ends_with_its_time_and_with_the_slot(bench):
    slot = await bench.slot(SPEC)
    await bench.sh(slot, TRAPS["a pipe"], timeout_s=60)
    answer = await bench.answer(slot, "true", timeout_s=2)
    assert isinstance(answer, SlotKilled), answer
    assert "/etc/passwd is no file" in str(answer)
    await bench.backend.release(slot)
    assert await bench.out(await bench.slot(SPEC), "echo alive") == "alive"


async def test_an_image_may_lack_users_or_link_to_them(bench):
    slot = await bench.slot(SPEC)
    await bench.out(slot, "rm /etc/group; mv /etc/passwd /srv; ln -s ../srv/passwd /etc/passwd")
    assert await bench.out(slot, "id -u", user="nobody") == "65534"
    again = await bench.backend.restart(slot)
    assert await bench.out(again, "id -u", user="1234:77") == "1234"


LIES = {
    "a false report": r"""printf '\0%s\0' "$HQ_SEAL" >&2; printf '\0%s\0nonsense\0' "$HQ_SEAL" """,
    "no end": "while :; do sleep 1000; done",
    "no end, and kills that kill nothing": (
        'case "$*" in *kill_marked*) exit 0;; esac; while :; do sleep 1000; done'
    ),
}
"""Of a shell that root has put in place of the slot's own."""


@pytest.mark.parametrize("lie", LIES)
async def test_a_command_that_the_slots_own_shell_spoils_has_failed(bench, lie, monkeypatch):
    monkeypatch.setattr(box, "KILL_S", 1.0)
    slot = await bench.slot(SPEC)
    text = shlex.quote(f"#!/usr/bin/own -p\n{LIES[lie]}\n")
    put = f"mv /usr/bin/bash /usr/bin/own; printf %s {text} >/new; chmod +x /new"
    await bench.sh(slot, f"{put}; mv /new /usr/bin/bash", timeout_s=60)
    answer = await bench.answer(slot, "true", timeout_s=1)
    assert isinstance(answer, ExecutionResult), answer
    assert not answer.ok
    again = await bench.backend.renew(slot)
    assert await bench.out(again, "echo alive") == "alive"
