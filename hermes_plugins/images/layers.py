"""The layers on this host's disk: made once per key, pinned while in use, pruned when too many.

    <cache>/images/layers/<key>       finished, appears by rename
                   info/<key>.json    its parent, size and origin; written before
                   info/<key>.synced  it survives a power loss
                   drafts/            being made, or deleted: locked by who does it
                   locks/<key>.lock   held while it is made, across processes; see `build_turn`
                   pins/<key>         shared lock: a process uses it; its time: last use

A key is a digest over the parent's key and what was done to it. Layers belong to ids of a user
namespace and may have setuid files, so nobody else may reach them: `layers` and `drafts` are 0700.
"""

from __future__ import annotations

import asyncio
import ctypes
import hashlib
import json
import logging
import os
import re
import secrets
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from pydantic import TypeAdapter, ValidationError

from hermes_plugins.images.inside import program
from hermes_plugins.images.steps import LayerStack, StepResult, StepRunner
from hermes_queue.cancellation import unbroken
from hermes_queue.disk.durable import replaced
from hermes_queue.disk.locks import hold, lock, try_hold
from hermes_queue.disk.turn import build_turn
from hermes_queue.errors import EnvInfraError, SandboxError

logger = logging.getLogger(__name__)

BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
KEY_CHARS = 24
MAX_LAYERS = 120
"""Of one image: the option `lowerdir` of a mount is limited to one page."""
TAIL_CHARS = 3000
YOUNG_S = 60.0
"""A draft of this age may not be locked yet."""

PinLayer = Callable[[str], Awaitable[None]]
"""Keeps a layer, which need not exist yet, until all of an image's layers are let go."""
Fill = Callable[[Path], Awaitable[None]]
"""Makes the contents of a layer in the given empty directory."""


@dataclass(frozen=True, slots=True)
class LayerInfo:
    """What is known about a layer."""

    parent: str | None
    made_by: str
    """The instruction, for people."""
    size_bytes: int
    """On the disk, as du counts."""
    created: float
    boot: str = ""
    """Boot of the host in which it was made; in a later one it counts if it was synced."""


_INFO = TypeAdapter(LayerInfo)


def layer_key(parent: str | None, *what: Any) -> str:
    """The key of `parent` after `what`, which JSON can hold."""
    text = json.dumps(["1", parent, *what], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_CHARS]


class LayerStore:
    """The layers below one directory. Belongs to one event loop."""

    def __init__(self, root: Path, runner: StepRunner) -> None:
        self.runner = runner
        self._root = root
        self._held: dict[str, tuple[int, int]] = {}
        """Key -> descriptor of its pin, and how often it is pinned in this process."""

    def path(self, key: str) -> Path:
        """The directory of a finished layer."""
        return self._root / "layers" / key

    def info(self, key: str) -> LayerInfo | None:
        """What is known about a finished layer; None: it is not there, or a crash tore it."""
        place = self._root / "info" / f"{key}.json"
        try:
            found = _INFO.validate_json(place.read_bytes())
        except (OSError, ValidationError):
            return None
        if found.boot != BOOT_ID and not place.with_suffix(".synced").exists():
            return None
        return found if self.path(key).is_dir() else None

    def all(self) -> dict[str, LayerInfo]:
        """All finished layers. Blocking."""
        with suppress(FileNotFoundError):
            keys = [each.stem for each in (self._root / "info").glob("*.json")]
            return {key: found for key in keys if (found := self.info(key)) is not None}
        return {}

    def chain(self, key: str | None) -> list[str] | None:
        """The keys from the lowest layer to `key`; None: one is missing."""
        found: list[str] = []
        while key is not None:
            info = self.info(key)
            if info is None or len(found) > MAX_LAYERS:
                return None
            found.insert(0, key)
            key = info.parent
        return found

    def stack(self, key: str | None, upper: Path | None) -> LayerStack:
        """The layers up to `key`, and where changes go. Raises SandboxError: one is missing."""
        chain = self.chain(key)
        if chain is None:
            raise SandboxError(f"a layer below {key} has been deleted from {self._root}")
        return LayerStack(tuple(map(self.path, chain)), upper)

    def used_at(self, key: str) -> float:
        """When it was last used, in seconds since the epoch."""
        try:
            return (self._root / "pins" / key).stat().st_mtime
        except OSError:
            return 0.0

    async def pin(self, key: str) -> None:
        """Keep `key`, which need not exist yet, until `unpin`. Raises SandboxError: no disk."""
        try:
            self.prepare()
            if key not in self._held:
                path = self._root / "pins" / key
                descriptor = await hold(path, shared=True)
                if key in self._held:  # somebody else here was faster
                    os.close(descriptor)
                else:
                    self._held[key] = (descriptor, 0)
            descriptor, count = self._held[key]
            self._held[key] = (descriptor, count + 1)
            os.utime(descriptor)
        except OSError as error:
            raise SandboxError(f"{self._root} cannot be used: {error}") from error

    def unpin(self, key: str) -> None:
        """Undo one `pin`."""
        descriptor, count = self._held.pop(key)
        if count > 1:
            self._held[key] = (descriptor, count - 1)
        else:
            os.close(descriptor)

    async def ensure(self, key: str, parent: str | None, made_by: str, fill: Fill) -> None:
        """Make a layer unless it exists. The caller has pinned `key` and its ancestors.

        Raises:
            EnvInfraError: `fill` failed, or suspended processes hold its locks.
            SandboxError: there is no room for it, or the sandbox failed.
        """
        if self.info(key) is not None:
            return
        path = self._root / "locks" / f"{key}.lock"
        async with build_turn(path, is_finished=lambda: self.info(key) is not None) as number:
            if number is not None and self.info(key) is None:
                await self._make(
                    key, LayerInfo(parent, made_by[:300], 0, time.time(), BOOT_ID), fill
                )

    async def _make(self, key: str, info: LayerInfo, fill: Fill) -> None:
        try:
            async with self.draft(key) as draft:
                await fill(draft)
                size = await self._measured(draft)
                await self._clear_torn(key)
                info = replace(info, size_bytes=size)
                place = self._root / "info" / f"{key}.json"
                unfinished = place.with_name(f".{key}.{secrets.token_hex(4)}")
                with replaced(place, unfinished):
                    unfinished.write_bytes(_INFO.dump_json(info))
                try:
                    draft.rename(self.path(key))
                except OSError:
                    # While we were suspended another process made the same layer; it is in use.
                    if self.info(key) is None:
                        raise
            threading.Thread(target=self.write_out, name="images-sync", daemon=True).start()
        except OSError as error:
            raise SandboxError(f"layer {key} cannot be stored: {error}") from error

    async def _clear_torn(self, key: str) -> None:
        """Delete what a crash of the host has left of a layer: it would pass for the new one."""
        if self.info(key) is None and self.path(key).is_dir():
            await self._discard(key)

    async def _discard(self, key: str) -> None:
        """Delete a layer's directory, which nobody uses."""
        gone = self._root / "drafts" / f"{key}.{secrets.token_hex(4)}"
        with _locked(self.path(key)):
            self.path(key).rename(gone)
            await unbroken(self._remove(gone))

    @asynccontextmanager
    async def draft(self, name: str) -> AsyncIterator[Path]:
        """An empty directory that belongs to root inside; deleted after the block."""
        self.prepare()
        path = self._root / "drafts" / f"{name}.{secrets.token_hex(4)}"
        path.mkdir()
        path.chmod(0o755)
        if os.geteuid() == 0:
            os.chown(path, self.runner.host_id, self.runner.host_id)
        with _locked(path):
            try:
                yield path
            finally:
                await unbroken(self._remove(path))

    @contextmanager
    def scratch(self) -> Iterator[IO[bytes]]:
        """A file without a name, for archives."""
        self.prepare()
        with tempfile.TemporaryFile(dir=self._root / "drafts") as file:
            yield file

    async def command(
        self,
        stack: LayerStack,
        name: str,
        options: dict[str, Any],
        *,
        stdin: IO[bytes] | None = None,
        stdout: IO[bytes] | None = None,
    ) -> StepResult:
        """Run a command of `inside/tree.py`. Raises EnvInfraError: it failed; says why."""
        if stdin is not None:
            stdin.seek(0)
            os.lseek(stdin.fileno(), 0, os.SEEK_SET)  # `seek` moves in the buffer where it can
        result = await self.runner.edit(
            stack, program(), [name, json.dumps(options)], stdin=stdin, stdout=stdout
        )
        if result.exit_code:
            text = result.output.decode(errors="replace").strip()[-TAIL_CHARS:]
            how = "ran out of time" if result.timed_out else text or f"exit {result.exit_code}"
            raise EnvInfraError(f"files of an image: {name}: {how}")
        return result

    async def _measured(self, tree: Path) -> int:
        result = await self.command(LayerStack((), tree), "measure", {})
        found = re.search(rb"^([0-9]+)\t", result.output, re.MULTILINE)
        return int(found[1]) if found else 0

    async def _remove(self, path: Path) -> None:
        if os.path.isdir(path):  # noqa: ASYNC240 - the kernel has its parent at hand
            await self.command(LayerStack((), path), "remove", {})
            os.rmdir(path)

    async def remove(self, key: str) -> bool:
        """Delete a layer that no process has pinned and no other layer needs."""
        self.prepare()
        if any(each.parent == key for each in (await asyncio.to_thread(self.all)).values()):
            return False
        pin = try_hold(self._root / "pins" / key)
        if pin is None:
            return False
        try:
            info = self._root / "info" / f"{key}.json"
            info.unlink(missing_ok=True)
            info.with_suffix(".synced").unlink(missing_ok=True)
            if self.path(key).is_dir():
                await self._discard(key)
        finally:
            os.close(pin)
        return True

    def write_out(self) -> None:
        """Wait until all layers of this boot are on the disk, and note it. Blocking.

        Overlays of builds are mounted `volatile`, and a sync of the whole file system may take
        minutes while others write: builds do not wait for it.
        """
        infos = (self._root / "info").glob("*.json")
        notes = [each.with_suffix(".synced") for each in infos]
        notes = [each for each in notes if not each.exists()]
        descriptor = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if ctypes.CDLL(None, use_errno=True).syncfs(descriptor):
                extra = {"action": "layers_unsynced"}
                logger.warning("%s: layers are not synced to the disk", self._root, extra=extra)
                return
        finally:
            os.close(descriptor)
        for note in notes:
            if self.info(note.stem) is not None:
                note.touch()

    async def sweep(self) -> None:
        """Delete what processes that died were making or deleting."""
        self.prepare()
        for each in list((self._root / "drafts").iterdir()):
            with suppress(OSError, EnvInfraError, SandboxError):
                if time.time() - each.stat().st_mtime < YOUNG_S:
                    continue
                with _locked(each) as is_abandoned:
                    if is_abandoned:
                        await unbroken(self._remove(each))

    def prepare(self) -> None:
        """Make the directories. Raises OSError, IsolationUnavailable: no ids for slots here."""
        if (self._root / "pins").is_dir():
            return
        host_id = self.runner.host_id
        self._root.mkdir(parents=True, exist_ok=True)
        for name, mode in (("layers", 0o700), ("drafts", 0o700), ("info", 0o755), ("locks", 0o755)):
            place = self._root / name
            place.mkdir(exist_ok=True)
            place.chmod(mode)
            if mode == 0o700 and os.geteuid() == 0:
                os.chown(place, host_id, host_id)
        (self._root / "pins").mkdir(exist_ok=True)


@contextmanager
def _locked(directory: Path) -> Iterator[bool]:
    """Lock a directory, wherever it is moved to; False: another process has locked it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield lock(descriptor)
    finally:
        os.close(descriptor)
