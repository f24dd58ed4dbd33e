"""What an agent is shown of a task: its instruction and facts of its box, nothing that grades."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hermes_plugins.harbor.boxes import granted
from hermes_plugins.harbor.item import HarborItem
from hermes_plugins.harbor.steps import rewards
from hermes_plugins.harbor.steps.folders import StepFolder, is_later
from hermes_plugins.harbor.task import TaskFolder

SYSTEM = """\
You work alone on a task in a Linux box, through the tools you are given. Nobody answers \
questions, and commands must not wait for input.
{facts}
When the task is done, call the tool `submit`. Then your files are checked as you left them, after \
running processes have been ended.
"""

TASK = """\
{instruction}

---
{facts}
Nobody answers questions, and commands must not wait for input. When the task is done, end your \
work: your files are then checked as you left them, after running processes have been ended.
"""
"""For programs, whose tools are not ours and which do not see `SYSTEM`."""

_USER = re.compile(r"^\s*USER\s+([A-Za-z0-9_.-]+)", re.IGNORECASE | re.MULTILINE)


def system(item: HarborItem) -> str:
    """The system message."""
    return SYSTEM.format(facts="\n".join(_facts(item))).strip()


def instruction(item: HarborItem) -> str:
    """The message with the instruction; of a later step, with the time for it."""
    task = item.folder
    if not is_later(task):
        return task.instruction
    limit = limit_s(item)
    time = f"\n\nYou have {_duration(limit)} for this." if limit else ""
    return f"{task.instruction}{time}"


def limit_s(item: HarborItem) -> float | None:
    """The agent's limit, in a task of several steps that of this one."""
    task = item.folder
    if not isinstance(task, StepFolder):
        return item.time_limit_s or task.config.agent.timeout_s
    return rewards.limit_s(item.steps, task.number, item.time_limit_s)


def for_program(item: HarborItem) -> str:
    """The whole task in one text."""
    facts = "\n".join(_facts(item))
    return TASK.format(instruction=item.folder.instruction, facts=facts)


def _facts(item: HarborItem) -> Iterator[str]:
    task = item.folder
    if user := _user(task):
        root = user in ("root", "0")
        yield f"- You are {'root' if root else f'the user {user}, not root'}."
    where = f": {task.workdir}" if task.workdir else ""
    yield f"- Commands start in the work directory of the task{where}."
    reachable = granted(task).network == "open"
    yield f"- The network is {'open' if reachable else 'cut off: nothing can be downloaded'}."
    if task.compose and task.compose.services:
        names = ", ".join(each.name for each in task.compose.services)
        yield f"- These services run beside your box, by host name: {names}."
    what = "task"
    if isinstance(task, StepFolder) and len(item.steps) > 1:
        what = "first instruction"
        yield (
            "- Further instructions may follow, in the same box. Call `submit` after each; running "
            "processes are ended then, and files stay."
        )
    if limit := limit_s(item):
        yield f"- You have {_duration(limit)} for the {what}."


def _user(task: TaskFolder) -> str:
    """The agent's user as far as the folder says it."""
    if task.config.agent.user:
        return task.config.agent.user
    if task.context is None or task.environment.docker_image:
        return ""
    named = _USER.findall((task.context / "Dockerfile").read_text(errors="replace"))
    return str(named[-1]) if named else "root"


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes} minutes" if minutes >= 2 else f"{round(seconds)} seconds"
