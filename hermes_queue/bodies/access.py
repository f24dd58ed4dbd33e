"""How objects are read, written and removed: directories ourselves, the rest through fsspec."""

from __future__ import annotations

import glob
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from hermes_queue.disk.durable import put_whole, sync_directory
from hermes_queue.errors import ConfigurationError, HermesQueueError, StoreUnavailable

_FLAT = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "oss", "r2"})
"""Schemes without directories; asked to make some, their libraries would make buckets."""

_MARK = ".hermes-queue-store"
"""Lies in every directory that is a store: one that is not mounted has lost nothing."""


class Access(Protocol):
    """Reaches the objects of one scheme.

    Every call may raise whatever its library raises, and FileNotFoundError when there is no such
    object.
    """

    def read(self, url: str) -> bytes:
        """All of it, as it is now."""
        ...

    def size_bytes(self, url: str) -> int:
        """As it is now."""
        ...

    def write(self, url: str, data: bytes) -> None:
        """Create or replace it; durable on return."""
        ...

    def remove(self, url: str) -> None:
        """Delete it."""
        ...


def access(url: str) -> Access:
    """What reaches `url`.

    Raises:
        ConfigurationError: a library is not installed, or knows no such scheme.
        StoreUnavailable: its library cannot connect.
    """
    return _Directory() if is_file(url) else _Remote(url)


def is_file(url: str) -> bool:
    """Whether it is on a file system that is mounted here."""
    return urlsplit(url).scheme == "file"


@contextmanager
def explained(url: str) -> Iterator[None]:
    """Whatever goes wrong with a store, but a missing object, is worth another try.

    Raises:
        StoreUnavailable: instead of what was raised.
        FileNotFoundError, HermesQueueError: as they were.
    """
    try:
        yield
    except (FileNotFoundError, HermesQueueError):
        raise
    except Exception as error:
        _forget_connections(url)
        said = str(error) or type(error).__name__
        raise StoreUnavailable(f"the object store of {url} does not answer: {said}") from error


class _Directory:
    """Objects are files. A file is whole from the moment it has its name."""

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
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent.parent / _MARK).touch()
        draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        put_whole(path, data, draft=draft)
        sync_directory(path.parent.parent)

    def remove(self, url: str) -> None:
        path = _path(url)
        for draft in path.parent.glob(f".{glob.escape(path.name)}.*"):  # its writer was killed
            draft.unlink(missing_ok=True)
        try:
            path.unlink()
        finally:
            with suppress(OSError):  # others are in it
                path.parent.rmdir()


class _Remote:
    """Objects behind fsspec, whose listings are kept for a while: what we ask is about now."""

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
        except FileNotFoundError as error:  # no such bucket
            raise StoreUnavailable(f"{url} cannot be written: {error}") from error

    def remove(self, url: str) -> None:
        try:
            self._files.rm_file(self._path)
        except Exception:  # not every library says FileNotFoundError
            self._files.invalidate_cache()
            if self._files.exists(self._path):
                raise


def _path(url: str) -> Path:
    return Path(unquote(urlsplit(url).path))


def _forget_connections(url: str) -> None:
    """File systems are kept by fsspec for good, some with a connection that is broken by now."""
    with suppress(Exception):
        import fsspec

        fsspec.get_filesystem_class(urlsplit(url).scheme).clear_instance_cache()
