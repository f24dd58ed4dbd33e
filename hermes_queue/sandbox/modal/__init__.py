"""The Modal backend: slots in Modal sandboxes, through the public `modal` SDK.

    abilities.py    capabilities of an image and the kernel
    account.py      the SDK: app, images, lists
    assets.py       directories built once, then mounted
    backend.py      `SandboxBackend` for Modal: slots that share sandboxes
    box.py          one sandbox and the slots in it
    factory.py      makes, reports and ends sandboxes
    failures.py     translates the SDK's errors
    pool.py         sandboxes of one profile
    process.py      one command through the SDK
    profiles.py     descriptions of sandboxes
    wire.py         the relay of a slot's port as a command
    snapshots.py    copies of slots' files
    slot.sh         the script inside the sandbox

The SDK is imported when a backend starts, never with this package.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from hermes_queue.errors import SandboxError
from hermes_queue.sandbox.base import SandboxBackend
from hermes_queue.sandbox.fleet import BackendFactory
from hermes_queue.sandbox.offers import Condition, Flag
from hermes_queue.settings import ModalSettings

__all__ = ["BACKEND", "FLAGS", "SETTINGS", "check", "check_profile"]

ANSWER_S = 20.0
"""For the account's answer to `hermes-queue doctor`."""


# Imported on use: producers load this module before they print their help.
def _make(**options: Any) -> SandboxBackend:
    from hermes_queue.sandbox.modal.backend import ModalBackend

    return ModalBackend(**options)


async def check() -> AsyncIterator[Condition]:
    """See `Offer.check`. Makes no sandbox, which would bill."""
    import asyncio

    from hermes_queue.sandbox.modal.account import ModalAccount

    settings = ModalSettings()
    try:
        async with asyncio.timeout(ANSWER_S):
            await ModalAccount(settings).open()
    except TimeoutError as error:
        raise SandboxError(f"no answer within {ANSWER_S:.0f} s: check the network") from error
    yield Condition("sandbox.modal", f"the token works, app {settings.app!r} exists")


def check_profile(name: str) -> None:
    """See `Offer.check_profile`."""
    from hermes_queue.sandbox.modal.profiles import Profiles

    Profiles(ModalSettings())[name]


BACKEND: BackendFactory = _make
SETTINGS = ModalSettings
FLAGS = (
    Flag(
        "--modal-image",
        "HERMES_QUEUE_MODAL_IMAGE",
        "registry name (default: python:3.11)",
        metavar="IMAGE",
    ),
    Flag(
        "--modal-slots-per-sandbox",
        "HERMES_QUEUE_MODAL_SLOTS_PER_SANDBOX",
        "trajectories that share a sandbox (default: 10)",
        metavar="N",
        bounds=(1, 1000),
    ),
    Flag(
        "--modal-min-sandboxes",
        "HERMES_QUEUE_MODAL_MIN_SANDBOXES",
        "sandboxes kept running while the run lasts (default: 0)",
        metavar="N",
        bounds=(0, 1000),
    ),
)
