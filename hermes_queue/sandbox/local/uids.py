"""Host uids for the slots of a root worker: one each.

Resources that the kernel counts and keeps by uid (keys, memory of pipes, inotify instances, user
namespaces) are then separate for each slot.

    <cache>/uids/<first>    flocked while a worker uses the block that begins with this uid

Workers on one host with one cache take different blocks. The blocks of a dead worker are free
again: its processes have died with it, and no other slot sees its files. Workers that do not see
each other's locks (containers, different caches) begin at random blocks; if two have the same,
their slots share these counts and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections import deque
from pathlib import Path

from hermes_queue.disk.locks import try_hold
from hermes_queue.sandbox.host.paths import SLOT_UID, is_root, open_tree, shared_directory
from hermes_queue.sandbox.host.user_namespaces import is_mapped

logger = logging.getLogger(__name__)

BLOCK = 256


class SlotUids:
    """The uids of one backend's slots. Not for several threads; its methods hardly block."""

    def __init__(self, cache: Path, first: int, count: int) -> None:
        """Whole blocks of the uids `first` to `first + count - 1` are used."""
        self._root = cache / "uids"
        usable = is_root() and is_mapped(first, count)
        self._blocks = list(range(first, first + count - BLOCK + 1, BLOCK)) if usable else []
        self.is_shared = not self._blocks
        """Whether all slots run as one uid: `SLOT_UID`, or that of a worker without root."""
        self._free: deque[int] = deque()
        self._locks: list[int] = []
        self._opened: set[Path] = set()

    def take(self) -> int:
        """A uid that no other slot has, or `SLOT_UID` if none is left. Raises OSError."""
        if not self._free and self._blocks:
            self._lock_a_block()
        return self._free.popleft() if self._free else SLOT_UID

    def give_back(self, uid: int) -> None:
        """Return a uid that no process has any more. The one free for longest is taken next."""
        if uid != SLOT_UID and self._locks:
            self._free.append(uid)

    async def let_read(self, asset: Path) -> None:
        """Open an asset, which `SLOT_UID` has built, to the slots' uids. Raises OSError."""
        if not self.is_shared and asset not in self._opened:
            await asyncio.to_thread(open_tree, asset)
            self._opened.add(asset)

    def close(self) -> None:
        """Release all blocks to other workers; the slots must have ended. Idempotent."""
        self._free.clear()
        for lock in self._locks:
            os.close(lock)
        self._locks.clear()

    def _lock_a_block(self) -> None:
        shared_directory(self._root)
        start = random.randrange(len(self._blocks))  # noqa: S311 - spreads workers, no secret
        for first in (*self._blocks[start:], *self._blocks[:start]):
            lock = try_hold(self._root / str(first))
            if lock is None:
                continue
            self._locks.append(lock)
            self._free.extend(range(first, first + BLOCK))
            return
        logger.warning(
            "other slots of this host use all uids, so this one shares uid %s: "
            "raise HERMES_QUEUE_LOCAL_UIDS",
            SLOT_UID,
            extra={"action": "slot_uids_used_up"},
        )
