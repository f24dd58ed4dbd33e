"""Containers made in advance, and those that could not be removed yet."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping

from hermes_plugins.containers.box import ContainerBox
from hermes_plugins.containers.host import ContainerHost
from hermes_plugins.images.containers.plan import ContainerPlan
from hermes_queue.cancellation import end_tasks, unbroken
from hermes_queue.errors import SandboxError
from hermes_queue.sandbox.fleet import SandboxObserver

logger = logging.getLogger(__name__)

REMOVE_S = 20.0
"""Then the host goes on removing a container without us: deleting what its slot has made may take
minutes. Its programs end first."""

MakeContainer = Callable[[ContainerPlan, Mapping[str, str]], Awaitable[str]]
"""Makes a container with these labels beside ours."""


class Stock:
    """The containers of one backend that hold no lease."""

    def __init__(
        self, host: ContainerHost, make: MakeContainer, observer: SandboxObserver, *, starting: int
    ) -> None:
        self._host = host
        self._make = make
        self._observer = observer
        self.starting = asyncio.Semaphore(starting)
        """Held while a container is made."""
        self._spare: dict[tuple[object, ...], asyncio.Task[ContainerBox]] = {}
        self._waiting: Counter[tuple[object, ...]] = Counter()
        self._left: set[str] = set()
        """Ended containers that are still there: the host did not answer."""
        self._removing: dict[str, asyncio.Task[None]] = {}
        """By container."""
        self.is_open = False

    @contextlib.contextmanager
    def waiting(self, plan: ContainerPlan, *, makes: bool) -> Iterator[None]:
        """While a job waits for a place; `makes`: one container is made for it meanwhile."""
        shape = plan.shape
        self._waiting[shape] += 1
        if makes and shape not in self._spare and self.is_open:
            task = self._spare[shape] = asyncio.create_task(self.new(plan, {}))
            task.add_done_callback(lambda done: self._made(shape, done))
        try:
            yield
        finally:
            self._waiting[shape] -= 1

    def _made(self, shape: tuple[object, ...], task: asyncio.Task[ContainerBox]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        if self._spare.get(shape) is task:
            del self._spare[shape]
        extra = {"action": "sandbox_failed"}
        logger.warning("cannot make a container in advance: %s", error, extra=extra)

    async def take(self, plan: ContainerPlan, labels: Mapping[str, str]) -> ContainerBox:
        """A container of this plan: one made in advance, else a new one. Raises SandboxError."""
        spare = self._spare.pop(plan.shape, None)
        if spare is not None:
            try:
                box = await asyncio.shield(spare)
            except SandboxError:
                box = None
            except asyncio.CancelledError:
                if not spare.cancelled():
                    self._spare.setdefault(plan.shape, spare)
                raise
            if box is not None and await self._lives(box):
                box.plan = plan
                return box
        return await self.new(plan, labels)

    async def _lives(self, box: ContainerBox) -> bool:
        """Whether a container that was made in advance is still there."""
        try:
            if (await self._host.state(box.container)).running:
                return True
        except SandboxError:
            pass
        await self.drop(box)
        return False

    async def new(self, plan: ContainerPlan, labels: Mapping[str, str]) -> ContainerBox:
        """A new container. Raises SandboxError."""
        async with self.starting:
            container = await self._make(plan, labels)
        box = ContainerBox(self._host, container, plan)
        if not self.is_open:
            await unbroken(self.drop(box))
            raise SandboxError("the backend was stopped")
        return box

    async def drop(self, box: ContainerBox) -> None:
        """End a container; if that is not possible now, later. Never raises."""
        box.spent = True
        await self.end(box.container)

    async def end(self, container: str) -> None:
        """The same for a container without a box. Never raises."""
        await self.remove(container)
        self._observer.gone(container)

    async def remove(self, container: str) -> None:
        """The same for a container that the ledger does not know."""
        removing = self._removing.get(container)
        if removing is None:
            removing = self._removing[container] = asyncio.create_task(self._remove(container))
            removing.add_done_callback(lambda _: self._removing.pop(container))
        await asyncio.wait({removing}, timeout=REMOVE_S)

    async def _remove(self, container: str) -> None:
        try:
            await self._host.remove(container)
        except SandboxError as error:
            self._left.add(container)
            extra = {"action": "sandbox_left"}
            logger.warning("container %s is removed later: %s", container, error, extra=extra)
        else:
            self._left.discard(container)

    async def tend(self) -> None:
        """Remove what was left, and containers that no job waits for any more."""
        await asyncio.gather(*map(self.remove, list(self._left)))
        for shape, task in list(self._spare.items()):
            if not self._waiting[shape] and task.done():
                del self._spare[shape]
                if not task.cancelled() and task.exception() is None:
                    await self.drop(task.result())
        self._waiting = +self._waiting

    async def close(self, give_up_s: float) -> None:
        """Remove everything; containers of an engine that is away are tried for `give_up_s`."""
        self.is_open = False
        spares, self._spare = list(self._spare.values()), {}
        for found in await asyncio.gather(*spares, return_exceptions=True):
            if isinstance(found, ContainerBox):
                await self.drop(found)
        ends = asyncio.get_running_loop().time() + give_up_s
        while (self._left or self._removing) and asyncio.get_running_loop().time() < ends:
            await asyncio.sleep(0.5)
            await asyncio.gather(*map(self.remove, list(self._left)))
        await end_tasks(*self._removing.values())
