"""Slots on this host.

backend.py   `SandboxBackend` on top of the rest
check.py     what `hermes-queue doctor` looks at
slot.py      one slot: its commands and its end
fence.py     what keeps a slot in: namespaces, mounts, limits
unfenced.py  slots without any of that, for trusted agents
assets.py    directories built once, then mounted read-only
registry.py  which processes of this host hold which slots
uids.py      a user of its own for every slot
"""

from hermes_queue.sandbox.fleet import BackendFactory
from hermes_queue.sandbox.local.backend import LocalBackend
from hermes_queue.sandbox.local.check import check
from hermes_queue.sandbox.profiles import refuse_but_default as check_profile
from hermes_queue.settings import LocalSandboxSettings

__all__ = ["BACKEND", "SETTINGS", "check", "check_profile"]

BACKEND: BackendFactory = LocalBackend
SETTINGS = LocalSandboxSettings
