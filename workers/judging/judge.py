"""The calls of a judge, what they cost, and the verdict with its number."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from envs.base import Environment, NamesJudge, ScoresByJudge, Verdict
from hermes_queue.agent.endpoint.choice import OwnEndpoints
from hermes_queue.agent.endpoint.limiter import Limiter, Unlimited
from hermes_queue.agent.endpoint.request import check_sampling
from hermes_queue.agent.kinds.recorded import recorded_params
from hermes_queue.agent.loop import BeforeTurn, total
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
from hermes_queue.settings import ModelSettings
from hermes_queue.wire.judge import JudgeSpec
from workers.calls.uncounted import NotCounting
from workers.clock import Clock
from workers.draft import Draft
from workers.judging.kept import KeptOpinion
from workers.judging.opinion import Opinion, Unusable, founded, read_opinion
from workers.judging.transcript import question, shown
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


class Judging:
    """What a judge makes of the verdict of one trajectory: nothing, if there is no judge."""

    def __init__(self, draft: Draft, judge: Judge | None) -> None:
        self._draft = draft
        self._judge = judge
        self._verdict: Verdict | None = None

    @classmethod
    async def of(
        cls,
        draft: Draft,
        env: Environment[Any],
        item: Any,
        settings: ModelSettings,
        limiter: Limiter | None,
    ) -> Judging:
        """By the judge that the job names, else the env. Nobody judges what no agent has done.

        Raises:
            EnvBug: the env names something else than a judge.
            ModelConfigError: this worker cannot ask it, whatever the agent does.
        """
        spec = None
        if recorded_params(draft.job.agent) is None:
            spec = draft.job.judge or (env.judge(item) if offers(env, NamesJudge) else None)
        if spec is None:
            return cls(draft, None)
        if not isinstance(spec, JudgeSpec):
            raise EnvBug(f"env {env.name}: judge() must return a JudgeSpec or None")
        await warm_up("openai")
        return cls(draft, Judge(spec, draft, env, item, settings, limiter))

    async def measured(self, verdict: Verdict, on_measured: Callable[[], Awaitable[None]]) -> None:
        """Note the env's verdict; it is final, or counts until or unless its judge has answered."""
        draft, judge = self._draft, self._judge
        self._verdict = verdict
        draft.verdict = judge.without(verdict) if judge else verdict
        draft.awaits_judge = judge is not None
        if draft.verdict is not None:
            await on_measured()

    async def judged(
        self, before_turn: BeforeTurn | None, on_measured: Callable[[], Awaitable[None]]
    ) -> None:
        """Ask the judge about the verdict, if there is one. Raises the same as `Judge.judged`."""
        if self._judge is None or self._verdict is None:
            return
        self._draft.verdict = await self._judge.judged(self._verdict, before_turn)
        self._draft.awaits_judge = False
        await on_measured()


class Judge:
    """The judge of one trajectory. Its time counts towards no deadline of the attempt.

    Raises:
        ModelConfigError: this worker cannot ask it.
    """

    def __init__(
        self,
        spec: JudgeSpec,
        draft: Draft,
        env: Environment[Any],
        item: Any,
        settings: ModelSettings,
        limiter: Limiter | None,
    ) -> None:
        self._spec = spec
        self._draft = draft
        self._env = env
        self._item = item
        self._settings = settings
        self._clock = Clock()
        self._endpoints = OwnEndpoints.of(settings).allowed(spec.base_url)
        check_sampling(spec.sampling)
        script = _script(draft, NotCounting(limiter or Unlimited(), self._clock))
        self._chat = make_chat(_agent(spec), script, settings)

    def without(self, verdict: Verdict) -> Verdict | None:
        """What counts if the judge never answers; None if the env's score needs its answer."""
        return None if self._decides else self._with(verdict, _Judgement())

    async def judged(self, verdict: Verdict, before_turn: BeforeTurn | None = None) -> Verdict:
        """The verdict with `rewards.judge`, or with the reason why there is none.

        Part of the score only by the env. `before_turn` is awaited before each call.

        Raises:
            ModelError, ModelConfigError: the judge's endpoint failed, and the score needs it.
            EnvBug: the env makes no verdict of it.
        """
        found, clock = _Judgement(), self._draft.clock
        try:
            async with clock.stage("verify"):
                await clock.not_counting(partial(self._judge, found, before_turn))()
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
        self._draft.judge_failure = failure
        name, extra = self._draft.job.trajectory_id, {"action": "judge_failed"}
        bug = error if failure is not error else None
        logger.warning("%s is not judged: %s", name, failure, exc_info=bug, extra=extra)
        return printable(f"{failure.cause}: {failure}")[:WHY_CHARACTERS]

    async def _judge(self, found: _Judgement, before_turn: BeforeTurn | None) -> None:
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
                await self._ask(found, lines, messages, before_turn)
        except DeadlineExceeded as error:
            raise self._late() from error
        if found.opinion is not None:
            await asyncio.to_thread(memory.write, found.opinion)

    async def _ask(
        self,
        found: _Judgement,
        lines: Sequence[str],
        messages: Sequence[Message],
        before_turn: BeforeTurn | None,
    ) -> None:
        spec, wait = self._spec, before_turn and self._clock.not_counting(before_turn)
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
        self._draft.judge_spent += Spent(tokens, cost)

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
