"""Slots on this host.

backend.py   `SandboxBackend` on top of the rest
slot.py      one slot: its commands and its files
fence.py     what keeps a slot in: namespaces, mounts, limits
unfenced.py  slots without any of that, for trusted agents
assets.py    directories built once, then mounted read-only
registry.py  which processes of this host hold which slots
uids.py      a user of its own for every slot
"""

from hermes_queue.sandbox.local.backend import LocalBackend

BACKEND = LocalBackend
