"""Images mounted in running sandboxes: read-only, and without a copy."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import subprocess
from pathlib import Path
from typing import Any

from grpclib import GRPCError, Status
from localmodal.enclosure import Enclosure

from hermes_plugins.images.rootfs.fence import boot_command
from hermes_plugins.images.rootfs.slot import HeldImage
from hermes_plugins.images.steps import Rootfs
from hermes_queue.errors import SandboxError
from hermes_queue.images.spec import ImageConfig
from hermes_queue.sandbox.host.execution import memory_file
from hermes_queue.sandbox.host.paths import slot_directory

TIMEOUT_S = 60.0


async def mount(enclosure: Enclosure, image: HeldImage, path: str) -> None:
    """Mount an image at the absolute `path` inside, which is made if it is missing.

    Raises GRPCError: something else is there.
    """
    path = path.rstrip("/")
    if path in enclosure.images or not path.startswith("/"):
        raise GRPCError(Status.FAILED_PRECONDITION, f"an image is mounted at {path} already")
    enclosure.images[path] = image.hold()
    place = enclosure.directory / f"mount-{secrets.token_hex(6)}"
    request = {"place": str(place), "layers": list(map(str, image.rootfs.layers)), "upper": None}
    try:
        await asyncio.to_thread(slot_directory, place, 0o700, owner=enclosure.host.ids.host_id)
        await asyncio.to_thread(_run, enclosure, request, path)
    except BaseException:
        enclosure.images.pop(path).release()
        raise


async def mount_files(enclosure: Enclosure, files: Path, path: str) -> None:
    """As `mount`, with the tree of a snapshot."""
    tree = Rootfs((files,), ImageConfig(), files.name, files.name)
    await mount(enclosure, HeldImage(tree, lambda: None), path)


async def unmount(enclosure: Enclosure, path: str) -> None:
    """Undo `mount`. Raises GRPCError."""
    path = path.rstrip("/")
    await asyncio.to_thread(_run, enclosure, {"layers": []}, path)
    enclosure.images.pop(path).release()


def _run(enclosure: Enclosure, request: dict[str, Any], path: str) -> None:
    ids = enclosure.host.ids
    try:
        with enclosure.bubblewrap().files() as (outer, mounts):
            whole = {
                **request,
                "uid": ids.host_id if ids.drop else -1,
                "outer": outer,
                "into": mounts,
                "target": path,
                "points": [],
                "binds": [],
            }
            file = memory_file(json.dumps(whole).encode())
            try:
                done = subprocess.run(
                    boot_command(file),
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"},
                    pass_fds=(file, outer, mounts),
                    timeout=TIMEOUT_S,
                    check=False,
                )
            finally:
                os.close(file)
    except (OSError, SandboxError, subprocess.SubprocessError) as error:
        raise GRPCError(Status.FAILED_PRECONDITION, f"{path}: {error}") from error
    if done.returncode:
        why = done.stderr.decode(errors="replace").strip()[-300:]
        raise GRPCError(Status.FAILED_PRECONDITION, f"{path}: {why or done.returncode}")
