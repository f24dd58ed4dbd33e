"""The Modal backend: slots in Modal sandboxes, through the public `modal` SDK.

    backend.py   `SandboxBackend` on top of the rest       profiles.py  what a sandbox is made of
    pool.py      sandboxes of one profile, up and down     account.py   the SDK: app, images, lists
    box.py       one sandbox and the slots in it           process.py   one command through the SDK
    assets.py    directories built once, then mounted      failures.py  the SDK's errors as ours
    factory.py   sandboxes made, told of and ended         files.py     a slot's files
    commands.py  commands and files of leased slots
    slot.sh      the other end, inside the sandbox

The SDK is imported when a backend starts, never with this package.
"""

from hermes_queue.sandbox.modal.backend import ModalBackend

BACKEND = ModalBackend
