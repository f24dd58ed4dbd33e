"""Envs that go wrong in ways a worker has to survive: `strange_env:<NAME>`."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from envs.base import Verdict
from envs.gsm8k import Gsm8k
from hermes_queue.errors import EnvInfraError


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


class _Killer(_Strange):
    """Kills the worker that runs it."""

    async def setup(self, item, context):
        os.kill(os.getpid(), signal.SIGKILL)


KILLER = _Killer()
UNKNOWN_TOOL, UNENCODABLE, NOT_A_NUMBER, HUGE, OUTAGE = (
    _UnknownTool(),
    _Unencodable(),
    _NotANumber(),
    _Huge(),
    _Outage(),
)
