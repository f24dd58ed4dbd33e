"""Sandboxes from Modal: created at the allowed rate, told of at once, furnished, ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from hermes_queue.errors import SandboxError, SandboxUnavailable
from hermes_queue.sandbox.fleet import CreationRate, Fleet
from hermes_queue.sandbox.host.execution import unbroken
from hermes_queue.sandbox.modal.account import Account
from hermes_queue.sandbox.modal.box import Box
from hermes_queue.sandbox.modal.profiles import image_key
from hermes_queue.settings import ModalSettings

logger = logging.getLogger(__name__)

TOUCH_S = 30.0
"""A reader that was idle for longer may have been ended by Modal."""
BACKOFF_S, BACKOFF_MAX_S = 1.0, 30.0
"""While Modal refuses sandboxes without saying how long to wait."""


class BoxFactory:
    """Makes and ends the sandboxes of one worker."""

    def __init__(
        self,
        account: Account,
        settings: ModalSettings,
        fleet: Fleet,
        labels: Mapping[str, str],
    ) -> None:
        self._account = account
        self._gate = fleet.gate
        self._rate = CreationRate(settings.creates_per_s, settings.max_starting)
        self._observer = fleet.observer
        self._labels = labels
        self._patience_s = settings.patience_s

    async def make(self, profile: ModalSettings) -> Box:
        """A sandbox for slots, ready for them.

        Raises:
            SandboxUnavailable: Modal has had no room for as long as our patience lasts.
            SandboxRejected: it refuses the profile, or its image cannot hold slots.
            SandboxError: it could not be made this time.
        """
        return await self._make(profile, open_network=False)

    async def make_builder(self, profile: ModalSettings) -> Box:
        """One with network and without secrets and volumes. Raises what `make` does."""
        return await self._make(profile, open_network=True)

    async def _make(self, profile: ModalSettings, *, open_network: bool) -> Box:
        image = await self._account.image(profile, image_key(profile))
        async with self._gate.creating(self._rate):
            sandbox = await self._create(profile, image, open_network=open_network)
            box = Box(sandbox, profile)
            try:
                await self._observer.created(box.sandbox_id, self._labels)
                await box.furnish()
            except BaseException:
                await unbroken(self.end(box))
                raise
        return box

    async def _create(self, profile: ModalSettings, image: Any, *, open_network: bool) -> Any:
        """Ask for a sandbox; while quota or rate forbid it, wait and ask again.

        Where Modal says how long to wait, its SDK does so by itself. When its `start_timeout_s`
        is over or we are cancelled, a sandbox that comes all the same is ended.
        """
        give_up = time.monotonic() + self._patience_s
        pause_s = BACKOFF_S
        while True:
            creating = asyncio.ensure_future(
                self._account.create(profile, image, self._labels, open_network=open_network)
            )
            try:
                async with asyncio.timeout(profile.start_timeout_s):
                    return await asyncio.shield(creating)
            except TimeoutError as error:  # Modal's own patience is 21 minutes
                creating.add_done_callback(self._end_late)
                raise SandboxUnavailable(
                    f"Modal started no sandbox in {profile.start_timeout_s:.0f} s",
                    retry_after_s=BACKOFF_MAX_S,
                ) from error
            except asyncio.CancelledError:
                creating.add_done_callback(self._end_late)
                raise
            except SandboxUnavailable as error:
                if time.monotonic() + pause_s > give_up:
                    error.retry_after_s = min(max(self._patience_s / 10, 1.0), BACKOFF_MAX_S)
                    raise
                logger.warning(
                    "waiting %.0f s: %s", pause_s, error, extra={"action": "sandbox_throttled"}
                )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, BACKOFF_MAX_S)

    def _end_late(self, creating: asyncio.Future[Any]) -> None:
        if not creating.cancelled() and creating.exception() is None:
            ending = asyncio.ensure_future(self.end_id(creating.result().object_id))
            ending.add_done_callback(_seen)

    async def end(self, box: Box) -> None:
        """Never raises: what stays behind ends by its idle time limit, or by the reaper."""
        box.spent = True
        await self.end_id(box.sandbox_id)
        self._observer.gone(box.sandbox_id)

    async def end_id(self, sandbox_id: str) -> None:
        """Likewise, of one that there is no `Box` of; the observer hears nothing."""
        try:
            await self._account.terminate(sandbox_id)
        except SandboxError as error:
            logger.warning(
                "sandbox %s may go on: %s", sandbox_id, error, extra={"action": "sandbox_left"}
            )


class Readers:
    """One sandbox per profile that never holds slots, to look into its image and assets."""

    def __init__(self, factory: BoxFactory, is_open: Callable[[], bool]) -> None:
        self._factory = factory
        self._is_open = is_open
        self._boxes: dict[str, Box] = {}
        self._making = asyncio.Lock()

    async def get(self, name: str, profile: ModalSettings) -> Box:
        """The profile's, made when it is first needed. Raises what `BoxFactory.make` does."""
        async with self._making:
            box = self._boxes.get(name)
            if box is not None and time.monotonic() - box.touched > TOUCH_S:
                with contextlib.suppress(SandboxError):  # then it is spent
                    box.spent = True
                    await box.touch()
                    box.spent = False
            if box is None or box.spent or not box.is_fresh:
                if not self._is_open():
                    raise SandboxError("the modal backend is not running")
                if box is not None:
                    await self._factory.end(box)
                box = self._boxes[name] = await self._factory.make(profile)
            box.idle_since = time.monotonic()
            return box

    async def end_idle(self, *, all_of_them: bool = False) -> None:
        """End those that nobody has used for the profile's `scale_down_s`."""
        for name, box in list(self._boxes.items()):
            if all_of_them or time.monotonic() - box.idle_since > box.profile.scale_down_s:
                del self._boxes[name]
                await self._factory.end(box)


def _seen(task: asyncio.Future[None]) -> None:
    """`end_id` has said what there was to say."""
    if not task.cancelled():
        task.exception()
