"""Snapshots of a sandbox's files, and mounting them in others.

Files leave and enter a running sandbox as tar streams: one end is a command inside it, the other
runs outside with the rights of the sandboxes' root. Neither follows a link made by the sandbox.
"""

from __future__ import annotations

import asyncio
import shlex
import tempfile
from typing import IO, Any

from grpclib import GRPCError, Status

from hermes_queue.errors import SandboxError
from localmodal.box import ServedSandbox
from localmodal.rooted.built import with_images
from localmodal.rooted.recipe import Image
from localmodal.storage.store import Store
from localmodal.wire import new_id

PACK = ("tar", "--create", "--numeric-owner", "--sparse", "--file=-")
UNPACK = ("tar", "--extract", "--numeric-owner", "--preserve-permissions", "--file=-")
UNDER = ".localmodal-under"
"""Suffix of the original that a mounted directory replaces."""


async def take(store: Store, box: ServedSandbox, path: str) -> str:
    """Store the files below `path` as an image; returns its id.

    Raises:
        GRPCError: NOT_FOUND if it is not a directory, FAILED_PRECONDITION if it cannot be read.
    """
    enclosure = box.enclosure
    if path == "/" and enclosure.is_rooted:
        return await _keep(store, enclosure)
    try:
        await box.run(["test", "-d", path])
    except GRPCError:
        raise GRPCError(Status.NOT_FOUND, f"no directory {path}") from None
    image_id = new_id("im", 22)
    target = store.host.owned_directory(store.host.directory / "images" / image_id, 0o755)
    with tempfile.TemporaryFile(dir=store.host.logs) as archive:
        await _pack(box, path, archive)
        archive.seek(0)
        try:
            await asyncio.to_thread(
                store.host.run, [*UNPACK, "-C", str(target)], stdin=archive.fileno()
            )
        except OSError as error:
            await asyncio.to_thread(store.host.remove, target)
            raise GRPCError(Status.INTERNAL, f"the snapshot failed: {error}") from error
    base = store.images.get(box.definition.image_id)  # its environment and directory stay
    commands = base.commands if base else ()
    store.images[image_id] = Image(image_id, commands=commands, files=target)
    return image_id


async def _keep(store: Store, enclosure: Any) -> str:
    """Store a sandbox's changes of its image as a layer on it; returns the image's id."""
    image_id = new_id("im", 22)
    layer = store.host.directory / "images" / image_id
    try:
        held = await store.builds.keep(enclosure.image, enclosure.place.upper, layer)
    except SandboxError as error:
        raise GRPCError(Status.INTERNAL, f"the snapshot failed: {error}") from error
    store.images[image_id] = Image(image_id, rootfs=held)
    return image_id


async def _pack(box: ServedSandbox, path: str, archive: IO[bytes]) -> None:
    base = path.rstrip("/") + "/"
    # Most mounts are on the file system of the sandbox's own files, so tar needs explicit
    # exclusions.
    mounts = [place for place in box.enclosure.mount_points if place.startswith(base)]
    left_out = [f"--exclude=./{place.removeprefix(base)}" for place in mounts]
    argv = [*PACK, "--anchored", "--no-wildcards", *left_out, "-C", path, "."]
    command = await box.spawn(new_id("pack"), argv)
    async for piece in command.logs[1].read(0):
        await asyncio.to_thread(archive.write, piece)
    await command.done.wait()
    # 1: a file changed while it was read, which is normal in a running sandbox.
    if command.status().get("code") not in {0, 1}:
        stderr = b"".join([piece async for piece in command.logs[2].read(0)])
        problem = stderr.decode(errors="replace").strip()[-300:]
        raise GRPCError(Status.FAILED_PRECONDITION, f"the snapshot failed: {problem}")


async def mount(store: Store, box: ServedSandbox, image: Image | None, path: str) -> None:
    """Put a snapshot's files at `path`; `unmount` restores what was there."""
    if image is not None and image.rootfs is not None:
        await with_images().mount(box.enclosure, image.rootfs, path)
        return
    if box.enclosure.is_rooted:  # its own programs may be anything
        if image is None or image.files is None:
            problem = f"localmodal mounts no empty directory in a built image, at {path}"
            raise GRPCError(Status.UNIMPLEMENTED, problem)
        await with_images().mount_files(box.enclosure, image.files, path)
        return
    place, under = shlex.quote(path.rstrip("/")), shlex.quote(path.rstrip("/") + UNDER)
    await box.run(
        ["sh", "-c", f"[ ! -e {under} ] && {{ [ ! -e {place} ] || mv {place} {under}; }} && "
         f"mkdir -p {place}"]
    )  # fmt: skip
    if image is None or image.files is None:
        return
    packed = await asyncio.to_thread(store.host.run, [*PACK, "-C", str(image.files), "."])
    await box.run([*UNPACK, "-C", path], stdin=packed)


async def unmount(box: ServedSandbox, path: str) -> None:
    """Undo `mount`."""
    if path.rstrip("/") in box.enclosure.images:
        await with_images().unmount(box.enclosure, path)
        return
    place, under = shlex.quote(path.rstrip("/")), shlex.quote(path.rstrip("/") + UNDER)
    await box.run(["sh", "-c", f"rm -rf {place} && {{ [ ! -e {under} ] || mv {under} {place}; }}"])
