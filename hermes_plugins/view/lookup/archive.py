"""Groups that were deleted from Redis: those of the run that an id names, frame by frame."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hermes_plugins.view.lookup.base import LookedUp, by_sample
from hermes_plugins.view.records.raw import UnreadableRecord, decode_raw
from hermes_plugins.view.sources.entries import decoded_fields, members_of
from hermes_plugins.view.sources.frames import frames, group_in
from hermes_queue.errors import ConfigurationError
from hermes_queue.results.archive import MAGIC, archived_runs, directory_of
from hermes_queue.wire.ids import group_of


class ArchivePlace:
    """An archive directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._groups = 0
        self._notes: list[str] = []

    @property
    def title(self) -> str:
        """See `LookupPlace`."""
        runs = len(self._runs())
        read = f", of which {self._groups} groups were read" if self._groups else ""
        return f"archive {self._directory} ({runs} runs{read})"

    def trajectory(self, name: str) -> LookedUp | None:
        """See `LookupPlace`."""
        found = self.group(group_of(name))
        own = [raw for raw in found.records if raw.get("trajectory_id") == name] if found else []
        return LookedUp(own[:1], False, found.where, found.notes) if found and own else None

    def group(self, name: str) -> LookedUp | None:
        """See `LookupPlace`."""
        self._groups = 0
        for run in self._runs():
            if name.startswith(f"{run}."):
                for path in sorted(directory_of(self._directory, run).glob("*.groups")):
                    found = self._in_file(path, name)
                    if found is not None:
                        return found
        return None

    def _runs(self) -> list[str]:
        try:
            return archived_runs(self._directory)
        except OSError as error:
            raise ConfigurationError(f"{self._directory}: {error.strerror}") from error

    def _in_file(self, path: Path, name: str) -> LookedUp | None:
        wanted = name.encode(errors="replace")
        for number, payload in enumerate(self._frames(path)):
            self._groups += 1
            if payload is None:
                self._notes.append(f"{path.name}: group {number} is damaged")
            elif wanted in payload and (found := self._unpacked(payload, name, path)) is not None:
                return found
        return None

    def _frames(self, path: Path) -> Iterator[bytes | None]:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            self._notes.append(f"{path.name}: cannot be read: {error.strerror}")
            return
        try:
            if os.pread(fd, len(MAGIC), 0) == MAGIC:
                for frame in frames(fd, len(MAGIC)):
                    yield frame.payload
        finally:
            os.close(fd)

    def _unpacked(self, payload: bytes, name: str, path: Path) -> LookedUp | None:
        group = group_in(payload)
        if group is None:
            return None
        fields, bodies = group
        known = decoded_fields(fields)
        if known.get("group_id") != name:
            return None
        notes = list(self._notes)
        records = unpacked(known, bodies, notes)
        return LookedUp(records, True, f"archive {path.parent.name}/{path.name}", notes)


def unpacked(fields: dict[str, str], bodies: dict[Any, Any], notes: list[str]) -> list[Any]:
    """The records of an entry's members and extras; `notes` gets why others are missing."""
    records = []
    for member in members_of(fields):
        body = bodies.get(member.name)
        if not isinstance(body, bytes):
            if not member.extra:
                notes.append(f"the body of {member.name} is gone")
            continue
        try:
            records.append(decode_raw(body))
        except UnreadableRecord as error:
            notes.append(f"{member.name}: {error}")
    return by_sample(records)
