"""Labels that people give to trajectories, in an append-only file of JSON lines.

    {"trajectory_id": "run.1f.0", "label": "fine", "note": "", "by": "ada", "at": 1763900000.1}

The last line about a trajectory counts; a label of null takes the earlier ones back. Several
processes may add to one file at the same time. Lines that are no reviews are counted and passed
over, also a torn one, so that no review is lost for the sake of another.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from hermes_queue.disk.durable import make_directory, sync_directory
from hermes_queue.disk.locked import append, read_whole
from hermes_queue.disk.locks import lock
from hermes_queue.errors import ConfigurationError, HermesQueueError, InputError

ReviewLabel = Literal["fine", "cheating", "broken_task", "unsure"]
LABELS: tuple[str, ...] = get_args(ReviewLabel)
LINE_BYTES_MAX = 32 << 10
FILE_BYTES_MAX = 64 << 20
"""All that counts is held in memory, and whoever may look may add to it."""
NOTE_CHARACTERS = 2000
_LOCK_S = 5.0
_PAUSE_S = 0.02
_READ_BYTES = 1 << 20
_NOT_KEPT = "the review was not kept; give it again"


class TrajectoryReview(BaseModel):
    """What one person says of one trajectory."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    trajectory_id: Annotated[str, Field(min_length=1, max_length=300)]
    label: ReviewLabel | None
    """None = there is no label any more."""
    note: Annotated[str, Field(max_length=NOTE_CHARACTERS)] = ""
    """Why."""
    by: Annotated[str, Field(max_length=80)] = ""
    """Who says so, as far as they gave a name."""
    at: Annotated[FiniteFloat, Field(ge=0)]
    """Unix seconds."""


class ReviewFile:
    """Reviews in a file. Methods may be called by any thread.

    Args:
        path: the file; made with mode 0600 when the first review is added.
        must_exist: whether it is an error that there is no such file yet.

    Raises:
        InputError: it is no regular file, cannot be read, or is missing.
    """

    def __init__(self, path: Path, *, must_exist: bool = False) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._known: dict[str, TrajectoryReview] = {}
        self._read_to = 0
        self._digest = blake2b()
        """Of what was read up to there: an editor may change it, and write to the same file."""
        self._open_line: tuple[str, TrajectoryReview | None] | None = None
        """Which trajectory the last line without an end is about, and what counted before it."""
        self._identity: tuple[int, int] | None = None
        self._seen: tuple[int, int, int, int] | None = None
        self.damaged_lines = 0
        """Lines that are no reviews."""
        if must_exist and not path.exists():
            raise InputError(f"{path}: there is no such file of reviews")
        self.read()

    def add(self, review: TrajectoryReview) -> None:
        """Append a review; on return it survives a power loss.

        Raises:
            ConfigurationError: the file cannot be opened, or stays locked by another process.
            HermesQueueError: the disk is full or broken, or the file too large; nothing was kept.
        """
        line = review.model_dump_json().encode("utf-8", "replace") + b"\n"
        with self._opened() as fd:
            size = os.fstat(fd).st_size
            if size + len(line) > FILE_BYTES_MAX:
                raise HermesQueueError(f"{self.path}: is full; begin another file of reviews")
            torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
            append(fd, self.path, b"\n" * torn + line, consequence=_NOT_KEPT)

    def check_writable(self) -> None:
        """Look, without writing, whether reviews could be added.

        Raises:
            ConfigurationError: they could not.
        """
        place = self.path
        while not place.exists() and place != place.parent:
            place = place.parent
        is_file = place == self.path
        if not os.access(place, os.W_OK if is_file else os.W_OK | os.X_OK):
            raise ConfigurationError(f"{self.path}: cannot be written, so nobody could label")

    def read(self) -> Mapping[str, TrajectoryReview]:
        """The reviews that count, by trajectory id, in the order of the file.

        A file that has not changed costs one `stat`; of one that has grown, what is new is read.

        Raises:
            InputError: the file cannot be read.
        """
        with self._lock:
            try:
                self._read()
            except OSError as error:
                raise InputError(f"{self.path}: cannot be read: {error.strerror}") from error
            return self._known

    def labels(self) -> dict[str, str]:
        """The labels, by trajectory id. Raises as `read`."""
        return {name: each.label for name, each in self.read().items() if each.label is not None}

    def label_of(self, trajectory_id: str) -> str | None:
        """The label of one trajectory; None if it has none. Raises as `read`."""
        review = self.read().get(trajectory_id)
        return review.label if review else None

    def _read(self) -> None:
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            self._forget()
            return
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise InputError(f"{self.path}: is no regular file")
            if found.st_size > FILE_BYTES_MAX:
                raise InputError(f"{self.path}: has more than {FILE_BYTES_MAX >> 20} MiB")
            seen = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
            if seen == self._seen:
                return
            if self._identity != seen[:2] or not self._has_grown(fd):
                self._forget()
                self._identity = seen[:2]
            self._known = dict(self._known)  # whoever has the old one goes on with it
            self._take(fd, found.st_size)
            self._seen = seen
        finally:
            os.close(fd)

    def _has_grown(self, fd: int) -> bool:
        """Whether the file begins with what was read."""
        digest = blake2b()
        for at in range(0, self._read_to, _READ_BYTES):
            digest.update(read_whole(fd, min(_READ_BYTES, self._read_to - at), at))
        return digest.digest() == self._digest.digest()

    def _forget(self) -> None:
        self._known, self._read_to, self.damaged_lines = {}, 0, 0
        self._identity = self._seen = self._open_line = None
        self._digest = blake2b()

    def _take(self, fd: int, size: int) -> None:
        if self._open_line is not None:
            name, earlier = self._open_line
            self._known.pop(name, None)
            if earlier is not None:
                self._known[name] = earlier
            self._open_line = None
        rest = b""
        skipping = False
        at = self._read_to
        while at < size and (part := read_whole(fd, min(_READ_BYTES, size - at), at)):
            at += len(part)
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                self._pass(line + b"\n")
                self._count(b"" if skipping else line)
                skipping = False
            if len(rest) > LINE_BYTES_MAX:  # it is no review, however it ends
                self.damaged_lines += not skipping
                self._pass(rest)
                rest, skipping = b"", True
        # A last line without an end may be whole: a person wrote it. Its place is read again.
        review = _review(rest)
        if review is not None:
            self._open_line = review.trajectory_id, self._known.get(review.trajectory_id)
            self._put(review)

    def _pass(self, read: bytes) -> None:
        self._read_to += len(read)
        self._digest.update(read)

    def _count(self, line: bytes) -> None:
        if not line.strip():
            return
        review = _review(line)
        if review is None:
            self.damaged_lines += 1
        else:
            self._put(review)

    def _put(self, review: TrajectoryReview) -> None:
        self._known.pop(review.trajectory_id, None)
        self._known[review.trajectory_id] = review

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """A descriptor with the file's lock, for one line."""
        try:
            make_directory(self.path.parent)
            is_new = not self.path.exists()
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
            fd = os.open(self.path, flags, 0o600)
        except OSError as error:
            raise ConfigurationError(f"{self.path}: cannot be written: {error.strerror}") from error
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise ConfigurationError(f"{self.path}: is no regular file")
            deadline = time.monotonic() + _LOCK_S
            while not lock(fd):
                if time.monotonic() > deadline:
                    raise ConfigurationError(f"{self.path}: another process holds it; {_NOT_KEPT}")
                time.sleep(_PAUSE_S)
            if is_new:
                sync_directory(self.path.parent)
            yield fd
        except OSError as error:
            raise HermesQueueError(f"{self.path}: {error.strerror}; {_NOT_KEPT}") from error
        finally:
            os.close(fd)


def made_review(given: Mapping[str, Any], by: str, at: float) -> TrajectoryReview:
    """The review in a request.

    Raises:
        InputError: it is no review; the message names the field.
    """
    names = ("trajectory_id", "label", "note")
    fields = {name: given[name] for name in names if name in given}
    try:
        return TrajectoryReview.model_validate({**fields, "by": by, "at": at})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise InputError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def _review(line: bytes) -> TrajectoryReview | None:
    if not line.strip() or len(line) > LINE_BYTES_MAX:
        return None
    try:
        return TrajectoryReview.model_validate_json(line)
    except ValueError:
        return None
