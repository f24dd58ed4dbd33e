"""What a container has changed, as programs in it answer: Nomad has no request for that.

A file was added or changed if the kernel's time of its last change (ctime) is later than the
container's start; it was deleted if a fresh container of the image had it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from datetime import datetime

from hermes_plugins.containers.docker.changes import file_changes
from hermes_plugins.containers.host import ContainerHost
from hermes_plugins.images.containers.process import ContainerCommand, run_command
from hermes_plugins.images.containers.scripts import BASH
from hermes_queue.errors import SandboxError
from hermes_queue.sandbox.archives import FilesRefused
from hermes_queue.sandbox.commands.shell import script
from hermes_queue.sandbox.image_slots import FileChange, TooManyChanges

MAX_LIST_BYTES = 64 << 20
LIST_S = 120.0
CHANGED, ADDED, DELETED = 0, 1, 2
"""As engines number them, see `file_changes`."""


async def listing(host: ContainerHost, container: str) -> bytes:
    """All files of a container with their times.

    Raises:
        FilesRefused: it answers nothing: its image has no GNU find, or an agent has replaced it.
        TooManyChanges: its files have too many names.
        SandboxError: it could not answer.
    """
    argv = [*BASH, script(__package__, "files.sh"), "files"]
    command = ContainerCommand(argv, 2 * LIST_S, max_output_bytes=MAX_LIST_BYTES)
    result = (await run_command(host, container, command)).result
    if result.truncated:
        raise TooManyChanges(f"the names of all files have more than {MAX_LIST_BYTES >> 20} MiB")
    if result.timed_out or not result.stdout:
        failure = SandboxError if result.timed_out else FilesRefused
        why = result.stderr.decode("utf-8", "replace").strip()[-200:]
        raise failure(f"a slot does not list its files: {why or result.exit_code}")
    return result.stdout


def packed(files: bytes) -> bytes:
    """The names in a listing, to be kept."""
    return zlib.compress(b"\0".join(name for _, name in _entries(files)), 1)


def difference(files: bytes, before: bytes, started: float, most: int) -> list[FileChange]:
    """The changes since a container's start.

    Args:
        files: its listing.
        before: names in a fresh container of its image, packed.
        started: Unix time.
        most: of changes.

    Raises:
        TooManyChanges: there are more.
        FilesRefused: the listing is malformed.
    """
    known = set(zlib.decompress(before).split(b"\0"))
    missing, found = set(known), []
    for changed, name in _entries(files):
        missing.discard(name)
        if name not in known:
            found.append((name, ADDED))
        elif changed > started:
            found.append((name, CHANGED))
        if len(found) > most:
            break
    found += [(name, DELETED) for name in missing]
    if len(found) > most:
        raise TooManyChanges(f"more than {most} files were changed")
    listed = [
        {"Path": name.decode("utf-8", "surrogateescape"), "Kind": kind} for name, kind in found
    ]
    return file_changes(listed, most)


def _entries(files: bytes) -> Iterator[tuple[float, bytes]]:
    """Times and names, one at a time: a slot may have millions of files."""
    start = 0
    while (end := files.find(b"\0", start)) >= 0:
        when, _, name = files[start:end].partition(b" ")
        start = end + 1
        if name.startswith(b"/") and name != b"/":
            try:
                yield float(when), name
            except ValueError as error:
                raise FilesRefused(f"a slot lists its files as {when[:100]!r}") from error


def unix_time(text: str) -> float:
    """A time of an agent, which has nanoseconds; 0.0 = it is something else."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0
