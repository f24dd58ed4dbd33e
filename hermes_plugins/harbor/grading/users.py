"""Users of the image, as whom tests run programs: an agent's lists must not make others of them.

Tests that give rights up name a user. A list in which this user is root would give them back.
"""

from __future__ import annotations

from collections.abc import Mapping

from hermes_queue.sandbox.archives import ROOT, FilesRefused
from hermes_queue.sandbox.context import SlotContext

LISTS = ("/etc/passwd", "/etc/group")
MAX_BYTES = 1 << 20
_PUT = "rm -rf -- {path} && cat >{path} && chmod 644 {path}"


async def read_list(context: SlotContext, path: str) -> str:
    """A list of users or groups; empty if there is none.

    Raises:
        FilesRefused: it has not a usual size.
        SandboxError: the sandbox failed.
    """
    command = f"head -c {MAX_BYTES} {path} 2>/dev/null; true"
    result = await context.run(command, cwd="/", user=ROOT, max_output_bytes=MAX_BYTES)
    if not result.ok or len(result.stdout) >= MAX_BYTES:
        raise FilesRefused(f"the box has no {path} of a usual size")
    return result.stdout.decode("utf-8", "surrogateescape")


async def read_lists(context: SlotContext) -> dict[str, str]:
    """Both, by path. Raises as `read_list`."""
    return {path: await read_list(context, path) for path in LISTS}


async def restore(context: SlotContext, image: Mapping[str, str]) -> list[str]:
    """Bring back those lists of the image by which a user of it is another one; their paths.

    Raises:
        FilesRefused: the box does not take them.
        SandboxError: the sandbox failed.
    """
    changed = changed_users(image, await read_lists(context))
    for path in changed:
        content = image[path].encode("utf-8", "surrogateescape")
        result = await context.run(_PUT.format(path=path), stdin=content, cwd="/", user=ROOT)
        if not result.ok:
            raise FilesRefused(f"{path} cannot be made anew: {result.output[-500:]}")
    return changed


def changed_users(image: Mapping[str, str], agents: Mapping[str, str]) -> list[str]:
    """Paths of the lists in which a name that the image has stands for another user or group."""
    return [path for path in agents if _stands_for_others(image[path], agents[path])]


def _stands_for_others(image: str, agents: str) -> bool:
    known, found = _by_name(image), _by_name(agents)
    return any(found[name] != meant for name, meant in known.items() if name in found)


def _by_name(text: str) -> dict[str, tuple[str, ...]]:
    """Ids by name; of root also its folder and shell. The first line of a name counts."""
    found: dict[str, tuple[str, ...]] = {}
    for line in text.splitlines():
        name, *fields = line.strip().split(":")
        ids = tuple(fields[1:3]) if len(fields) > 3 else tuple(fields[1:2])
        more = tuple(fields[4:]) if ids[:1] == ("0",) and len(fields) > 3 else ()
        found.setdefault(name, ids + more)
    return found
