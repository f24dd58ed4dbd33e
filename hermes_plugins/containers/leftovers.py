"""Containers that dead workers of this host left behind.

    <cache>/containers/id           random; a label of every container, so that only workers that
                                    share these locks look after each other
                       TOKEN.lock   flocked while the worker lives; its token is a label, too

A dead worker cannot hold its lock, however it died.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path

from hermes_plugins.containers.host import ContainerHost
from hermes_plugins.containers.services.networks import ContainerNetworks
from hermes_queue.disk.locks import is_held, try_hold
from hermes_queue.errors import SandboxError
from hermes_queue.sandbox.host.paths import shared_directory

logger = logging.getLogger(__name__)

REGISTRY, OWNER = "registry", "owner"
"""Labels."""


@contextlib.contextmanager
def _left(what: str, name: str) -> Iterator[None]:
    """Log that something cannot be removed: the next round tries again."""
    try:
        yield
    except SandboxError as error:
        extra = {"action": "sandbox_left"}
        logger.warning("%s %s is left: %s", what, name, error, extra=extra)


class Leftovers:
    """This worker's lock, and what workers without one have left."""

    def __init__(self, cache: Path) -> None:
        self._place = cache / "containers"
        self._lock: int | None = None
        self.labels: Mapping[str, str] = {}
        """Of every container and image that this worker makes."""

    def open(self) -> None:
        """Take a lock for this worker. Blocking. Raises OSError."""
        if self._lock is not None:
            return
        shared_directory(self._place, 0o755)
        token = secrets.token_hex(8)
        self._lock = try_hold(self._place / f"{token}.lock")
        self.labels = {REGISTRY: self._registry(), OWNER: token}

    def _registry(self) -> str:
        path = self._place / "id"
        # Written elsewhere first: a worker that starts at the same time must read the same one.
        new = path.with_name(f"new-{secrets.token_hex(8)}")
        try:
            new.write_text(secrets.token_hex(8))
            os.link(new, path)
        except FileExistsError:
            pass
        finally:
            new.unlink(missing_ok=True)
        return path.read_text()

    def close(self) -> None:
        """This worker has no containers any more."""
        if self._lock is not None:
            (self._place / f"{self.labels[OWNER]}.lock").unlink(missing_ok=True)
            os.close(self._lock)
            self._lock, self.labels = None, {}

    async def reclaim(self, host: ContainerHost, networks: ContainerNetworks | None = None) -> None:
        """Remove what dead workers left. Raises SandboxError."""
        mine = {REGISTRY: self.labels[REGISTRY]}
        removed = []
        for info in await host.list(mine):
            if self._is_dead(info.labels.get(OWNER, "")):
                with _left("container", info.sandbox_id):
                    await host.remove(info.sandbox_id)
                    removed.append(info.sandbox_id)
        for name, labels in (await host.list_images(mine)).items():
            if self._is_dead(labels.get(OWNER, "")):
                with _left("image", name):
                    await host.remove_image(name)
        if networks is not None:
            await self._reclaim_networks(networks, mine)
        if removed:
            names, extra = ", ".join(removed), {"action": "reclaim"}
            logger.info("removed containers of dead workers: %s", names, extra=extra)

    async def _reclaim_networks(self, networks: ContainerNetworks, mine: Mapping[str, str]) -> None:
        for listed, remove in (
            (await networks.list_volumes(mine), networks.remove_volume),
            (await networks.list_networks(mine), networks.remove_network),
        ):
            for name, labels in listed.items():
                if self._is_dead(labels.get(OWNER, "")):
                    with _left("network", name):
                        await remove(name)

    def _is_dead(self, token: str) -> bool:
        """Whether no process holds the lock of this worker."""
        if not token.isalnum() or token == self.labels[OWNER]:
            return False
        return not is_held(self._place / f"{token}.lock")
