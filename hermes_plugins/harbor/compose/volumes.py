"""Volumes of a service: named ones live as long as the services, folders of the host are refused.

The format mounts folders of the host at the logs' places of the task's own box. These are made
there anyway; other services do not get them.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from hermes_queue.sandbox.services import ServiceVolume

LOGS_MARK = "/hermes-queue-logs"
"""Where the format's variables for folders of logs lead on the host; there is no such folder."""
_OF_ALL = re.compile(r"/|/(?:proc|sys|dev)(?:/.*)?")
"""Places that no container can have something else at."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_PROGRAMS = re.compile(r"/|/(?:usr|bin|sbin|lib\w*|etc|proc|sys|dev|logs|tests|solution)(?:/.*)?")
"""Places of a task's own box where volumes would hide what the agent has changed."""


@dataclass(slots=True)
class Mounted:
    """What a service mounts."""

    volumes: list[ServiceVolume] = field(default_factory=list)
    tmpfs: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def mounted(entries: tuple[Any, ...], *, place: str, is_main: bool) -> Mounted:
    """Read `volumes` of a service. Raises ValueError: an entry cannot be had; with the fix."""
    found = Mounted()
    for number, entry in enumerate(entries):
        where = f"{place}.volumes.{number}"
        table = _long(entry) if isinstance(entry, str) else entry
        if not isinstance(table, Mapping):
            raise ValueError(f"{where}: is neither a text nor a table")
        _add(found, table, where, is_main=is_main)
    return found


def _add(found: Mounted, table: Mapping[str, Any], where: str, *, is_main: bool) -> None:
    source, target = str(table.get("source") or ""), _target(table.get("target"), where)
    kind = table.get("type") or ("volume" if _NAME.fullmatch(source) or not source else "bind")
    if source.startswith(LOGS_MARK):
        if not is_main:
            found.notes.append(f"{where}: folders of logs are only in the task's own box")
    elif kind == "tmpfs":
        found.tmpfs.append(target)
    elif kind == "volume" and not source:
        found.notes.append(f"{where}: a volume without a name is a folder of the container here")
    elif kind == "volume" and _NAME.fullmatch(source):
        if is_main and _PROGRAMS.fullmatch(target):
            raise ValueError(f"{where}: the agent's box cannot have a volume at {target}: move it")
        found.volumes.append(ServiceVolume(source, target, table.get("read_only") is True))
    else:
        raise ValueError(
            f"{where}: folders and files of the host are not mounted: COPY them into an image, or "
            "use a named volume"
        )


def _long(entry: str) -> dict[str, Any]:
    """SOURCE:TARGET:OPTIONS as a table."""
    parts = entry.split(":")
    if len(parts) == 1:
        return {"target": parts[0]}
    options = parts[2].split(",") if len(parts) > 2 else []
    return {"source": parts[0], "target": parts[1], "read_only": "ro" in options}


def _target(value: Any, where: str) -> str:
    path = PurePosixPath(str(value or ""))
    if not path.is_absolute() or ".." in path.parts or "\0" in str(path):
        raise ValueError(f"{where}: {str(value)[:100]!r} is no absolute path in the container")
    target = posixpath.normpath(f"/{str(path).strip('/')}")
    if _OF_ALL.fullmatch(target):
        raise ValueError(f"{where}: nothing can be mounted at {target[:100]}: move it to a folder")
    return target


def temporary(entries: tuple[str, ...], place: str) -> tuple[str, ...]:
    """Paths of `tmpfs`, without options. Raises ValueError."""
    return tuple(_target(entry.partition(":")[0], f"{place}.tmpfs") for entry in entries)
