"""The calls of a judge, what they cost, and the verdict with its number."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from envs.base import NamesJudge, ScoresByJudge, Verdict
from hermes_plugins.judge.kept import KeptOpinion
from hermes_plugins.judge.opinion import Opinion, Unusable, founded, read_opinion
from hermes_plugins.judge.transcript import question, shown
from hermes_queue.agent.endpoint.choice import OwnEndpoints
from hermes_queue.agent.endpoint.limiter import Limiter
from hermes_queue.agent.endpoint.request import check_sampling
from hermes_queue.agent.kinds.recorded import recorded_params
from hermes_queue.agent.loop import total
from hermes_queue.agent.prices import cost_usd
from hermes_queue.agent.registry import AgentScript, make_chat, warm_up
from hermes_queue.agent.tokens.replies import ask
from hermes_queue.errors import (
    ContextLengthExceeded,
    DeadlineExceeded,
    EnvBug,
    ModelError,
    TrajectoryFailure,
    foreign_error,
    printable,
)
from hermes_queue.extensions import offers
from hermes_queue.ledger import Spent
from hermes_queue.models import AgentSpec, Message, Usage
from hermes_queue.wire.judge import JudgeSpec
from workers.attempt import Attempt
from workers.calls.uncounted import NotCounting
from workers.clock import Clock
from workers.draft import Draft
from workers.verdicts import check

logger = logging.getLogger(__name__)

REWARD = "judge"
ANSWERS_MOST = 3
"""Answers that a judge may give until one of them is usable."""
UNFINISHED = "the attempt was ended before the judge had answered"
WHY_CHARACTERS = 500


@dataclass(slots=True)
class _Judgement:
    """What came of asking."""

    opinion: Opinion | None = None
    why: str = UNFINISHED
    """Why there is none."""
    kept: bool = False
    usage: Usage = field(default_factory=Usage)


class Judge:
    """The judge of one trajectory. Its time counts towards no deadline of the attempt.

    Raises:
        ModelConfigError: this worker cannot ask it.
    """

    def __init__(self, spec: JudgeSpec, attempt: Attempt) -> None:
        settings = attempt.services.model
        self._spec = spec
        self._draft = attempt.draft
        self._env = attempt.steps.env
        self._item = attempt.steps.items[0]
        self._before_turn = attempt.before_turn
        self._settings = settings
        self._clock = Clock()
        self._endpoints = OwnEndpoints.of(settings).allowed(spec.base_url)
        check_sampling(spec.sampling)
        script = _script(attempt.draft, NotCounting(attempt.limiter, self._clock))
        self._chat = make_chat(_agent(spec), script, settings)

    def provisional(self, verdict: Verdict) -> Verdict | None:
        """What counts if the judge never answers; None if the env's score needs its answer."""
        return None if self._decides else self._with(verdict, _Judgement())

    async def final(self, verdict: Verdict) -> Verdict:
        """The verdict with `rewards.judge`, or with the reason why there is none.

        Part of the score only by the env.

        Raises:
            ModelError, ModelConfigError: the judge's endpoint failed, and the score needs it.
            EnvBug: the env makes no verdict of it.
        """
        found, clock = _Judgement(), self._draft.clock
        try:
            async with clock.stage("verify"):
                await clock.not_counting(partial(self._judge, found))()
        except Exception as error:
            if self._decides:
                raise
            found.why = self._failed(error)
        verdict = self._with(verdict, found)
        if isinstance(self._env, ScoresByJudge):
            scored = self._env.score_by_judge(self._item, verdict, verdict.rewards.get(REWARD))
            verdict = await check(scored, self._env)
        return verdict

    @property
    def _decides(self) -> bool:
        return isinstance(self._env, ScoresByJudge)

    def _failed(self, error: Exception) -> str:
        """Note that nobody can judge a trajectory whose score stands; returns why."""
        failure = error if isinstance(error, TrajectoryFailure) else EnvBug(foreign_error(error))
        self._draft.after_failure = failure
        name, extra = self._draft.job.trajectory_id, {"action": "judge_failed"}
        bug = error if failure is not error else None
        logger.warning("%s is not judged: %s", name, failure, exc_info=bug, extra=extra)
        return printable(f"{failure.cause}: {failure}")[:WHY_CHARACTERS]

    async def _judge(self, found: _Judgement) -> None:
        spec, messages = self._spec, tuple(self._draft.agent.messages)
        lines = await asyncio.to_thread(shown, messages, spec)
        memory = await asyncio.to_thread(KeptOpinion, spec, lines, self._endpoints)
        opinion = await asyncio.to_thread(memory.read)
        if opinion is not None:
            # Other messages may have been shown in the same way.
            found.opinion = await asyncio.to_thread(founded, opinion, messages)
            found.kept = True
            return
        self._clock.start()
        try:
            async with self._clock.stage("verify", limit_s=spec.timeout_s):
                await self._ask(found, lines, messages)
        except DeadlineExceeded as error:
            raise self._late() from error
        if found.opinion is not None:
            await asyncio.to_thread(memory.write, found.opinion)

    async def _ask(
        self, found: _Judgement, lines: Sequence[str], messages: Sequence[Message]
    ) -> None:
        spec, before_turn = self._spec, self._before_turn
        wait = before_turn and self._clock.not_counting(before_turn)
        for _ in range(ANSWERS_MOST):
            if wait:
                await wait()
            case = secrets.token_hex(8)
            asked = question(spec, lines, case)
            try:
                reply = await ask(
                    self._chat,
                    asked,
                    (),
                    spec.sampling,
                    self._clock.stage_end,
                    timeline=self._draft.clock.timeline,
                    model=spec.model,
                )
            except ContextLengthExceeded:
                found.why = "the transcript does not fit the judge: lower transcript_chars"
                return
            except TimeoutError as error:
                raise self._late() from error
            self._pay(found, reply.turn.usage)
            try:
                found.opinion = await asyncio.to_thread(
                    read_opinion, reply.message.content or "", case, messages
                )
                return
            except Unusable as problem:
                found.why = printable(f"no usable answer: {problem}")
                name, extra = self._draft.job.trajectory_id, {"action": "judge_unusable"}
                logger.warning("%s: the judge's answer is unusable: %s", name, problem, extra=extra)

    def _late(self) -> ModelError:
        return ModelError(f"the judge has not answered within {self._spec.timeout_s:.0f} s")

    def _pay(self, found: _Judgement, usage: Usage) -> None:
        """Count an answer, usable or not, in the run's budgets and the cost of the record."""
        found.usage = total([found.usage, usage])
        tokens = usage.prompt_tokens + usage.completion_tokens
        cost = cost_usd(self._spec.model, usage, self._settings.prices)
        self._draft.after_spent += Spent(tokens, cost)

    def _with(self, verdict: Verdict, found: _Judgement) -> Verdict:
        opinion, model = found.opinion, self._spec.model
        report: dict[str, Any] = {"model": model, "kept": found.kept}
        report |= _reported(opinion) if opinion else {"error": found.why}
        report |= found.usage.model_dump(include={"prompt_tokens", "completion_tokens"})
        rewards = dict(verdict.rewards)
        # An agent's work may have had a hand in what the env measured.
        if (of_env := rewards.pop(REWARD, None)) is not None:
            report["of_env"] = of_env
        if opinion:
            rewards[REWARD] = opinion.score
        further: dict[str, Any] = {"judge": report}
        known = verdict.report.get("findings", [])
        if opinion and opinion.findings and isinstance(known, list):
            further["findings"] = [*known, *_findings(opinion, model)]
        return replace(verdict, rewards=rewards, report={**verdict.report, **further})


async def open_judge(attempt: Attempt) -> Judge | None:
    """The judge that the job names, else the env. Nobody judges what no agent has done.

    Raises:
        EnvBug: the env names something else than a judge.
        ModelConfigError: this worker cannot ask it, whatever the agent does.
    """
    job, env = attempt.draft.job, attempt.steps.env
    if recorded_params(job.agent) is not None:
        return None
    spec = job.judge
    if spec is None and offers(env, NamesJudge):
        spec = env.judge(attempt.steps.items[0])
    if spec is None:
        return None
    if not isinstance(spec, JudgeSpec):
        raise EnvBug(f"env {env.name}: judge() must return a JudgeSpec or None")
    await warm_up("openai")
    return Judge(spec, attempt)


def _agent(spec: JudgeSpec) -> AgentSpec:
    return AgentSpec(
        kind="openai", model=spec.model, base_url=spec.base_url, sampling=spec.sampling
    )


def _script(draft: Draft, limiter: Limiter) -> AgentScript:
    async def oracle() -> tuple[list[Any], str]:
        return [], ""

    job = draft.job
    return AgentScript(
        oracle=oracle,
        trajectory_id=job.trajectory_id,
        group_id=job.group_id,
        endpoint_failures=draft.endpoint_failures,
        limiter=limiter,
    )


def _reported(opinion: Opinion) -> dict[str, Any]:
    fields = opinion.model_dump(mode="json", include={"score", "reason", "unfounded"})
    return {name: value for name, value in fields.items() if name == "score" or value}


def _findings(opinion: Opinion, model: str) -> list[dict[str, Any]]:
    """The passages in the form of `TranscriptFinding`."""
    by = f"judge {model}"[:80]
    return [{**each.model_dump(mode="json"), "by": by} for each in opinion.findings]
