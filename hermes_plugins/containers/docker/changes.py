"""What a container has changed, as an engine lists it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from hermes_queue.sandbox.image_slots import FileChange, TooManyChanges

KINDS: Mapping[int, Literal["added", "changed", "deleted"]] = {
    0: "changed",
    1: "added",
    2: "deleted",
}
OF_THE_ENGINE = (
    *("/dev", "/proc", "/sys", "/run/.containerenv", "/.dockerenv", "/etc/hostname"),
    *("/etc/hosts", "/etc/resolv.conf", "/etc/mtab", "/run/secrets"),
)
"""Files that the engine itself puts into every container."""


def file_changes(found: Sequence[Mapping[str, Any]], most: int) -> list[FileChange]:
    """Changes without directories that only hold others, and without the engine's own files."""
    if len(found) > most:
        raise TooManyChanges(f"more than {most} files were changed")
    kinds = {str(each["Path"]): KINDS.get(int(each["Kind"]), "changed") for each in found}
    parents = {path.rpartition("/")[0] for path in kinds}
    parents |= {path.rpartition("/")[0] for path in parents}
    # Podman leaves its own files out of the list, but not the directories that they are in.
    parents |= {path.rpartition("/")[0] for path in OF_THE_ENGINE}
    gone = {path for path, kind in kinds.items() if kind == "deleted"}
    kept = []
    for path in sorted(kinds):
        kind = kinds[path]
        if any(path == own or path.startswith(f"{own}/") for own in OF_THE_ENGINE):
            continue
        if kind == "changed" and path in parents:
            continue
        if kind == "deleted" and any(above in gone for above in _above(path)):
            continue
        kept.append(FileChange(path, kind))
    return kept


def _above(path: str) -> list[str]:
    parts = path.split("/")[1:-1]
    return ["/" + "/".join(parts[: count + 1]) for count in range(len(parts))]
