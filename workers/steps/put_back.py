"""A regrade: the work of an older trajectory stands in the slot, and no agent has a turn."""

from __future__ import annotations

from envs.base import Regradable
from hermes_queue.agent.kinds.recorded import recorded_params
from hermes_queue.errors import EnvBug, SandboxError, SlotKilled
from hermes_queue.models import Message
from workers.steps.progress import StepProgress


def check_regradable(steps: StepProgress) -> None:
    """Refuse a regrade that is not possible.

    Raises:
        EnvBug: the env's records do not hold the agent's work, or the task has several steps.
        ModelConfigError: the job's parameters are not those of a regrade.
    """
    if recorded_params(steps.draft.job.agent) is None:
        return
    if not isinstance(steps.env, Regradable):
        raise EnvBug(f"env {steps.env.name} cannot be regraded: it has no `put_back`")
    if steps.several:
        raise EnvBug(f"the task has {len(steps.items)} steps, of which only one can be regraded")


async def put_back(steps: StepProgress) -> bool:
    """Put recorded work back and end the agent's stage; False if the job is no regrade.

    Raises the same as `Regradable.put_back`.
    """
    draft, context = steps.draft, steps.at_work
    params = recorded_params(draft.job.agent)
    if params is None:
        return False
    assert isinstance(steps.env, Regradable)  # noqa: S101 - checked when the job was loaded
    assert context is not None  # noqa: S101 - the step has begun
    try:
        answer = await steps.env.put_back(steps.item, context, params.outcome)
    except SlotKilled as error:
        # An agent whose commands do this has lost its work. Here it was ours that was running.
        raise SandboxError(f"the recorded work could not be put back: {error}") from error
    draft.agent.messages.append(Message(role="assistant", content=answer))
    draft.agent.stop_reason = "submitted"
    draft.agent.changed()
    return True
