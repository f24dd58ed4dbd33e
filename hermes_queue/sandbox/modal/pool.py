"""The sandboxes of one profile: made on demand, replaced before they expire, ended when idle."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping

from hermes_queue.cancellation import unbroken
from hermes_queue.errors import SandboxError
from hermes_queue.sandbox.modal.box import ModalSandbox
from hermes_queue.sandbox.modal.profiles import image_name
from hermes_queue.settings import ModalSettings, PriceSettings

logger = logging.getLogger(__name__)

TOUCH_S = 60.0
"""Interval of signs of life for the sandboxes."""
STARVED_S = 60.0
"""After this time a waiting job gets a sandbox emptied, if all hold other assets."""


class Pool:
    """The pool of one profile. Used from one event loop."""

    def __init__(
        self,
        profile: ModalSettings,
        create: Callable[[ModalSettings], Awaitable[ModalSandbox]],
        end: Callable[[ModalSandbox], Awaitable[None]],
        *,
        slots: int,
    ) -> None:
        """`create` makes a furnished sandbox, or raises SandboxError; `end` never raises.

        `slots` is the worker's maximum of concurrent leases.
        """
        self.profile = profile
        self.image = image_name(profile)
        self._create_box, self._end_box = create, end
        self._slots = slots
        self.boxes: dict[str, ModalSandbox] = {}
        self._per_box = profile.slots_per_sandbox
        """Leases per sandbox; fewer than in the profile if the image cannot hold them."""
        self._box_usd_per_s = PriceSettings().modal_usd_per_s(
            cpu=profile.cpu, memory_mb=profile.memory_mb, gpu=profile.gpu
        )
        self._creating: set[asyncio.Task[None]] = set()
        self._waiting = 0
        self._starving: list[Mapping[str, str]] = []
        """Assets of jobs that have waited too long, in order: empty sandboxes are reserved for
        them."""
        self._changed = asyncio.Event()
        self._stopped = False

    @property
    def usd_per_s(self) -> float:
        """Price of a slot: its share of a sandbox, as if all its slots were leased."""
        return self._box_usd_per_s / self._per_box

    def resize(self, slots: int) -> None:
        """Set the worker's maximum of concurrent leases."""
        self._slots = slots
        self._wake()

    async def provision(self) -> None:
        """Start the minimum of sandboxes. Raises SandboxError."""
        await asyncio.gather(*map(asyncio.shield, self._fill_up()))

    async def take(self, mounts: Mapping[str, str]) -> ModalSandbox:
        """A sandbox with room for a lease, which is reserved. Raises SandboxError."""
        self._waiting += 1
        try:
            while True:
                if self._stopped:
                    raise SandboxError("the modal backend is not running")
                changed = self._changed  # before looking: a change in between must not be missed
                if box := self._pick(mounts):
                    box.reserve(mounts)
                    return box
                creation = self._grow_if_useful(mounts)
                if creation is not None:
                    # Shielded: other jobs wait for it, too, and get its slots if we are cancelled.
                    await asyncio.shield(creation)
                else:
                    await self._wait_for_room(changed, mounts)
        finally:
            self._waiting -= 1
            if any(others is mounts for others in self._starving):
                self._starving = [others for others in self._starving if others is not mounts]
                self._wake()

    async def _wait_for_room(self, changed: asyncio.Event, mounts: Mapping[str, str]) -> None:
        """Wait until something changes. Jobs with a sandbox's own assets could occupy it for ever.

        So after a while one sandbox with other assets takes no further leases and ends with its
        last. It counts until then, so that the profile's limit holds.
        """
        try:
            # Not `wait_for`: in Python 3.11 it loses a cancellation that coincides with the change.
            async with asyncio.timeout(STARVED_S):
                await changed.wait()
        except TimeoutError:
            if not any(others is mounts for others in self._starving):
                self._starving.append(mounts)
            usable = self._usable()
            others = [box for box in usable if box.shown and box.shown != mounts]
            if others and len(others) == len(usable) and not any(box.closing for box in usable):
                min(others, key=lambda box: len(box.leases) + box.reserved).closing = True

    async def freed(self, box: ModalSandbox) -> None:
        """Handle an ended lease or reservation: end a spent sandbox, wake waiting jobs."""
        if box.is_empty and (box.spent or box.closing or not box.is_fresh):
            await self.drop(box)
        self._wake()

    async def drop(self, box: ModalSandbox) -> None:
        """Take a sandbox out of service and end it."""
        box.spent = True
        if self.boxes.pop(box.sandbox_id, None) is not None:
            self._wake()
            await unbroken(self._end_box(box))

    async def stop(self) -> None:
        """End every sandbox, also those that are still being made."""
        self._stopped = True
        self._wake()
        for task in list(self._creating):
            task.cancel()
        await asyncio.gather(*self._creating, return_exceptions=True)
        await asyncio.gather(*(self.drop(box) for box in list(self.boxes.values())))

    async def tend(self) -> None:
        """Send signs of life, scale down, replace sandboxes that are about to expire."""
        now = time.monotonic()
        for box in list(self.boxes.values()):
            idle = box.is_empty and now - box.idle_since >= self.profile.scale_down_s
            surplus = idle and len(self._usable()) > self.profile.min_sandboxes
            if box.is_empty and (box.spent or box.closing or not box.is_fresh or surplus):
                await self.drop(box)
        late = [box for box in self.boxes.values() if now - box.touched >= TOUCH_S]
        await asyncio.gather(*map(self._touch, late))
        self._fill_up()  # not awaited: sandboxes that start slowly must not let others idle out

    async def _touch(self, box: ModalSandbox) -> None:
        try:
            await box.touch()
        except SandboxError as error:
            logger.warning("lost a sandbox: %s", error, extra={"action": "sandbox_lost"})
            box.spent = True
            if box.is_empty:
                await self.drop(box)

    # --- inside -----------------------------------------------------------------------

    def _max(self) -> int:
        """Maximum of sandboxes, not counting those about to be replaced."""
        return self.profile.max_sandboxes or max(
            self.profile.min_sandboxes, -(-self._slots // self._per_box)
        )

    def _usable(self) -> list[ModalSandbox]:
        return [box for box in self.boxes.values() if not box.spent and box.is_fresh]

    def _pick(self, mounts: Mapping[str, str]) -> ModalSandbox | None:
        """The fullest usable sandbox, so that the others can become idle."""
        able = [box for box in self._usable() if box.has_room(mounts)]
        if self._starving and self._starving[0] != mounts:
            able = [box for box in able if not box.is_empty]
        return max(able, key=lambda box: len(box.leases) + box.reserved, default=None)

    def _grow_if_useful(self, mounts: Mapping[str, str]) -> asyncio.Task[None] | None:
        """Make one more sandbox, unless those being made have room for all waiting jobs."""
        if len(self._creating) * self._per_box >= self._waiting:
            return None
        usable = self._usable()
        if len(usable) + len(self._creating) >= self._max():
            # If all slots of a sandbox see its assets, these must be the same. An idle sandbox with
            # others is ended; else, unless there is a limit, the job gets another sandbox.
            others = [box for box in usable if box.shown and box.shown != mounts]
            if idle := [box for box in others if box.is_empty]:
                idle[0].spent = True
                asyncio.ensure_future(self.drop(idle[0])).add_done_callback(_note)
            elif not others or self.profile.max_sandboxes:
                return None
        return self._grow()

    def _fill_up(self) -> list[asyncio.Task[None]]:
        """Start making the sandboxes missing from the minimum."""
        missing = self.profile.min_sandboxes - len(self._usable()) - len(self._creating)
        return [self._grow() for _ in range(missing)]

    def _grow(self) -> asyncio.Task[None]:
        task = asyncio.create_task(self._create())
        self._creating.add(task)
        task.add_done_callback(self._creating.discard)
        task.add_done_callback(_note)
        return task

    async def _create(self) -> None:
        try:
            box = await self._create_box(self.profile)
            self.boxes[box.sandbox_id] = box
            self._per_box = box.capacity
        finally:
            # Jobs that counted on it continue or, if it failed, try themselves. Only in the next
            # step of the loop: until then this task counts as creating, and they would make no
            # other one.
            asyncio.get_running_loop().call_soon(self._wake)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _note(task: asyncio.Future[None]) -> None:
    """Log the outcome, which nobody may have awaited."""
    if not task.cancelled() and (error := task.exception()):
        logger.warning("cannot make a sandbox: %s", error, extra={"action": "sandbox_failed"})
