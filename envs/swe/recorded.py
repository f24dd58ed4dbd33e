"""The agent's patch out of a record, for a regrade.

The record may be anybody's. So the patch is applied by git in the slot, where an agent could have
written the same, and `verify` takes the changes from there by all of its rules.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from envs.base import NotRecorded
from envs.swe.repository import DISK_TROUBLE
from envs.swe.workspace import GIT_ENV, Pinned, scratch_directory
from hermes_queue.errors import EnvBug, SandboxError
from hermes_queue.sandbox.context import SlotContext

APPLY_TIMEOUT_S = 180.0


def recorded_patch(report: Mapping[str, Any]) -> str:
    """The whole patch in a verifier's report.

    Raises:
        NotRecorded: there is none, or not all of it.
    """
    patch, size = report.get("patch"), report.get("patch_bytes")
    if not isinstance(patch, str) or not isinstance(size, int):
        raise NotRecorded("the report has no patch")
    # A byte that is no UTF-8 became a replacement character when it was recorded.
    if len(patch.encode(errors="replace")) != size or "\ufffd" in patch:
        raise NotRecorded("the report has the patch only in part, or altered")
    return patch


async def apply_recorded(context: SlotContext, pinned: Pinned, patch: bytes) -> None:
    """Apply `patch` to the agent's starting tree in the slot's workspace.

    Raises:
        EnvBug: it does not apply to that tree, or not to files.
        SandboxError: it does, but not in the slot.
    """
    async with pinned.scratch() as own:
        if await own.repository.apply(own.start, patch) is None:
            raise EnvBug(
                "the recorded patch does not apply to the task's starting tree: the row is "
                "another one than it was made for, or the record was altered"
            )
    try:
        scratch = await scratch_directory(context)
        await context.write_file(f"{scratch}/patch", patch)
    except OSError as error:
        raise SandboxError(f"the recorded patch could not be written: {error}") from error
    place = shlex.quote(scratch)
    script = f"git apply --whitespace=nowarn {place}/patch && rm -r {place}"
    result = await context.run(script, env=GIT_ENV, timeout_s=APPLY_TIMEOUT_S)
    if result.ok:
        return
    said = result.output[-300:]
    # At the end of a line: names from the patch stand before it.
    of_disk = any(line.endswith(DISK_TROUBLE) for line in result.output.splitlines())
    if result.exit_code in (1, 128) and not of_disk:
        # Git's own refusal, e.g. of a name that no file can have. Slots that fail pause a lane.
        raise EnvBug(f"the recorded patch cannot be applied to files: {said}")
    raise SandboxError(f"the recorded patch could not be applied: {said}")
