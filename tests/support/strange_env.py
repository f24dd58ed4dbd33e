"""Envs that go wrong in ways a worker has to survive: `strange_env:<NAME>`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

from envs.base import Verdict
from envs.gsm8k import Gsm8k
from hermes_queue.errors import EnvInfraError
from workers import runtime as runtimes


class _Strange(Gsm8k):
    verdict = Verdict(1.0)

    async def verify(self, item, context, transcript):
        return self.verdict


class _UnknownTool(Gsm8k):
    tools = ("teleport",)


class _Unencodable(_Strange):
    verdict = Verdict(1.0, report={"reason": "\ud800", "set": {1}})


class _NotANumber(_Strange):
    verdict = Verdict(float("nan"))


class _Huge(_Strange):
    verdict = Verdict(1.0, report={"noise": [str(n * 7919) for n in range(400_000)]})


class _Outage(_Strange):
    """Its provider is down as long as the file `STRANGE_OUTAGE` names exists."""

    async def setup(self, item, context):
        if Path(os.environ["STRANGE_OUTAGE"]).exists():
            raise EnvInfraError("the package index is down")


class _Exits(_Strange):
    async def verify(self, item, context, transcript):
        sys.exit(7)


class _ExitsInATask(_Strange):
    """asyncio hands this one to whoever runs the event loop, too."""

    async def verify(self, item, context, transcript):
        await asyncio.gather(_Exits().verify(item, context, transcript))


class _Interrupts(_Strange):
    def prompt(self, item):
        raise KeyboardInterrupt


class _CancelsItself(_Strange):
    async def setup(self, item, context):
        raise asyncio.CancelledError


class _Closes(_Strange):
    async def setup(self, item, context):
        raise GeneratorExit


class _Swallows(_Strange):
    """Goes on when its time is over, as often as `times`."""

    def __init__(self, times):
        self.times = times

    async def verify(self, item, context, transcript):
        for _ in range(self.times):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        await asyncio.Event().wait()


class _BlocksOnce(_Strange):
    """Stops the event loop for good, unless the file `STRANGE_BLOCKED` says that it has done so."""

    async def verify(self, item, context, transcript):
        once = Path(os.environ["STRANGE_BLOCKED"])
        if not once.exists():
            once.touch()
            time.sleep(3600)
        return self.verdict


class _AfterTheBlock(_Strange):
    """Is in the middle of its work when the event loop stops."""

    async def setup(self, item, context):
        while not Path(os.environ["STRANGE_BLOCKED"]).exists():
            await asyncio.sleep(0.05)


class _Killer(_Strange):
    """Kills the worker that runs it, once the ledger has some of its log for the dead letter."""

    async def setup(self, item, context):
        worker = runtimes.get()
        while not worker.ledger.client.exists(worker.ledger.key(f"log:{worker.owner}")):
            await asyncio.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)


KILLER, BLOCKS_ONCE, AFTER_THE_BLOCK = _Killer(), _BlocksOnce(), _AfterTheBlock()
EXITS, EXITS_IN_A_TASK, INTERRUPTS, CANCELS_ITSELF, CLOSES = (
    _Exits(),
    _ExitsInATask(),
    _Interrupts(),
    _CancelsItself(),
    _Closes(),
)
UNKNOWN_TOOL, UNENCODABLE, NOT_A_NUMBER, HUGE, OUTAGE = (
    _UnknownTool(),
    _Unencodable(),
    _NotANumber(),
    _Huge(),
    _Outage(),
)


class _SlowSetup(_Strange):
    async def setup(self, item, context):
        await asyncio.Event().wait()


class _SlowVerify(_Strange):
    async def verify(self, item, context, transcript):
        await asyncio.Event().wait()


class _Grading(_Strange):
    """Is graded by a command, in the slot after it was renewed as another one."""

    async def verify(self, item, context, transcript):
        await context.renew(replace(context.slot.spec, profile="of the grading"))
        await context.run("grade")
        return Verdict(0.0)


SLOW_SETUP, SLOW_VERIFY, GRADING = _SlowSetup(), _SlowVerify(), _Grading()
SWALLOWS_ONE, SWALLOWS_ALL = _Swallows(1), _Swallows(1_000_000)
