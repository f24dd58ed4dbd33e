"""The calls of a judge, what they cost, and the verdict with its number."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from dataclasses import dataclass, field, replace
from typing import Any

from envs.base import Environment, NamesJudge, ScoresByJudge, Verdict
from hermes_queue.agent.endpoint.limiter import Limiter, Unlimited
from hermes_queue.agent.kinds.recorded import recorded_params
from hermes_queue.agent.loop import total
from hermes_queue.agent.prices import cost_usd
from hermes_queue.agent.registry import AgentScript, make_chat, warm_up
from hermes_queue.errors import ContextLengthExceeded, EnvBug
from hermes_queue.models import AgentSpec, Usage
from hermes_queue.settings import ModelSettings
from hermes_queue.wire.judge import JudgeSpec
from workers.calls.uncounted import NotCounting
from workers.draft import Draft
from workers.judging.kept import KeptOpinion
from workers.judging.opinion import Opinion, Unusable, read_opinion
from workers.judging.transcript import question, shown
from workers.verdicts import check

logger = logging.getLogger(__name__)

REWARD = "judge"
ANSWERS_MOST = 3
"""Answers that a judge may give until one of them is usable."""


@dataclass(slots=True)
class _Judgement:
    """What came of asking."""

    opinion: Opinion | None = None
    why: str = ""
    """Why there is none."""
    kept: bool = False
    usage: Usage = field(default_factory=Usage)


def judge_of(draft: Draft, env: Environment[Any], item: Any) -> JudgeSpec | None:
    """Who judges: the job's judge, else the env's; nobody if no agent has worked.

    Raises:
        EnvBug: the env names something else than a judge.
    """
    if recorded_params(draft.job.agent) is not None:
        return None
    if draft.job.judge is not None or not isinstance(env, NamesJudge):
        return draft.job.judge
    named = env.judge(item)
    if named is not None and not isinstance(named, JudgeSpec):
        raise EnvBug(f"env {env.name}: judge() must return a JudgeSpec or None")
    return named


async def judged(
    draft: Draft,
    env: Environment[Any],
    item: Any,
    verdict: Verdict,
    settings: ModelSettings,
    limiter: Limiter | None,
) -> Verdict:
    """The verdict with `rewards.judge`, if somebody judges. Part of the score only by the env.

    Raises:
        ModelError, ModelConfigError: the judge's endpoint failed; nothing is measured.
        DeadlineExceeded: it took too long.
        EnvBug: the env makes no verdict of it.
    """
    spec = judge_of(draft, env, item)
    if spec is None:
        return verdict
    async with draft.clock.stage("verify", limit_s=spec.timeout_s):
        await warm_up("openai")
        found = await _asked(draft, spec, settings, limiter)
    opinion = found.opinion
    report: dict[str, Any] = {"model": spec.model, "kept": found.kept}
    report |= _reported(opinion) if opinion else {"error": found.why}
    report |= found.usage.model_dump(include={"prompt_tokens", "completion_tokens"})
    rewards = dict(verdict.rewards)
    if REWARD in rewards:
        raise EnvBug(f"env {env.name}: the reward {REWARD!r} is that of the job's judge")
    if opinion:
        rewards[REWARD] = opinion.score
    passages = _findings(opinion, spec.model) if opinion else []
    known = verdict.report.get("findings", [])
    further = {"judge": report}
    if passages and isinstance(known, list):
        further["findings"] = [*known, *passages]  # type: ignore[assignment]
    verdict = replace(verdict, rewards=rewards, report={**verdict.report, **further})
    if isinstance(env, ScoresByJudge):
        verdict = await check(env.score_by_judge(item, verdict, rewards.get(REWARD)), env)
    return verdict


async def _asked(
    draft: Draft, spec: JudgeSpec, settings: ModelSettings, limiter: Limiter | None
) -> _Judgement:
    messages = tuple(draft.agent.messages)
    lines = await asyncio.to_thread(shown, messages, spec)
    memory = KeptOpinion(spec, lines)
    if (opinion := await asyncio.to_thread(memory.read)) is not None:
        return _Judgement(opinion, kept=True)
    found = _Judgement()
    chat = make_chat(_agent(spec), _script(draft, limiter), settings)
    deadline = time.monotonic() + spec.timeout_s
    for _ in range(ANSWERS_MOST):
        case = secrets.token_hex(8)
        try:
            reply = await chat.complete(question(spec, lines, case), (), spec.sampling, deadline)
        except ContextLengthExceeded:
            found.why = "the transcript does not fit the judge: lower transcript_chars"
            return found
        deadline += reply.waited_s
        _pay(draft, spec, reply.turn.usage, settings)
        found.usage = total([found.usage, reply.turn.usage])
        try:
            found.opinion = await asyncio.to_thread(
                read_opinion, reply.message.content or "", case, messages
            )
        except Unusable as problem:
            found.why = f"no usable answer: {problem}"
            name, extra = draft.job.trajectory_id, {"action": "judge_unusable"}
            logger.warning("%s: the judge's answer is unusable: %s", name, problem, extra=extra)
            continue
        await asyncio.to_thread(memory.write, found.opinion)
        return found
    return found


def _agent(spec: JudgeSpec) -> AgentSpec:
    return AgentSpec(
        kind="openai", model=spec.model, base_url=spec.base_url, sampling=spec.sampling
    )


def _script(draft: Draft, limiter: Limiter | None) -> AgentScript:
    async def oracle() -> tuple[list[Any], str]:
        return [], ""

    job = draft.job
    return AgentScript(
        oracle=oracle,
        trajectory_id=job.trajectory_id,
        group_id=job.group_id,
        endpoint_failures=sum(earlier.failure.cause == "model" for earlier in draft.earlier),
        limiter=NotCounting(limiter or Unlimited(), draft.clock),
    )


def _pay(draft: Draft, spec: JudgeSpec, usage: Usage, settings: ModelSettings) -> None:
    """Count an answer, usable or not, in the run's budgets and the cost of the record."""
    draft.judge_tokens += usage.prompt_tokens + usage.completion_tokens
    cost = cost_usd(spec.model, usage, settings.prices)
    known = draft.judge_usd
    draft.judge_usd = None if cost is None or known is None else known + cost


def _reported(opinion: Opinion) -> dict[str, Any]:
    fields = opinion.model_dump(mode="json", include={"score", "reason", "unfounded"})
    return {name: value for name, value in fields.items() if name == "score" or value}


def _findings(opinion: Opinion, model: str) -> list[dict[str, Any]]:
    """The passages in the form of `TranscriptFinding`."""
    by = f"judge {model}"[:80]
    return [{**each.model_dump(mode="json"), "by": by} for each in opinion.findings]
