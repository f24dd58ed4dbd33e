"""Task folders on the worker's host: fetched or copied once, checked, kept while they are used.

Below the cache directory, one folder per digest, beside a lock file. Who makes a folder holds the
lock exclusively; who uses it, shared, also from other processes.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import functools
import hashlib
import io
import os
import shutil
import tarfile
import tempfile
import weakref
import zlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from envs.swe.repository import GitError, Repository
from hermes_plugins.harbor import tree
from hermes_plugins.harbor.item import ArchivedTask, GitTask, HarborItem
from hermes_plugins.harbor.settings import HarborSettings
from hermes_plugins.harbor.shapes.known import converter, is_task
from hermes_plugins.harbor.task import CONFIG, TaskFolder
from hermes_plugins.images.context import DOCKERFILE, BuildContext
from hermes_queue.disk.locks import hold, try_hold
from hermes_queue.errors import EnvBug, EnvInfraError
from hermes_queue.settings import PathSettings, private_directory

FETCH_TIMEOUT_S = 900.0
_DISK = "the worker's cache of tasks"
_MIB = 1 << 20


class _Lease:
    """A shared lock that ends with this object."""

    def __init__(self, descriptor: int) -> None:
        weakref.finalize(self, os.close, descriptor)


_used: weakref.WeakValueDictionary[str, _Lease] = weakref.WeakValueDictionary()
"""Leases of this process, by folder."""
_known: OrderedDict[str, str] = OrderedDict()
"""Digests of sources that never change."""
_KNOWN_MAX = 4096


async def load(item: HarborItem) -> TaskFolder:
    """The task's folder in the cache of this host, with its digest checked.

    Raises:
        EnvBug: there is no such folder or commit, it is no task, it has links that leave it,
            devices or too many files, or its digest differs from the item's.
        EnvInfraError: it cannot be fetched, or the disk failed.
    """
    try:
        home = private_directory(PathSettings().cache / "harbor")
        digest = item.digest or _known.get(_source_key(item), "")
        if not digest or (lease := await _use(home, digest)) is None:
            digest = await _make(home, item)
            lease = await _use(home, digest)
    except OSError as error:
        raise EnvInfraError(f"{_DISK}: {error}") from error
    if lease is None:
        raise EnvInfraError(f"{_DISK}: {digest} was removed at once; raise HARBOR_CACHE_MB")
    folder = home / digest / "task"
    return await asyncio.to_thread(_read, folder, digest, lease)


def _read(folder: Path, digest: str, lease: _Lease) -> TaskFolder:
    """The folder with the digests of its build contexts. Blocking."""
    return replace(TaskFolder.read(folder, digest, lease), context_digests=_contexts(folder))


@functools.lru_cache(_KNOWN_MAX)
def _contexts(folder: Path) -> Mapping[str, str]:
    """Digests of the build contexts of a folder in the cache, which never changes, by path."""
    places = (folder / "environment", folder / "tests", *folder.glob("steps/*/tests"))
    contexts = [each for each in places if (each / DOCKERFILE).is_file()]
    return {str(each): BuildContext(each).digest for each in contexts}


async def _use(home: Path, digest: str) -> _Lease | None:
    """A lease of a folder; None if it is not there."""
    if (lease := _used.get(str(home / digest))) is not None:
        return lease
    if not (home / digest).is_dir():
        return None
    descriptor = await hold(home / f"{digest}.lock", shared=True)
    lease = _Lease(descriptor)
    if not (home / digest).is_dir():
        return None
    os.utime(descriptor)
    _used[str(home / digest)] = lease
    return lease


async def _make(home: Path, item: HarborItem) -> str:
    """Put the folder into the cache; returns its digest."""
    scratch = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="new-", dir=home))
    try:
        source = await _source(item, scratch, home)
        digest = await asyncio.to_thread(_checked, source, scratch / "made", item)
        key = _source_key(item)
        if key:
            _known[key] = digest
            while len(_known) > _KNOWN_MAX:
                _known.popitem(last=False)
        if not (home / digest).is_dir():  # else its lock may be held as long as it is used
            descriptor = await hold(home / f"{digest}.lock")
            try:
                if not (home / digest).is_dir():
                    (scratch / "made").rename(home / digest)
            finally:
                os.close(descriptor)
        await asyncio.to_thread(evict, home, HarborSettings().cache_mb * _MIB, digest)
        return digest
    finally:
        await asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True)


async def _source(item: HarborItem, scratch: Path, home: Path) -> Path:
    """The folder as its source has it."""
    source = item.task
    if isinstance(source, str):
        if not await asyncio.to_thread(is_task, Path(source)):
            raise EnvBug(
                f"task: {source} is no task folder on this worker's host; if workers do not share "
                "the producer's files, give the producer the flag --embed"
            )
        return Path(source)
    if isinstance(source, ArchivedTask):
        return await asyncio.to_thread(unpack, source.archive, scratch / "unpacked")
    data = await _fetch(source, home)
    return await asyncio.to_thread(_untar, data, scratch / "unpacked", source.path)


def _checked(source: Path, made: Path, item: HarborItem) -> str:
    """Copy the folder, hash the copy and compare. Blocking."""
    made.mkdir()
    if (convert := converter(source)) is not None:
        tree.copy(source, made / "source")
        convert(made / "source", made / "task")
        shutil.rmtree(made / "source")
    else:
        tree.copy(source, made / "task")
    found = tree.entries(made / "task")
    digest = tree.digest(made / "task", found)
    if item.digest and digest != item.digest:
        raise EnvBug(
            f"task: the folder of {item.instance_id} has the digest {digest}, its row has "
            f"{item.digest}: it has changed since the row was made; make the rows again"
        )
    (made / "bytes").write_text(str(sum(entry.size_bytes for entry in found)))
    return digest


def unpack(archive: str, target: Path) -> Path:
    """Unpack a tar.gz in base64; returns the folder with `task.toml`. Blocking.

    Raises:
        EnvBug: it is damaged, too large, holds links that leave it or devices, or no task.
    """
    try:
        data = base64.b64decode(archive, validate=True)
    except (ValueError, binascii.Error) as error:
        raise EnvBug(f"task.archive: is not base64: {error}") from error
    return _untar(data, target, "")


def _untar(data: bytes, target: Path, below: str) -> Path:
    target.mkdir()
    total = count = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r|*") as tar:
            for member in tar:
                total, count = total + member.size, count + 1
                if total > tree.MAX_BYTES or count > tree.MAX_ENTRIES:
                    raise EnvBug(f"task.archive: has more than {tree.MAX_BYTES} bytes unpacked")
                tar.extract(member, target, filter="data")
    except (tarfile.TarError, EOFError, zlib.error, OSError, ValueError) as error:
        raise EnvBug(f"task.archive: cannot be unpacked: {error}") from error
    folder = target / below
    inside = list(folder.iterdir()) if folder.is_dir() else []
    if not is_task(folder) and len(inside) == 1 and inside[0].is_dir():
        folder = inside[0]
    if folder.is_symlink() or not is_task(folder):
        place = f"the folder {below!r}" if below else "the archive's folder, of which it has one"
        raise EnvBug(f"task: there is no {CONFIG} in {place}")
    return folder


async def _fetch(source: GitTask, home: Path) -> bytes:
    """A tar of the folder at its commit, by a repository that is kept."""
    name = hashlib.sha256(source.git_url.encode()).hexdigest()[:32]
    path = private_directory(home / "git") / f"{name}.git"
    descriptor = await hold(path.with_suffix(".lock"))
    try:
        repository = Repository(path) if path.exists() else await Repository.create(path)
        try:
            await repository.git("cat-file", "-e", f"{source.commit}^{{tree}}")
        except GitError:
            quiet = ("--quiet", "--no-tags", "--no-recurse-submodules", "--depth=1")
            words = ("fetch", *quiet, "--", source.git_url, source.commit)
            await repository.git(*words, timeout_s=FETCH_TIMEOUT_S)
        revision = f"{source.commit}:{source.path}" if source.path else source.commit
        prefix = f"--prefix={source.path}/" if source.path else "--prefix="
        return await repository.git("archive", "--format=tar", prefix, revision)
    except GitError as error:
        raise _cannot_fetch(source, str(error)) from error
    finally:
        os.close(descriptor)


def _cannot_fetch(source: GitTask, message: str) -> EnvBug | EnvInfraError:
    where = f"{source.git_url} at {source.commit}"
    nothing = ("Not a valid object name", "not a valid object name", "does not exist in")
    if any(sign in message for sign in nothing):
        return EnvBug(f"task.path: {where} has no folder {source.path!r}")
    if "not our ref" in message or "couldn't find remote ref" in message:
        return EnvBug(f"task.commit: {source.git_url} has no commit {source.commit}")
    return EnvInfraError(f"task.git_url: cannot fetch from {where}: {message}")


def _source_key(item: HarborItem) -> str:
    """Identifies a source that never changes; "" for a path."""
    if isinstance(item.task, str):
        return ""
    return hashlib.sha256(item.task.model_dump_json().encode()).hexdigest()


def evict(home: Path, max_bytes: int, keep: str) -> None:
    """Delete the least recently used folders that nobody uses, until the rest fits. Blocking.

    A folder's lock file stays: another process may be about to lock it.
    """
    found = []
    for folder in home.iterdir():
        if len(folder.name) == 64 and folder.is_dir():
            try:
                used = (home / f"{folder.name}.lock").stat().st_mtime
                found.append((used, int((folder / "bytes").read_text()), folder))
            except (OSError, ValueError):
                found.append((0.0, 0, folder))
    total = sum(size for _, size, _ in found)
    for _, size, folder in sorted(found, key=lambda each: each[0]):
        if total <= max_bytes:
            return
        if folder.name == keep:
            continue
        descriptor = try_hold(home / f"{folder.name}.lock")
        if descriptor is not None:
            try:
                shutil.rmtree(folder, ignore_errors=True)
                total -= size
            finally:
                os.close(descriptor)
