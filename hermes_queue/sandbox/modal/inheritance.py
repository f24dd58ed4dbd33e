"""Sandboxes that a dead worker of this host left running, used on instead of made anew.

Taken over is only what is provably ours to take: the ledger has it under a worker that ran
under this kernel and has died, its deployment, pool and profile are ours to the last
setting, enough of its lifetime is left, and its slots have uids of their own, so that
everything the dead worker's jobs left can be found and removed.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Mapping
from pathlib import Path

from hermes_queue.errors import SandboxError, SlotLost
from hermes_queue.sandbox.base import SandboxObserver
from hermes_queue.sandbox.host.execution import unbroken
from hermes_queue.sandbox.modal.account import Account
from hermes_queue.sandbox.modal.box import Box
from hermes_queue.sandbox.modal.factory import BoxFactory
from hermes_queue.sandbox.modal.profiles import profile_key
from hermes_queue.sandbox.predecessors import PROFILE, LeftSandbox, LifeLocks, Predecessors
from hermes_queue.settings import ModalSettings

logger = logging.getLogger(__name__)

ANSWER_S = 10.0
"""A sandbox that does not answer for so long is not worth waiting for: a new one is quick."""
TAKE_OVER_S = 60.0
"""For the whole of it; a dead job may have left many files."""


class Inheritance:
    """What this worker may take over; filled once, when it starts."""

    def __init__(
        self,
        account: Account,
        factory: BoxFactory,
        observer: SandboxObserver,
        labels: Mapping[str, str],
        predecessors: Predecessors | None,
    ) -> None:
        """`predecessors` None = nothing is taken over, now and from this worker later."""
        self._account = account
        self._factory = factory
        self._observer = observer
        self._labels = labels
        self._predecessors = predecessors
        self._locks: LifeLocks | None = None
        self._left: list[LeftSandbox] = []

    async def open(self, directory: Path) -> None:
        """Be known as alive, and see what dead workers left. Never raises.

        Args:
            directory: of the app, on a disk of this host that its workers share.
        """
        if self._predecessors is None:
            return
        place = hashlib.sha256(self._labels["deployment"].encode()).hexdigest()[:16]
        try:
            locks = await asyncio.to_thread(LifeLocks, directory / "workers" / place)
            await asyncio.to_thread(locks.hold, self._labels["worker"])
        except OSError as error:
            logger.warning("no sandbox is taken over: %s", error, extra={"action": "inheritance"})
            return
        self._locks = locks
        recorded = await self._predecessors.recorded()
        if recorded is not None:
            workers = {left.worker for left in recorded}
            dead = {worker for worker in workers if locks.is_dead(worker)}
            self._left = [left for left in recorded if left.worker in dead and self._is_ours(left)]
            locks.tidy(workers)

    def close(self) -> None:
        """This worker's own sandboxes have ended."""
        self._left = []
        if self._locks is not None:
            self._locks.release()
            self._locks = None

    def _is_ours(self, left: LeftSandbox) -> bool:
        return left.labels.get("deployment") == self._labels["deployment"]

    async def take(self, profile: ModalSettings) -> Box | None:
        """A sandbox of this profile, empty and ready for slots, if one was left. Never raises."""
        key = profile_key(profile)
        while fitting := [left for left in self._left if left.labels.get(PROFILE) == key]:
            self._left.remove(fitting[0])
            if box := await self._take_over(fitting[0], profile, key):
                return box
        return None

    async def _take_over(self, left: LeftSandbox, profile: ModalSettings, key: str) -> Box | None:
        ours = {**self._labels, PROFILE: key}
        if self._predecessors is None or not await self._predecessors.claim(left, ours):
            return None
        try:
            box = await self._attach(left, profile)
        except (SandboxError, TimeoutError) as error:
            logger.warning(
                "sandbox %s of a dead worker is not taken over: %s",
                left.sandbox_id,
                str(error) or "it takes too long",
                extra={"action": "sandbox_not_taken_over"},
            )
            return None
        logger.info(
            "took over sandbox %s of a dead worker",
            left.sandbox_id,
            extra={"action": "sandbox_taken_over"},
        )
        return box

    async def _attach(self, left: LeftSandbox, profile: ModalSettings) -> Box:
        """Whatever fails, the sandbox is ended; if that fails too, the reaper does it."""
        try:
            async with asyncio.timeout(ANSWER_S):
                sandbox, age_s = await self._account.attach(left.sandbox_id, _tagged(left.labels))
        except BaseException as error:
            if not isinstance(error, SlotLost):
                await unbroken(self._factory.end_id(left.sandbox_id))
            self._observer.gone(left.sandbox_id)
            raise
        box = Box(sandbox, profile)
        try:
            async with asyncio.timeout(TAKE_OVER_S):
                box.created = time.monotonic() - age_s
                async with asyncio.timeout(ANSWER_S):
                    await box.touch()
                await box.take_over()
                # Last: until then it carries a dead worker's name, by which the reaper goes.
                await self._account.label(sandbox, self._labels)
        except BaseException:
            await unbroken(self._factory.end(box))
            raise
        return box


def _tagged(labels: Mapping[str, str]) -> dict[str, str]:
    """What the provider was told of them."""
    return {name: value for name, value in labels.items() if name != PROFILE}
