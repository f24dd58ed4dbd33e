"""Reads, writes and removes objects: files directly, everything else through fsspec."""

from __future__ import annotations

import glob
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from hermes_queue.disk.durable import replaced, sync_directory
from hermes_queue.errors import ConfigurationError, HermesQueueError, StoreUnavailable

_FLAT = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "oss", "r2"})
"""Schemes without directories: `makedirs` would create buckets there."""

_MARK = ".hermes-queue-store"
"""File in every directory that is a store. Without it, an unmounted directory would look like a
store that has lost its objects."""
_TRIES = 5


class Access(Protocol):
    """Access to the objects of one scheme.

    Every call may raise any error of the library, and FileNotFoundError if the object does not
    exist.
    """

    def read(self, url: str) -> bytes:
        """The object's bytes, never from a cache."""

    def size_bytes(self, url: str) -> int:
        """The object's size, never from a cache."""

    def write(self, url: str, data: bytes) -> None:
        """Create or replace the object; durable on return."""

    def remove(self, url: str) -> None:
        """Delete the object."""


def access(url: str) -> Access:
    """The `Access` for the scheme of `url`.

    Raises:
        ConfigurationError: a library is not installed, or the scheme is unknown.
        StoreUnavailable: the library cannot connect.
    """
    return _Directory() if is_file(url) else _Remote(url)


def is_file(url: str) -> bool:
    """Whether the object is a file on a mounted file system."""
    return urlsplit(url).scheme == "file"


@contextmanager
def explained(url: str) -> Iterator[None]:
    """Translate every error of a store, except for a missing object, into one that is retried.

    Raises:
        StoreUnavailable: in place of the library's error.
        FileNotFoundError, HermesQueueError: unchanged.
    """
    try:
        yield
    except (FileNotFoundError, HermesQueueError):
        raise
    except Exception as error:
        _forget_connections(url)
        reason = str(error) or type(error).__name__
        raise StoreUnavailable(f"the object store of {url} does not answer: {reason}") from error


class _Directory:
    """Objects as files. A file is complete from the moment it has its final name."""

    def read(self, url: str) -> bytes:
        path = _path(url)
        try:
            return path.read_bytes()
        except FileNotFoundError:
            if (path.parent.parent / _MARK).exists():
                raise
            raise OSError(f"{path.parent.parent} has no {_MARK}: is it mounted?") from None

    def size_bytes(self, url: str) -> int:
        return _path(url).stat().st_size

    def write(self, url: str, data: bytes) -> None:
        path = _path(url)
        for _ in range(_TRIES):
            path.parent.mkdir(parents=True, exist_ok=True)
            (path.parent.parent / _MARK).touch()
            # `remove` of the directory's last object takes the directory away, too.
            draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
            with suppress(FileNotFoundError):
                with replaced(path, draft):
                    draft.write_bytes(data)
                sync_directory(path.parent.parent)
                return
        raise OSError(f"{path.parent} disappears again and again")

    def remove(self, url: str) -> None:
        path = _path(url)
        for draft in path.parent.glob(f".{glob.escape(path.name)}.*"):  # of a killed writer
            draft.unlink(missing_ok=True)
        try:
            path.unlink()
        finally:
            # Fails if another object is in the directory, so a new one cannot be lost here.
            with suppress(OSError):  # it holds other objects
                path.parent.rmdir()


class _Remote:
    """Objects behind fsspec. Its cached listings are dropped before each question."""

    def __init__(self, url: str) -> None:
        try:
            import fsspec
        except ImportError as error:
            raise ConfigurationError(
                f"{url} needs fsspec: pip install 'hermes-queue[store]', and the library of its "
                "scheme (s3://: s3fs, gs://: gcsfs, az://: adlfs)"
            ) from error
        try:
            with explained(url):
                self._files, self._path = fsspec.core.url_to_fs(url)
        except StoreUnavailable as error:
            if isinstance(error.__cause__, ImportError | ValueError):
                raise ConfigurationError(f"{url} cannot be opened: {error.__cause__}") from error
            raise

    def read(self, url: str) -> bytes:
        self._files.invalidate_cache()
        data: bytes = self._files.cat_file(self._path)
        return data

    def size_bytes(self, url: str) -> int:
        self._files.invalidate_cache()
        return int(self._files.info(self._path)["size"])

    def write(self, url: str, data: bytes) -> None:
        if urlsplit(url).scheme not in _FLAT:
            self._files.makedirs(self._path.rpartition("/")[0], exist_ok=True)
        try:
            self._files.pipe_file(self._path, data)
        except FileNotFoundError as error:  # the bucket does not exist
            raise StoreUnavailable(f"{url} cannot be written: {error}") from error

    def remove(self, url: str) -> None:
        try:
            self._files.rm_file(self._path)
        except Exception:  # not every library raises FileNotFoundError
            self._files.invalidate_cache()
            if self._files.exists(self._path):
                raise


def _path(url: str) -> Path:
    return Path(unquote(urlsplit(url).path))


def _forget_connections(url: str) -> None:
    """Drop the file systems that fsspec caches for good, since their connections may be broken."""
    with suppress(Exception):
        import fsspec

        fsspec.get_filesystem_class(urlsplit(url).scheme).clear_instance_cache()
