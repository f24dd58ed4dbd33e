"""The Modal backend: slots in Modal sandboxes, through the public `modal` SDK.

    abilities.py    what an image and the kernel allow
    account.py      the SDK: app, images, lists
    assets.py       directories built once, then mounted
    backend.py      `SandboxBackend` on top of the rest
    box.py          one sandbox and the slots in it
    check.py        what `hermes-queue doctor` and producers look at
    commands.py     commands and files of leased slots
    factory.py      sandboxes made, noted and ended
    failures.py     the SDK's errors as ours
    pool.py         sandboxes of one profile
    process.py      one command through the SDK
    profiles.py     what a sandbox is made of
    slot.sh         the other end, inside the sandbox

The SDK is imported when a backend starts, never with this package.
"""

from hermes_queue.sandbox.fleet import BackendFactory
from hermes_queue.sandbox.modal.backend import ModalBackend
from hermes_queue.sandbox.modal.check import check, check_profile
from hermes_queue.sandbox.offers import Flag
from hermes_queue.settings import ModalSettings

__all__ = ["BACKEND", "FLAGS", "SETTINGS", "check", "check_profile"]

BACKEND: BackendFactory = ModalBackend
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
