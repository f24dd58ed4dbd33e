"""Checks of `read_file` and `write_file`; `hermes_queue.sandbox.files` passes them."""

from __future__ import annotations

import errno

from hermes_plugins.selfcheck.bench import Trial, check, expect, raising, same
from hermes_queue.sandbox.base import Slot


@check()
async def files_are_written_with_parents_and_read_back(bench: Trial, slot: Slot) -> None:
    """Make missing directories, take any name, keep every byte."""
    data = bytes(range(256)) * 5000
    path = f"{slot.workspace}/new dir/-x/'q\"/file"
    await bench.backend.write_file(slot, path, data)
    expect(await bench.backend.read_file(slot, path) == data, "other bytes came back")
    await bench.backend.write_file(slot, path, b"")
    same(await bench.backend.read_file(slot, path), b"")


@check()
async def replacing_a_file_keeps_its_mode(bench: Trial, slot: Slot) -> None:
    """Write into an existing file, so that a program stays executable."""
    await bench.out(slot, "echo old >tool; chmod 755 tool")
    await bench.backend.write_file(slot, f"{slot.workspace}/tool", b"new\n")
    same(await bench.out(slot, "find tool -printf '%m\\n'; cat tool"), "755\nnew")


@check(slots=1)
async def what_cannot_be_read_is_not_found(bench: Trial, slot: Slot) -> None:
    """Raise FileNotFoundError for paths that are missing, no regular file, or unreadable for the
    slot.
    """
    await bench.out(slot, "mkdir directory; ln -s nowhere dangling; mkfifo fifo")
    if await bench.out(slot, "id -u") != "0":  # Root can read everything.
        await bench.out(slot, "touch closed; chmod 000 closed")
    for name in ("missing", "directory", "dangling", "fifo", "closed", "a\0b"):
        with raising(FileNotFoundError, of=f"{name!r}:"):
            await bench.backend.read_file(slot, f"{slot.workspace}/{name}")


@check()
async def a_file_over_the_limit_is_refused(bench: Trial, slot: Slot) -> None:
    """Raise OSError with errno EFBIG for more than `max_bytes`; read a file of exactly that
    size.
    """
    await bench.out(slot, "head -c 1000 /dev/zero >big")
    path = f"{slot.workspace}/big"
    same(len(await bench.backend.read_file(slot, path, max_bytes=1000)), 1000, "bytes read")
    with raising(OSError, "999 bytes") as caught:
        await bench.backend.read_file(slot, path, max_bytes=999)
    same(caught[0].errno, errno.EFBIG, "errno")


@check()
async def a_link_is_read_with_the_slots_own_rights(bench: Trial, slot: Slot) -> None:
    """Follow links as a process of the slot would, and no further."""
    await bench.out(slot, "echo text >file; ln -s file link")
    same(await bench.backend.read_file(slot, f"{slot.workspace}/link"), b"text\n")


@check()
async def writing_where_the_slot_may_not_is_an_os_error(bench: Trial, slot: Slot) -> None:
    """Raise OSError, with a reason, where the slot itself could not write."""
    await bench.out(slot, "touch file")
    for path in (f"{slot.workspace}", f"{slot.workspace}/file/below", "/proc/nope"):
        with raising(OSError, ".", of=f"{path}:"):
            await bench.backend.write_file(slot, path, b"x")
