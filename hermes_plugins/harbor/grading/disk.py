"""A disk of the host that is full: tests that cannot write fail like those of a wrong answer."""

from __future__ import annotations

from hermes_queue.errors import SandboxError
from hermes_queue.sandbox.archives import ROOT
from hermes_queue.sandbox.context import SlotContext

LEAST_FREE_MB = 64
"""With less, what was measured may be the disk's doing."""


async def check_disk(context: SlotContext) -> None:
    """To be asked after an answer that is not right, before it is taken for the agent's.

    An agent may have filled the disk only as far as its slot's limit, which the host must be able
    to give. An image without `df` says nothing.

    Raises:
        SandboxError: there is no room below the box, or the sandbox failed.
    """
    result = await context.run("exec df -Pk /", cwd="/", user=ROOT, timeout_s=60.0)
    *_, line = result.stdout.decode(errors="replace").splitlines() or [""]
    words = line.split()
    if result.ok and len(words) >= 6 and words[-3].isdecimal():
        free_mb = int(words[-3]) >> 10
        if free_mb < LEAST_FREE_MB:
            raise SandboxError(
                f"the disk below the slots has {free_mb} MB left, so nothing was measured: give "
                "them more room, or fewer megabytes to each slot"
            )
