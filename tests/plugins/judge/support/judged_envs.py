"""Envs that name a judge, or let one decide on the score."""

from __future__ import annotations

from typing import Any

from envs.base import Verdict
from envs.gsm8k import Gsm8k
from hermes_queue.models import JudgeSpec


class _Named(Gsm8k):
    name = "named"

    def judge(self, item: Any) -> JudgeSpec | None:
        return JudgeSpec(model="envs-own", prompt="Is it polite?")


class _ByJudge(Gsm8k):
    name = "by_judge"

    def score_by_judge(self, item: Any, verdict: Verdict, judged: float | None) -> Verdict:
        return Verdict(judged or 0.0, verdict.rewards, verdict.report)


class _OfAnotherKind(Gsm8k):
    name = "of_another_kind"

    def judge(self, item: Any) -> Any:
        return {"model": "m"}


class _RewardsJudge(Gsm8k):
    name = "rewards_judge"

    async def verify(self, item: Any, slot: Any, messages: Any) -> Verdict:
        return Verdict(0.0, {"judge": 1.0})


REWARDS_JUDGE = _RewardsJudge()
NAMED, BY_JUDGE, OF_ANOTHER_KIND = _Named(), _ByJudge(), _OfAnotherKind()
