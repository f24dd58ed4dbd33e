"""The Python interpreters of an image, found by their place and never by what an agent left."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Container
from dataclasses import dataclass

from hermes_plugins.harbor.grading.places import STANDARD_PATH
from hermes_queue.sandbox.archives import ROOT
from hermes_queue.sandbox.context import SlotContext

MAX_PYTHONS = 20
_NAME = re.compile(r"python(?:3(?:\.\d+)?)?")
_LIST = """\
for folder in {folders}; do
  for file in "$folder"/python*; do [ ! -x "$file" ] || printf '%s\\0' "$file"; done
done
"""
_ASK = """\
for file in {files}; do
  "$file" -I -c 'import sys; print("%d.%d" % sys.version_info[:2], sys.argv[1])' "$file" \\
    2>/dev/null </dev/null
done; true
"""


@dataclass(frozen=True, slots=True)
class Python:
    """One interpreter."""

    version: str
    """Such as "3.11"."""
    path: str


def search_path(context: SlotContext) -> str:
    """PATH as the image sets it."""
    config = context.slot.image_config
    return config.env.get("PATH", STANDARD_PATH) if config else STANDARD_PATH


async def find_pythons(context: SlotContext, agents: Container[str] = ()) -> list[Python]:
    """One interpreter for each version, first the one that a plain `python3` means.

    `agents`: paths that the agent has added or changed, which are not the image's.

    Raises:
        SandboxError: the sandbox failed.
    """
    folders = [each for each in dict.fromkeys(search_path(context).split(":")) if each[:1] == "/"]
    command = _LIST.format(folders=shlex.join(folders))
    result = await context.run(command, cwd="/", user=ROOT, timeout_s=60.0)
    listed = result.stdout.decode(errors="replace").split("\0")
    paths = [
        path for path in listed if path not in agents and _NAME.fullmatch(posixpath.basename(path))
    ]
    paths.sort(key=lambda path: posixpath.basename(path) not in ("python3", "python"))
    command = _ASK.format(files=shlex.join(paths[:MAX_PYTHONS]))
    result = await context.run(command, cwd="/", user=ROOT, timeout_s=60.0)
    found: dict[str, Python] = {}
    for line in result.stdout.decode(errors="replace").splitlines():
        version, _, path = line.partition(" ")
        if re.fullmatch(r"3\.\d+", version) and path in paths:
            found.setdefault(version, Python(version, path))
    return list(found.values())
