"""What dead workers of this host left running at a provider, for a worker that starts there.

Backends know no Redis: workers hand them this view of the ledger. That a worker is dead is
told by the kernel: it held a lock for as long as it lived.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hermes_queue.settings import private_directory

PROFILE = "profile"
"""Label under which the ledger has what a sandbox is made of; the provider is not told."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class LeftSandbox:
    """One that the ledger has under the name of a worker on this host, dead or alive."""

    sandbox_id: str
    labels: Mapping[str, str]

    @property
    def worker(self) -> str:
        """Whose it was when this was read."""
        return self.labels.get("worker", "")


class Predecessors(Protocol):
    """The ledger's side. None of the methods raises: at worst a new sandbox is made."""

    async def recorded(self) -> list[LeftSandbox] | None:
        """The sandboxes of all workers on this host; None when Redis does not answer."""
        ...

    async def claim(self, left: LeftSandbox, labels: Mapping[str, str]) -> bool:
        """Make `left` the caller's, under these labels, unless it is somebody else's by now.

        One caller wins, and the reaper ends nothing that was claimed. What was claimed is
        recorded as what `SandboxObserver.created` hears of, and is let go by `gone`.
        """
        ...


class LifeLocks:
    """Files, one per worker, that the workers of one host hold while they live. Blocking.

    A lock that can be had means that its worker has died, whatever ended it; it holds for
    one kernel only, so that a file of another one (a shared disk, an earlier boot) tells
    nothing.
    """

    def __init__(self, directory: Path) -> None:
        """`directory` is made when it is missing. Raises OSError."""
        self._directory = private_directory(directory)
        self._boot = BOOT_ID.read_text().strip()
        self._held: tuple[Path, int] | None = None

    def hold(self, worker: str) -> None:
        """Hold this worker's from now on. Raises OSError."""
        path = self._path(worker)
        unheld = path.with_suffix(".unheld")  # one that is seen free means a dead worker
        handle = os.open(unheld, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(handle, self._boot.encode())
            unheld.rename(path)
        except BaseException:
            os.close(handle)
            raise
        self._held = path, handle

    def release(self) -> None:
        """Let go: the worker ends and has left nothing. Idempotent."""
        if self._held:
            path, handle = self._held
            self._held = None
            path.unlink(missing_ok=True)
            os.close(handle)

    def is_dead(self, worker: str) -> bool:
        """Whether that worker ran under this kernel and has died."""
        return self._is_free(self._path(worker))

    def tidy(self, named: Collection[str]) -> None:
        """Drop the files of dead workers but these."""
        kept = {self._path(worker) for worker in named}
        for path in self._directory.glob("*.lock"):
            if path not in kept and self._is_free(path):
                path.unlink(missing_ok=True)

    def _path(self, worker: str) -> Path:
        return self._directory / f"{hashlib.sha256(worker.encode()).hexdigest()[:32]}.lock"

    def _is_free(self, path: Path) -> bool:
        try:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            if os.read(handle, 100).decode(errors="replace") != self._boot:
                return False
            # Shared: workers that ask at the same time do not take each other for the owner.
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return False
        finally:
            os.close(handle)
        return True
