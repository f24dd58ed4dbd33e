"""Files that clients upload for builds: contents by digest, and lists of them."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from grpclib import GRPCError, Status

from localmodal.wire import Request

MAX_FILES = 100_000
MAX_BYTES = 4 << 30
"""Of one build context."""
_HEX = frozenset("0123456789abcdef")


class Uploads:
    """The uploads of one server, below a directory. Methods block."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lists: dict[str, tuple[Request, ...]] = {}

    def has(self, digest: str) -> bool:
        """Whether the content with this hex SHA-256 is here."""
        return self._path(digest).is_file()

    def put(self, digest: str, data: bytes) -> None:
        """Store a content. Raises GRPCError: it has another digest."""
        if hashlib.sha256(data).hexdigest() != digest:
            raise GRPCError(Status.INVALID_ARGUMENT, "the file has another SHA-256")
        with self.new_file() as file:
            file.write(data)
            self.keep_blob(file, digest)

    def put_blob(self, digest: str, blob_id: str) -> None:
        """Store a content that was uploaded as a blob. Raises GRPCError: it was not."""
        try:
            with self._path(blob_id).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError:
            raise GRPCError(Status.NOT_FOUND, f"no blob {blob_id[:80]}") from None
        if found != digest:
            raise GRPCError(Status.INVALID_ARGUMENT, "the file has another SHA-256")
        self._path(blob_id).rename(self._path(digest))

    @contextmanager
    def new_file(self) -> Iterator[IO[bytes]]:
        """A file that is deleted unless `keep_blob` gets it."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        path = self._directory / f"new-{secrets.token_hex(8)}"
        try:
            with path.open("wb") as file:
                yield file
        finally:
            path.unlink(missing_ok=True)

    def keep_blob(self, file: IO[bytes], name: str) -> None:
        """Keep a new file under a name."""
        file.flush()
        os.rename(file.name, self._path(name))

    def _path(self, name: str) -> Path:
        if not 0 < len(name) <= 64 or not set(name) <= _HEX:
            raise GRPCError(Status.INVALID_ARGUMENT, "a digest must be lower-case hexadecimal")
        return self._directory / name

    def add_list(self, files: Sequence[Request]) -> str:
        """Record a build context; returns its id. Raises GRPCError: too many, or not here."""
        if len(files) > MAX_FILES:
            raise GRPCError(Status.INVALID_ARGUMENT, f"more than {MAX_FILES} files")
        for file in files:
            if not self.has(file.sha256_hex):
                raise GRPCError(Status.NOT_FOUND, f"{file.filename[:200]} was not uploaded")
        facts = sorted((f.filename, f.sha256_hex, f.mode) for f in files)
        upload_id = f"mo-{hashlib.sha256(repr(facts).encode()).hexdigest()[:22]}"
        self._lists[upload_id] = tuple(files)
        return upload_id

    def write(self, upload_id: str, target: Path) -> None:
        """Write a build context to the new directory `target`.

        Raises GRPCError: there is none of this id, or a name leads out of it.
        """
        target.mkdir(mode=0o700)
        if upload_id and upload_id not in self._lists:
            raise GRPCError(Status.NOT_FOUND, f"no mount {upload_id}")
        left = MAX_BYTES
        for file in self._lists.get(upload_id, ()):
            parts = file.filename.strip("/").split("/")
            if any(part in ("", ".", "..") or "\0" in part for part in parts):
                raise GRPCError(Status.INVALID_ARGUMENT, f"file name {file.filename[:200]!r}")
            path = target.joinpath(*parts)
            left -= self._path(file.sha256_hex).stat().st_size
            if left < 0:
                raise GRPCError(Status.INVALID_ARGUMENT, f"more than {MAX_BYTES >> 30} GiB")
            path.parent.mkdir(parents=True, exist_ok=True)
            _copy(self._path(file.sha256_hex), path)
            path.chmod((file.mode or 0o644) & 0o777)


def _copy(source: Path, target: Path) -> None:
    with source.open("rb") as given, target.open("wb") as taken:
        while os.sendfile(taken.fileno(), given.fileno(), None, 1 << 24):
            pass
