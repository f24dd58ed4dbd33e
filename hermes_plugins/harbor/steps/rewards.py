"""What the rewards of a task's steps come to, and how long each step may take."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from envs.base import Verdict
from hermes_plugins.harbor.grading.reward import MAIN_KEY, mean
from hermes_plugins.harbor.steps.folders import StepFolder
from hermes_plugins.harbor.task import TaskFolder


def limit_s(steps: Sequence[TaskFolder], number: int, whole_s: float | None) -> float | None:
    """Seconds of the agent in one step; None: no limit but that of the whole task.

    `whole_s` is the limit of all steps together, by which the task's own limits are stretched.
    """
    own = [step.config.agent.timeout_s for step in steps]
    if whole_s is None:
        return own[number]
    known = [each for each in own if each is not None]
    if len(known) < len(own):
        return own[number] or whole_s
    return whole_s * known[number] / math.fsum(known)


def passes(step: TaskFolder, verdict: Verdict) -> bool:
    """Whether the step that follows may begin: this one reached its `min_reward`."""
    wanted = step.step.min_reward if isinstance(step, StepFolder) else None
    if wanted is None:
        return True
    given = _rewards(verdict)
    least = wanted if isinstance(wanted, Mapping) else {MAIN_KEY: wanted}
    return all(given.get(name, -math.inf) >= limit for name, limit in least.items())


def total(steps: Sequence[TaskFolder], verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict of the whole task, after `verdicts` of its first steps.

    With `mean`, each reward is the mean over the steps that were graded. A step that was not
    reached counts as 0, unless `min_reward` ended the task. With `final`, the rewards of the last
    graded step count, as the format has it, and 0 if a step was not reached for another reason.
    """
    gated = not passes(steps[len(verdicts) - 1], verdicts[-1])
    missing = 0 if gated else len(steps) - len(verdicts)
    graded = [_rewards(each) for each in verdicts] + [{}] * missing
    if steps[0].config.multi_step_reward_strategy == "final":
        graded = graded[-1:]
    names = dict.fromkeys(name for each in graded for name in each)
    rewards = {name: mean([each.get(name, 0.0) for each in graded]) for name in names}
    score = rewards.get(MAIN_KEY)
    if score is None:
        score = mean(rewards.values()) if rewards else 0.0
    rewards = rewards if set(rewards) - {MAIN_KEY} else {}
    trainable = all(each.trainable for each in verdicts)
    return Verdict(score, rewards, _report(steps, verdicts), trainable)


def _rewards(verdict: Verdict) -> Mapping[str, float]:
    return verdict.rewards or {MAIN_KEY: verdict.score or 0.0}


def _report(steps: Sequence[TaskFolder], verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """What people look at first is that of the last graded step; all are in `steps`."""
    last = verdicts[-1].report
    report = {
        name: last[name] for name in ("reason", "mode", "task_digest", "detail") if name in last
    }
    report["notes"] = list(
        dict.fromkeys(n for each in verdicts for n in each.report.get("notes", ()))
    )
    report["steps"] = [
        {"name": table.name, "score": each.score, "rewards": dict(each.rewards), **each.report}
        for table, each in zip(steps[0].config.steps, verdicts, strict=False)
    ]
    report["steps_not_reached"] = len(steps) - len(verdicts)
    return report
