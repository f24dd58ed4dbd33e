"""A record in the making: filled stage by stage, so that a failure keeps what there was."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from envs.base import Verdict
from hermes_queue.agent.loop import AgentResult, BeforeTurn
from hermes_queue.agent.prices import cost_usd
from hermes_queue.agent.tokens.merge import break_reason, merge_with_breaks
from hermes_queue.bodies import codec
from hermes_queue.errors import DeadlineExceeded, SlotKilled, Stage, TrajectoryFailure, stage
from hermes_queue.ledger import Begun, Spent
from hermes_queue.ledger.attempts import unpacked
from hermes_queue.models import (
    AgentSpec,
    AttemptRecord,
    Failure,
    Provenance,
    ScoredTrajectory,
    StopReason,
    TrajectoryJob,
    TrajectoryProvenance,
    Usage,
    identity,
)
from hermes_queue.policy import span
from hermes_queue.telemetry.scrubbing import scrub, scrubber
from hermes_queue.wire.parameters import printable
from workers.provenance import packages

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Draft:
    """What is known so far of one attempt."""

    job: TrajectoryJob
    attempt: int
    epoch: int
    queued_at: float | None = None
    """Since when it waited for this attempt; this and the next in Unix seconds by Redis' clock."""
    begun_at: float | None = None
    earlier: tuple[AttemptRecord, ...] = ()
    """Attempts before it that failed, without their transcripts."""
    packed_attempts: tuple[bytes, ...] = ()
    """The same with them."""
    prices: Path | None = None
    """The table of prices of models."""
    policy_begun: int | None = None
    """The run's policy version when the attempt began."""
    stage_seconds: dict[str, float] = field(default_factory=dict)
    agent: AgentResult = field(default_factory=AgentResult)
    tools: tuple[dict[str, Any], ...] = ()
    env_version: str = ""
    sandbox_id: str | None = None
    image: str | None = None
    """What the sandbox was made of, as its backend says."""
    verdict: Verdict | None = None
    current: Stage = "load"
    """The stage it is in."""
    deadline: float = math.inf
    """End of the attempt on the monotonic clock; known once a slot is ours."""
    waited_s: float = 0.0
    """Spent where no clock runs: the run was paused, the model's endpoint busy or failing."""
    on_stage: Callable[[Stage], None] | None = None
    """Told of each stage as it begins."""
    _clock: asyncio.Timeout | None = None
    """Of the stage that runs."""

    @classmethod
    def of(
        cls,
        job: TrajectoryJob,
        begun: Begun,
        *,
        prices: Path | None = None,
        on_stage: Callable[[Stage], None] | None = None,
    ) -> Draft:
        """Of the attempt whose lease is `begun`."""
        return cls(
            job=job,
            attempt=begun.attempt,
            epoch=begun.epoch,
            earlier=tuple(unpacked(begun.attempts, transcripts=False)),
            packed_attempts=begun.attempts,
            prices=prices,
            policy_begun=begun.policy_version,
            queued_at=begun.queued_at,
            begun_at=begun.begun_at,
            on_stage=on_stage,
        )

    def __post_init__(self) -> None:
        if self.queued_at is not None and self.begun_at is not None:
            self.stage_seconds["queue"] = round(max(0.0, self.begun_at - self.queued_at), 4)

    def left_s(self, limit_s: float) -> float:
        """Seconds a stage may take: its own limit within what is left of the attempt."""
        return max(0.0, min(limit_s, self.deadline - time.monotonic()))

    def not_counting(self, wait: BeforeTurn) -> BeforeTurn:
        """`wait` with all deadlines moved by the time that it takes."""

        async def waiting() -> None:
            started, clock = time.monotonic(), self._clock
            end = clock.when() if clock else None
            if clock:
                clock.reschedule(None)
            try:
                await wait()
            finally:
                waited_s = time.monotonic() - started
                self.deadline += waited_s
                self.waited_s += waited_s
                if clock and end is not None:
                    clock.reschedule(end + waited_s)

        return waiting

    def postpone(self, seconds: float) -> None:
        """Move all deadlines by what was lost through no doing of the agent's."""
        self.deadline += seconds
        self.waited_s += seconds
        end = self._clock.when() if self._clock else None
        if self._clock and end is not None:
            self._clock.reschedule(end + seconds)

    @asynccontextmanager
    async def stage(self, name: Stage, *, limit_s: float | None = None) -> AsyncIterator[None]:
        """Time a stage, attribute its failures, bound it.

        Raises:
            TrajectoryFailure: with `stage` filled in; `DeadlineExceeded` after `limit_s`
                or at the attempt's deadline, whichever comes first.
        """
        self.current = name
        if self.on_stage:
            self.on_stage(name)
        began = time.monotonic()
        allowed_s = None if limit_s is None else self.left_s(limit_s)
        try:
            with stage(name):
                try:
                    async with asyncio.timeout(allowed_s) as clock:
                        self._clock = clock
                        yield
                except TimeoutError as error:
                    if clock.expired():
                        raise DeadlineExceeded(
                            f"{name} took longer than {allowed_s:.0f} s"
                        ) from error
                    raise
        finally:
            self._clock = None
            spent_s = time.monotonic() - began
            self.stage_seconds[name] = round(self.stage_seconds.get(name, 0.0) + spent_s, 4)

    @property
    def slot_killed_before(self) -> bool:
        """Whether an earlier attempt ended because its agent's commands had killed the slot."""
        ends = [(each.failure.stage, each.failure.type) for each in self.earlier]
        return ("agent", SlotKilled.__name__) in ends

    @property
    def spent(self) -> Spent:
        """What the attempt has used of the run's budgets so far."""
        return Spent.of(self.agent.usage, self.cost_usd(self.agent.usage))

    def cost_usd(self, usage: Usage) -> float | None:
        """What so many tokens of the job's model cost; None when nobody knows."""
        return cost_usd(self.job.agent.model, usage, self.prices)

    @property
    def lost_sandboxes(self) -> int:
        """Earlier attempts that ended because a sandbox failed."""
        return sum(attempt.failure.cause == "sandbox" for attempt in self.earlier)

    def record(
        self, *, owner: str, host: str, failure: TrajectoryFailure | None = None
    ) -> ScoredTrajectory:
        """The final record: measured when there is a verdict, else failed because of `failure`."""
        job, agent, verdict = self.job, self.agent, self.verdict
        if failure is not None:
            stop_reason: StopReason = "cancelled" if failure.cause == "cancelled" else "failed"
        else:
            stop_reason = agent.stop_reason or "failed"
        sequences, breaks = merge_with_breaks(agent.turns) or (None, ())
        oldest, newest = span(agent.turns)
        broken = [
            {"event": "sequence_break", **asdict(each)}
            | {"reason": break_reason(each, agent.turns, agent.events)}
            for each in breaks
        ]
        return ScoredTrajectory(
            **identity(job),
            policy_oldest=oldest,
            policy_newest=newest,
            policy_begun=self.policy_begun,
            attempt=self.attempt,
            epoch=self.epoch,
            status="failed" if failure else "completed",
            stop_reason=stop_reason,
            score=None if failure or verdict is None else verdict.score,
            rewards=dict(verdict.rewards) if verdict and not failure else {},
            failure=describe(failure) if failure else None,
            attempts=tuple(unpacked(self.packed_attempts)),
            messages=tuple(agent.messages),
            tools=self.tools,
            events=(*agent.events, *broken),
            turns=tuple(agent.turns),
            sequences=sequences,
            tool_calls=agent.tool_calls,
            stage_seconds=self.stage_seconds,
            usage=agent.usage,
            cost_usd=self.cost_usd(agent.usage),
            report=dict(verdict.report) if verdict else {},
            provenance=TrajectoryProvenance(
                env_version=self.env_version,
                item_sha256=job.item_sha256 or codec.item_sha256(job.item or {}),
                image=self.image,
                packages=packages(),
                host=host,
                sandbox_id=self.sandbox_id,
                worker=owner,
                queued_at=self.queued_at,
                begun_at=self.begun_at,
                job=job.producer or Provenance(),
            ),
            created=time.time(),
        )


def final_record(
    draft: Draft,
    failure: TrajectoryFailure | None,
    *,
    owner: str,
    host: str,
    cap_bytes: int,
) -> tuple[ScoredTrajectory, bytes]:
    """The record of an attempt as it is written down, with its encoding; there always is one.

    Where the whole one cannot be made it is a failure that says so, without what the agent did,
    and where that cannot be either, one of ids and texts alone.
    """
    try:
        return encoded(draft.record(owner=owner, host=host, failure=failure), cap_bytes)
    except Exception as error:  # noqa: BLE001 - a job whose record fails would run for ever
        problem = f"the record cannot be made: {type(error).__name__}: {error}"
    return _failed(draft, describe(failure) if failure else None, problem)


def encoded(record: ScoredTrajectory, cap_bytes: int) -> tuple[ScoredTrajectory, bytes]:
    """The record as it is written down, with its encoding.

    Secrets are replaced first. One that cannot travel becomes a failure that says so.
    """
    try:
        clean = scrubber().record(record)
        body = codec.encode_record(clean)
        if len(body) > cap_bytes and clean.attempts:  # what counts goes before what failed
            clean = clean.model_copy(update={"attempts": tuple(map(brief, clean.attempts))})
            body = codec.encode_record(clean)
        if len(body) <= cap_bytes:
            return clean, body
        problem = (
            f"the record has {len(body)} bytes encoded, the cap is {cap_bytes}: lower "
            "--observation-bytes, or have an object store or a higher cap "
            "(HERMES_QUEUE_STORE_URL, HERMES_QUEUE_STORE_MAX_BYTES, "
            "HERMES_QUEUE_RESULTS_INLINE_MAX_BYTES; see docs/object-store.md)"
        )
    except Exception as error:  # noqa: BLE001 - whatever it is, the job must have a record
        problem = f"the record cannot be encoded: {type(error).__name__}: {error}"
    return _failed(record, record.failure, problem)


def _failed(
    source: Draft | ScoredTrajectory, known: Failure | None, problem: str
) -> tuple[ScoredTrajectory, bytes]:
    """A small failure in place of a record that cannot travel as it is.

    Args:
        source: whose record it would have been.
        known: why there is no score in any case; else that is `problem`.
        problem: why it cannot travel.
    """
    job = source.job if isinstance(source, Draft) else source
    logger.error("%s: %s", job.trajectory_id, problem, extra={"action": "record_reduced"})
    message = _message(scrub(problem if known is None else f"{known.message}; {problem}"))
    failure = (
        Failure(cause="env_bug", stage="publish", type="EnvBug", message=message)
        if known is None
        else known.model_copy(update={"message": message})
    )
    ids = identity(job)
    small = ScoredTrajectory(
        **ids,
        attempt=source.attempt,
        epoch=source.epoch,
        stage_seconds=source.stage_seconds,
        status="failed",
        stop_reason="cancelled" if failure.cause == "cancelled" else "failed",
        score=None,
        failure=failure,
        created=time.time(),
    )
    try:
        small = scrubber().record(small)
        return small, codec.encode_record(small)
    except Exception as error:  # noqa: BLE001 - the agent's parameters are all that is left to fail
        logger.error(
            "%s: of the agent its kind is kept: %s",
            job.trajectory_id,
            error,
            extra={"action": "record_reduced"},
        )
    least = small.model_copy(
        update={"agent": AgentSpec(kind=job.agent.kind), "policy_version": None}
    )
    return least, codec.encode_record(least)


def brief(attempt: AttemptRecord) -> AttemptRecord:
    """A failed attempt without its transcript."""
    return attempt.model_copy(update={"messages": (), "events": ()})


def _message(text: str) -> str:
    """A failure's message as it travels."""
    return printable(text)[:4000]


def describe(failure: TrajectoryFailure) -> Failure:
    """The failure as it travels. The message is capped; tracebacks are in the worker's log."""
    return Failure(
        cause=failure.cause,
        stage=failure.stage or "load",
        type=type(failure).__name__,
        message=_message(scrub(str(failure))),
    )
