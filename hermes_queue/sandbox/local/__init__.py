"""Slots on this host.

backend.py     `SandboxBackend` on top of the rest
host_check.py  facts about this host for `hermes-queue doctor`
slot.py        one slot: its commands and its end
fence.py       what keeps a slot in: namespaces, mounts, limits
unfenced.py    slots without any of that, for trusted agents
assets.py      directories built once, then mounted read-only
registry.py    which processes of this host hold which slots
uids.py        a user of its own for every slot
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

from hermes_queue.sandbox.base import SandboxBackend
from hermes_queue.sandbox.fleet import BackendFactory, Fleet
from hermes_queue.sandbox.offers import Condition
from hermes_queue.sandbox.profiles import refuse_but_default as check_profile
from hermes_queue.settings import LocalSandboxSettings

__all__ = ["BACKEND", "SETTINGS", "check", "check_profile"]


# Loaded when it is used: producers look into this module before they print their help.
def _make(
    *,
    slots: int | None = None,
    labels: Mapping[str, str] | None = None,
    fleet: Fleet | None = None,
) -> SandboxBackend:
    from hermes_queue.sandbox.local.backend import LocalBackend

    return LocalBackend(slots=slots, labels=labels, fleet=fleet)


async def check() -> AsyncIterator[Condition]:
    """See `Offer.check`."""
    from hermes_queue.sandbox.local.host_check import conditions

    async for condition in conditions():
        yield condition


BACKEND: BackendFactory = _make
SETTINGS = LocalSandboxSettings
