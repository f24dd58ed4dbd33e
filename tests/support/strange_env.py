"""Envs that go wrong in ways a worker has to survive: `strange_env:<NAME>`."""

from __future__ import annotations

from envs.base import Verdict
from envs.gsm8k import Gsm8k


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


UNKNOWN_TOOL, UNENCODABLE, NOT_A_NUMBER, HUGE = (
    _UnknownTool(),
    _Unencodable(),
    _NotANumber(),
    _Huge(),
)
