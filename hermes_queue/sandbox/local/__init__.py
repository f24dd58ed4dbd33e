"""Slots on this host.

backend.py     `SandboxBackend` for this host
leased.py      slots that run: commands, files, their end
host_check.py  facts about this host for `hermes-queue doctor`
slot.py        one slot: its commands and its end
fence.py       isolation of a slot: namespaces, mounts, limits
unfenced.py    slots without isolation, for trusted agents
assets.py      directories built once, then mounted read-only
snapshots.py   copies of slots' files
registry.py    the slots of this host, and their processes
uids.py        a separate user for every slot
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from hermes_queue.sandbox.base import SandboxBackend
from hermes_queue.sandbox.fleet import BackendFactory
from hermes_queue.sandbox.offers import Condition
from hermes_queue.sandbox.profiles import refuse_but_default as check_profile
from hermes_queue.settings import LocalSandboxSettings

__all__ = ["BACKEND", "SETTINGS", "check", "check_profile"]


# Imported on use: producers load this module before they print their help.
def _make(**options: Any) -> SandboxBackend:
    from hermes_queue.sandbox.local.backend import LocalBackend

    return LocalBackend(**options)


async def check() -> AsyncIterator[Condition]:
    """See `Offer.check`."""
    from hermes_queue.sandbox.local.host_check import conditions

    async for condition in conditions():
        yield condition


BACKEND: BackendFactory = _make
SETTINGS = LocalSandboxSettings
