"""Where paths of a box lead, for as many as an agent can make: one process for all of them."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from hermes_queue.sandbox.archives import ROOT, FilesRefused
from hermes_queue.sandbox.context import SlotContext

MAX_PATHS_BYTES = 64 << 20
TIMEOUT_S = 300.0


def each_path(commands: str) -> str:
    """A script that runs commands of a shell for each `$path` on its stdin.

    A shell's own `read` would ask the kernel for each single byte of them.

    Args:
        commands: without single quotes.
    """
    return f"xargs -0 -r sh -c 'for path; do {commands}; done' sh"


_LINKS = each_path('[ ! -L "$path" ] || printf "%s\\0" "$path"')
_RESOLVED = each_path(
    'case $path in MARK) printf "%s\\0" "$path" ;; '
    '*) printf "%s\\0" "$(readlink -f -- "$path" 2>/dev/null)" ;; esac'
)
_RESOLVE = f"""\
if readlink -mz -- / >/dev/null 2>&1; then
  xargs -0 -r readlink -mz -- 2>/dev/null; true
else
  {_RESOLVED}
fi
"""
_EXISTING = each_path('[ ! -e "$path" ] || printf "%s\\0" "$path"')
_DELETE = "exec xargs -0 -r rm -f --"


async def links_among(context: SlotContext, paths: Sequence[str]) -> list[str]:
    """Those of the paths that are links. Raises FilesRefused: too many; SandboxError."""
    return await listed(context, _LINKS, paths)


async def existing(context: SlotContext, paths: Sequence[str]) -> list[str]:
    """Those of the paths at which something is. Raises FilesRefused: too many; SandboxError."""
    return await listed(context, _EXISTING, paths)


async def resolved(context: SlotContext, paths: Sequence[str]) -> list[str]:
    """Where each of the paths leads, in their order; "" for one that leads in a circle.

    Raises:
        FilesRefused: there are more of them than can be looked at.
        SandboxError: the sandbox failed.
    """
    # What leads in a circle is left out of the answer: marks tell which one that was.
    mark = f"/{secrets.token_hex(16)}"
    marked = [each for path in paths for each in (mark, path)]
    answer = await listed(context, _RESOLVE.replace("MARK", mark), marked)
    found: list[str] = []
    for each in answer:
        if each == mark:
            found.append("")
        elif found:
            found[-1] = each
    if len(found) != len(paths):
        raise FilesRefused(f"the box resolves {len(found)} of {len(paths)} paths")
    return found


async def delete(context: SlotContext, paths: Sequence[str]) -> None:
    """Remove files and links. Raises FilesRefused: one cannot be removed; SandboxError."""
    await listed(context, _DELETE, paths)


async def listed(context: SlotContext, script: str, paths: Sequence[str]) -> list[str]:
    """The paths that a script prints of those on its stdin, each ended by a zero byte.

    Raises:
        FilesRefused: it fails, or is not done with them in time.
        SandboxError: the sandbox failed.
    """
    if not paths:
        return []
    given = "\0".join([*paths, ""]).encode("utf-8", "surrogateescape")
    try:
        return await printed(context, script, given)
    except FilesRefused as error:
        raise FilesRefused(f"{len(paths)} paths cannot be looked at: {error}") from error


async def printed(context: SlotContext, script: str, stdin: bytes = b"") -> list[str]:
    """What a script prints in a box, each part ended by a zero byte. Raises as `listed`."""
    result = await context.run(
        script,
        stdin=stdin,
        cwd="/",
        user=ROOT,
        timeout_s=TIMEOUT_S,
        max_output_bytes=MAX_PATHS_BYTES,
    )
    if result.timed_out or result.truncated or not result.ok:
        why = f"no answer within {TIMEOUT_S:g} s" if result.timed_out else result.output[-300:]
        raise FilesRefused(why)
    return result.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]
