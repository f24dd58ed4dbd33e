"""The archive: files of frames, of which each holds a group with its bodies."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hermes_plugins.view.records.location import Location
from hermes_plugins.view.records.raw import decode_raw
from hermes_plugins.view.sources.base import Batch, FoundRecord, Mark
from hermes_plugins.view.sources.entries import decoded_fields, found_members
from hermes_plugins.view.sources.frames import Frame, frames, group_in
from hermes_plugins.view.sources.places import octets_at, opened_regular, source_name
from hermes_plugins.view.sources.resuming import ended, mark_at, resumed, unchanged
from hermes_queue.results.archive import MAGIC

_SUFFIX = ".groups"
_BATCH_RECORDS = 64


class ArchiveSource:
    """The files of an archive directory, the newest first. Links are not followed."""

    kind = "archive"

    def __init__(self, directory: Path) -> None:
        self._directory = directory.resolve()
        self.title = self._directory.name
        self.name = source_name(self.kind, self._directory)
        self.problems: list[str] = []

    def scan(self, marks: Mapping[str, Mark | None]) -> Iterator[Batch]:
        """See `RecordSource.scan`."""
        self.problems = []
        try:
            names = self._files()
        except FileNotFoundError:  # it is made with the first group that is archived
            names = []
        except OSError as error:
            self.problems = [f"{self.title}: cannot be read: {error.strerror}"]
            return
        for name in marks.keys() - set(names):
            yield Batch(name, removed=True)
        for name in names:
            try:
                with self._opened(name) as fd:
                    yield from self._scan(fd, name, marks.get(name))
            except OSError as error:
                self.problems.append(f"{self.title}/{name}: cannot be read: {error.strerror}")

    def read(self, location: Location) -> Mapping[str, Any]:
        """See `RecordSource.read`."""
        return decode_raw(octets_at(self._opened(location.file), location))

    def close(self) -> None:
        """See `RecordSource.close`."""

    def _files(self) -> list[str]:
        """Names below the directory, the newest files first: they begin with their time."""
        found: list[str] = []
        with os.scandir(self._directory) as runs:
            for run in runs:
                if run.is_dir(follow_symlinks=False):
                    found += _files_of(run)
        return sorted(found, key=lambda name: name.rpartition("/")[2], reverse=True)

    @contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        run, _, file = name.rpartition("/")
        if "/" in run or run in ("", ".", ".."):
            raise OSError(0, "it is no file of a run")
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY
        folder = os.open(self._directory / run, flags)
        try:
            with opened_regular(file, folder=folder) as fd:
                yield fd
        finally:
            os.close(folder)

    def _scan(self, fd: int, name: str, mark: Mark | None) -> Iterator[Batch]:
        state = os.fstat(fd)
        at = resumed(fd, mark, state)
        if at is None:
            mark = None
            begun = os.pread(fd, len(MAGIC), 0)
            if begun != MAGIC:
                if not MAGIC.startswith(begun):
                    self.problems.append(f"{self.title}/{name}: is no file of an archive")
                return
            at = len(MAGIC)
            yield Batch(name, mark=mark_at(fd, at, state), begins=True)
        start = at
        found: list[FoundRecord] = []
        for frame in frames(fd, at, state.st_size) if not unchanged(mark, state) else ():
            found += self._members(name, frame)
            at = frame.end
            if len(found) >= _BATCH_RECORDS:
                yield Batch(name, found, mark_at(fd, at, state))
                found = []
        if at > start or not ended(mark):
            yield Batch(name, found, mark_at(fd, at, state, ended=True), ends=True)
        elif state.st_size > at:
            self.problems.append(f"{self.title}/{name}: its end, from byte {at}, cannot be read")

    def _members(self, name: str, frame: Frame) -> list[FoundRecord]:
        here = Location(self.name, name, frame.start, frame.end - frame.start)
        if frame.payload is None:
            return [FoundRecord(here, None, f"the group at byte {frame.start} is damaged")]
        group = group_in(frame.payload)
        if group is None:
            return [FoundRecord(here, None, f"the group at byte {frame.start} is no group")]
        fields, bodies = group
        known = {k: v for k, v in bodies.items() if isinstance(k, str) and isinstance(v, bytes)}
        places = _places(frame, known)

        def place(member: str) -> Location:
            offset, length = places.get(member, (frame.start, 0))
            return Location(self.name, name, offset, length, member)

        return list(found_members(decoded_fields(fields), known, place, {}))


def _files_of(run: os.DirEntry[str]) -> list[str]:
    with os.scandir(run.path) as files:
        return [
            f"{run.name}/{file.name}"
            for file in files
            if file.name.endswith(_SUFFIX) and file.is_file(follow_symlinks=False)
        ]


def _places(frame: Frame, bodies: Mapping[str, bytes]) -> dict[str, tuple[int, int]]:
    """Offset and length of each body in the file, so that one record is read alone."""
    payload = frame.payload or b""
    found: dict[str, tuple[int, int]] = {}
    begin = 0
    for name, body in bodies.items():
        at = payload.find(body, begin)
        if at >= 0 and body:
            found[name] = (frame.start + at, len(body))
            begin = at + len(body)
    return found
