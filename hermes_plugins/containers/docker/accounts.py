"""Files that engines read whenever they start a program in a container, and that may be a trap.

Root of a slot can put a pipe in place of /etc/passwd. Whoever reads it waits for ever: the engine,
for a user that is named, with the container locked; else the runtime, in the container. The API
that copies files tells their types without opening them.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from typing import Any

from hermes_plugins.containers.images.client import EngineClient, is_ended, translated
from hermes_queue.errors import SandboxError

FILES = ("/etc/passwd", "/etc/group")
"""The engine mounts others beside them, so that their directory cannot be replaced."""
MAX_BYTES = 1 << 20
LOOK_S = 20.0
IS_LINK = 1 << 27
KINDS = IS_LINK | 1 << 31 | 1 << 26 | 1 << 25 | 1 << 24 | 1 << 21 | 1 << 19
"""Bits of all types but regular files, as Go writes them."""


async def trap_in(client: EngineClient, container: str) -> str:
    """Why programs cannot be trusted to start in a container; "" = its files are as they should be.

    Raises SlotLost: the container is gone; or SandboxError.
    """
    kinds = await asyncio.gather(*(_kind(client, container, path) for path in FILES))
    for path, found in zip(FILES, kinds, strict=True):
        if found is not None and found[0] & KINDS:
            return f"its {path} is no file"
        if found is not None and found[1] > MAX_BYTES:
            return f"its {path} is longer than 1 MiB"
    return ""


async def _kind(client: EngineClient, container: str, path: str) -> tuple[int, int] | None:
    """Type and size of what the path leads to; the link's if that is not there; None: nothing."""
    found = await _stat(client, container, path)
    if found is None or not found[0] & IS_LINK:
        return found and found[:2]
    target = await _stat(client, container, found[2]) if found[2] else None
    return (target or found)[:2]


async def _stat(client: EngineClient, container: str, path: str) -> tuple[int, int, str] | None:
    """Mode, size and what a link leads to, links along the path followed; None: not there."""
    with translated(f"looking at {path}", gone=True):
        try:
            text = await _described(client, container, path)
        except Exception as error:
            if getattr(error, "status", None) == 404 and not is_ended(str(error)):
                return None
            raise
    try:
        found: dict[str, Any] = json.loads(base64.b64decode(text))
        return int(found["mode"]), int(found["size"]), str(found.get("linkTarget") or "")
    except (binascii.Error, ValueError, KeyError, TypeError) as error:
        raise SandboxError(f"the engine describes {path} as {text[:200]!r}") from error


async def _described(client: EngineClient, container: str, path: str) -> str:
    """What the engine says of a path, without opening it."""
    place, params = f"containers/{container}/archive", {"path": path}
    try:
        async with client.request(place, "HEAD", params=params, timeout_s=LOOK_S) as response:
            return str(response.headers.get("X-Docker-Container-Path-Stat", ""))
    except ValueError:  # a refusal, whose reason is missing in an answer to HEAD
        async with client.request(place, params=params, timeout_s=LOOK_S) as response:
            return str(response.headers.get("X-Docker-Container-Path-Stat", ""))
