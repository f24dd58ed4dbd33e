"""The record of an attempt: made from its draft, capped in size, and without secrets."""

from __future__ import annotations

import logging
import platform
import sys
import time
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

from hermes_queue.agent.kinds.recorded import regraded_of
from hermes_queue.agent.tokens.merge import break_events, merge_with_breaks
from hermes_queue.bodies import codec, signs
from hermes_queue.errors import TrajectoryFailure, printable
from hermes_queue.ledger.attempts import unpacked
from hermes_queue.ledger.poison import item_hash
from hermes_queue.models import (
    RECORD_VERSION,
    AgentSpec,
    Failure,
    ScoredTrajectory,
    StopReason,
    TrajectoryProvenance,
    identity,
)
from hermes_queue.policy import span
from hermes_queue.telemetry.scrubbing import scrub, scrubber
from workers.draft import Draft

logger = logging.getLogger(__name__)

_LIBRARIES = ("celery", "kombu", "redis", "openai", "modal", "renderers")
"""Libraries that carry jobs, call models and make slots."""


def record_of(
    draft: Draft,
    *,
    owner: str,
    host: str,
    failure: TrajectoryFailure | None = None,
    final: bool = True,
) -> ScoredTrajectory:
    """The final record: measured if there is a verdict, else failed because of `failure`.

    Without `final`, all that is known before it is measured, and nothing that follows from that.
    """
    job, agent, verdict = draft.job, draft.agent, draft.verdict
    if failure is not None:
        stop_reason: StopReason = "cancelled" if failure.cause == "cancelled" else "failed"
    else:
        stop_reason = agent.stop_reason or "failed"
    merged = merge_with_breaks(agent.turns, agent.branches) if final else None
    sequences, breaks = merged or (None, ())
    oldest, newest = span(agent.turns)
    broken = break_events(breaks, agent.turns, agent.events)
    of_program = bool(agent.branches or agent.program)
    score = None if failure or verdict is None else verdict.score
    regraded = regraded_of(job.agent)
    ended: Literal["completed", "unscored"] = "unscored" if score is None else "completed"
    return ScoredTrajectory(
        schema_version=RECORD_VERSION if of_program or (not failure and score is None) else 1,
        **identity(job),
        policy_oldest=oldest,
        policy_newest=newest,
        policy_begun=draft.policy_begun,
        attempt=draft.attempt,
        epoch=draft.epoch,
        status="failed" if failure else ended,
        stop_reason=stop_reason,
        score=score,
        rewards=dict(verdict.rewards) if verdict and not failure else {},
        failure=describe(failure) if failure else None,
        attempts=tuple(unpacked(draft.packed_attempts)) if final else (),
        messages=tuple(agent.messages),
        tools=draft.tools,
        events=(*agent.events, *broken),
        turns=tuple(agent.turns),
        sequences=sequences,
        nodes=tuple(agent.nodes),
        branches=tuple(agent.branches),
        program=agent.program,
        tool_calls=agent.tool_calls,
        stage_seconds=draft.stage_seconds,
        usage=agent.usage,
        cost_usd=draft.total_usd,
        sandbox_usd=draft.sandbox_usd or None,
        report=_report(draft),
        evaluation=draft.evaluation or regraded is not None or not _is_trainable(draft),
        regraded=regraded,
        provenance=_provenance(draft, owner, host),
        created=time.time(),
    )


def _is_trainable(draft: Draft) -> bool:
    return draft.verdict is None or draft.verdict.trainable


def _provenance(draft: Draft, owner: str, host: str) -> TrajectoryProvenance:
    """Where and with what this attempt ran."""
    return TrajectoryProvenance(
        env_version=draft.env_version,
        item_sha256=item_hash(draft.job),
        image=draft.image,
        packages=packages(),
        host=host,
        sandbox_id=draft.sandbox_id,
        worker=owner,
        queued_at=draft.queued_at,
        begun_at=draft.begun_at,
        job=draft.job.producer,
    )


def _report(draft: Draft) -> dict[str, Any]:
    """The verifier's report, with signs of cheating in the transcript. They change no score."""
    if draft.verdict is None:
        return {}
    agent, names = draft.agent, (*draft.package, signs.project_of(draft.job.instance_id))
    known = set(map(id, agent.messages))
    beside = (node.message for node in agent.nodes if id(node.message) not in known)
    return signs.with_flags(draft.verdict.report, agent.messages, names, beside)


def final_record(
    draft: Draft, failure: TrajectoryFailure | None, *, owner: str, host: str, cap_bytes: int
) -> tuple[ScoredTrajectory, bytes]:
    """The final record of an attempt, with its encoding; this always succeeds.

    If the complete record cannot be made, it is a failure that says so, without the agent's
    work; if even that fails, it consists of ids and texts only.
    """
    try:
        return encoded(record_of(draft, owner=owner, host=host, failure=failure), cap_bytes)
    except Exception as error:  # noqa: BLE001 - else the job would run for ever
        problem = f"the record cannot be made: {type(error).__name__}: {error}"
    return _failed(draft, describe(failure) if failure else None, problem)


def encoded(record: ScoredTrajectory, cap_bytes: int) -> tuple[ScoredTrajectory, bytes]:
    """The scrubbed record, with its encoding.

    A record that is too large or cannot be encoded becomes a failure that says so.
    """
    try:
        clean = scrubber().record(record)
        body = codec.encode_record(clean)
        if len(body) > cap_bytes and clean.attempts:  # drop transcripts of failed attempts first
            brief = {"messages": (), "events": ()}
            attempts = tuple(each.model_copy(update=brief) for each in clean.attempts)
            clean = clean.model_copy(update={"attempts": attempts})
            body = codec.encode_record(clean)
        if len(body) > cap_bytes and clean.schema_version > 1:
            clean = _without_side(clean)
            body = codec.encode_record(clean)
        if len(body) <= cap_bytes:
            return clean, body
        problem = (
            f"the record has {len(body)} bytes encoded, the cap is {cap_bytes}: lower "
            "--observation-bytes, or set an object store or a higher cap "
            "(HERMES_QUEUE_STORE_URL, HERMES_QUEUE_STORE_MAX_BYTES, "
            "HERMES_QUEUE_RESULTS_INLINE_MAX_BYTES; see docs/object-store.md)"
        )
    except Exception as error:  # noqa: BLE001 - the job must have a record in any case
        problem = f"the record cannot be encoded: {type(error).__name__}: {error}"
    return _failed(record, record.failure, problem)


def _without_side(record: ScoredTrajectory) -> ScoredTrajectory:
    """A program's record without the files that it left and the messages beside the main path."""
    program = record.program and record.program.model_copy(update={"kept": {}})
    event = {"turn": len(record.turns), "event": "record_reduced", "fields": ["nodes", "kept"]}
    update = {"nodes": (), "program": program, "events": (*record.events, event)}
    return record.model_copy(update=update)


def _failed(
    source: Draft | ScoredTrajectory, known: Failure | None, problem: str
) -> tuple[ScoredTrajectory, bytes]:
    """A small failure in place of `source`, whose record cannot be stored because of a `problem`.

    `known` is the failure of the attempt, if it failed anyway.
    """
    job = source.job if isinstance(source, Draft) else source
    logger.error("%s: %s", job.trajectory_id, problem, extra={"action": "record_reduced"})
    failure = known or Failure(cause="env_bug", stage="publish", type="EnvBug", message="")
    message = f"{known.message}; {problem}" if known else problem
    failure = failure.model_copy(update={"message": _message(message)})
    regraded = regraded_of(job.agent)
    small = ScoredTrajectory(
        **identity(job),
        attempt=source.attempt,
        epoch=source.epoch,
        stage_seconds=source.stage_seconds,
        status="failed",
        stop_reason="cancelled" if failure.cause == "cancelled" else "failed",
        score=None,
        failure=failure,
        evaluation=source.evaluation or regraded is not None,
        regraded=regraded,
        created=time.time(),
    )
    try:
        small = scrubber().record(small)
        return small, codec.encode_record(small)
    except Exception as error:  # noqa: BLE001 - only the agent's parameters can fail here
        name, extra = job.trajectory_id, {"action": "record_reduced"}
        logger.error("%s: dropped the agent's parameters: %s", name, error, extra=extra)
    least = small.model_copy(
        update={"agent": AgentSpec(kind=job.agent.kind), "policy_version": None, "regraded": None}
    )
    return least, codec.encode_record(least)


def _message(text: str) -> str:
    """A failure's message: without secrets, printable and capped."""
    return printable(scrub(text))[:4000]


def describe(failure: TrajectoryFailure) -> Failure:
    """The failure for a record. The message is capped; tracebacks are in the worker's log."""
    return Failure(
        cause=failure.cause,
        stage=failure.stage or "load",
        type=type(failure).__name__,
        message=_message(str(failure)),
        kind=failure.kind,
        refillable=failure.consequences.refilled,
    )


def packages() -> dict[str, str]:
    """Return the versions of Python, of this package, and of the libraries that are loaded."""
    loaded = {name: _version(name) for name in _LIBRARIES if name in sys.modules}
    return {
        "hermes-queue": _version("hermes-queue") or "source",  # "source": it is not installed
        "python": platform.python_version(),
        **{name: found for name, found in loaded.items() if found},
    }


@cache
def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""
