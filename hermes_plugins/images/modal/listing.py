"""In what a slot differs from its image, found without any program of the slot.

Modal has no such list. A snapshot of the slot and its image are mounted side by side in a sandbox
in which no agent has ever been, and are compared there, contents included: root of a slot could
give a changed file its old size and times.
"""

from __future__ import annotations

import asyncio
import functools
import time
from importlib import resources
from typing import Any, Literal, cast

from hermes_plugins.images.modal.compare import TOO_MANY
from hermes_plugins.images.modal.images import RootImage
from hermes_queue.cancellation import unbroken
from hermes_queue.errors import SandboxError, SandboxRejected
from hermes_queue.sandbox.archives import FilesRefused
from hermes_queue.sandbox.commands.deadline import NoAnswer
from hermes_queue.sandbox.image_slots import MAX_CHANGES, FileChange, TooManyChanges
from hermes_queue.sandbox.modal.box import ROOT, ModalSandbox
from hermes_queue.sandbox.modal.failures import explained
from hermes_queue.sandbox.modal.process import run_process

MAX_OUTPUT_BYTES = 80 << 20
TIMEOUT_S = 600.0
SEEN = f"{ROOT}/seen"


async def changes(reader: ModalSandbox, base: RootImage, snapshot: Any) -> list[FileChange]:
    """In what the snapshot differs from the image; `reader` is a sandbox without slots.

    Raises TooManyChanges; FilesRefused: not in time, though the reader answers; SandboxError;
    SandboxRejected: its image has no Python.
    """
    if not reader.abilities.python:
        raise SandboxRejected(
            f"image {reader.profile.image} has no python3, with which slots are compared with "
            "their images: the profile `default` needs one that has"
        )
    before = f"{SEEN}/{base.image_id}"
    after = f"{SEEN}/{snapshot.object_id}"
    await reader.mount(before, base.image)
    with explained("mounting a slot's files", gone=True):
        await reader.sandbox.mount_image.aio(after, snapshot)
    try:
        reader.idle_since = time.monotonic() + TIMEOUT_S  # it is not idle until then
        done = await run_process(
            reader.sandbox,
            ["python3", "-I", "-S", "-c", _program(), before, after, str(MAX_CHANGES)],
            timeout_s=TIMEOUT_S,
            max_output_bytes=MAX_OUTPUT_BYTES,
            whole=True,
        )
    except NoAnswer as error:
        await reader.touch()
        raise FilesRefused(f"a slot was not compared with its image in {TIMEOUT_S:g} s") from error
    finally:
        reader.idle_since = time.monotonic()
        with explained("unmounting a slot's files", gone=True):
            await unbroken(reader.sandbox.unmount_image.aio(after))
    if done.exit_code == TOO_MANY or done.truncated:
        raise TooManyChanges(
            f"the slot differs from its image in over {MAX_CHANGES} files, or very long names"
        )
    if done.exit_code != 0:
        why = done.stderr.decode("utf-8", "replace").strip()[-300:]
        raise SandboxError(f"a slot cannot be compared with its image: {why}")
    return await asyncio.to_thread(_parsed, done.stdout)


def _parsed(printed: bytes) -> list[FileChange]:
    words = printed.split(b"\0")[:-1]
    pairs = zip(words[::2], words[1::2], strict=True)
    found = [
        FileChange(
            path.decode(errors="surrogateescape"),
            cast(Literal["added", "changed", "deleted"], kind.decode()),
        )
        for kind, path in pairs
    ]
    return sorted(found, key=lambda change: change.path)


@functools.cache
def _program() -> str:
    return resources.files(__package__).joinpath("compare.py").read_text("utf-8")
