"""Jobs and records for tests."""

from __future__ import annotations

import json

from hermes_queue.bodies import codec
from hermes_queue.ledger import Ledger
from hermes_queue.models import (
    Failure,
    Message,
    ScoredTrajectory,
    TokenSequence,
    TrajectoryGroup,
    TrajectoryJob,
    Turn,
    identity,
    make_ids,
)


def make_job(run_id: str = "run", instance: str = "i", sample: int = 0, size: int = 1, **more):
    group_id, trajectory_id = make_ids(run_id, instance, sample)
    fields = {
        "run_id": run_id,
        "group_id": group_id,
        "trajectory_id": trajectory_id,
        "sample_index": sample,
        "group_size": size,
        "env": "gsm8k",
        "instance_id": instance,
        "item": {"question": "1+1"},
        **more,
    }
    return TrajectoryJob.model_validate(fields)


def make_record(
    job: TrajectoryJob,
    score: float | None = 1.0,
    *,
    attempt: int = 1,
    epoch: int = 1,
    policy: str | None = None,
    policy_begun: int | None = None,
) -> ScoredTrajectory:
    failed = score is None
    return ScoredTrajectory(
        **identity(job),
        policy_begun=policy_begun,
        attempt=attempt,
        epoch=epoch,
        status="failed" if failed else "completed",
        stop_reason="failed" if failed else "no_tool_call",
        score=score,
        failure=Failure(cause="sandbox", stage="setup", type="SandboxError", message="gone")
        if failed
        else None,
        messages=(Message(role="user", content="1+1"), Message(role="assistant", content="2")),
        turns=(
            Turn(
                prompt_ids=(1, 2, 2**31 - 1),
                completion_ids=(3, 4),
                logprobs=(-0.5, -0.25),
                policy_version=policy,
            ),
        ),
        sequences=(TokenSequence(ids=(1, 2, 3), loss_mask=(0, 0, 1), logprobs=(0.0, 0.0, -0.5)),),
    )


def make_group(*members: ScoredTrajectory, **more) -> TrajectoryGroup:
    """A complete group of `members`; `more` are other values of its fields."""
    fields = {
        "size": len(members),
        "members": members,
        "complete": True,
        "mean": 0.5,
        "std": 0.5,
        "created": 0.0,
        "finished": 0.0,
        **members[0].model_dump(include={"run_id", "group_id", "env", "instance_id"}),
        **more,
    }
    return TrajectoryGroup(**fields)


def published_records(ledger: Ledger) -> list[ScoredTrajectory]:
    """Every record in the stream of results, in order of publication."""
    return [
        codec.decode_record(ledger.client.get(f"hq:body:{trajectory_id}"))
        for _, fields in ledger.client.xrange("hq:results")
        for trajectory_id in json.loads(fields[b"members"])
    ]
