"""The Modal backend: slots in Modal sandboxes, through the public `modal` SDK.

    abilities.py    what an image and the kernel allow
    account.py      the SDK: app, images, lists
    assets.py       directories built once, then mounted
    backend.py      `SandboxBackend` on top of the rest
    box.py          one sandbox and the slots in it
    commands.py     commands and files of leased slots
    factory.py      sandboxes made, noted and ended
    failures.py     the SDK's errors as ours
    files.py        a slot's files
    inheritance.py  sandboxes of a dead worker, used on
    pool.py         sandboxes of one profile
    process.py      one command through the SDK
    profiles.py     what a sandbox is made of
    slot.sh         the other end, inside the sandbox

The SDK is imported when a backend starts, never with this package.
"""

from hermes_queue.sandbox.modal.backend import ModalBackend

BACKEND = ModalBackend
