"""Harbor: any task in the field's common format, in a slot with the task's own image.

docs/plugins/harbor.md describes format and grading.

The agent is shown the task's instruction and facts of its box, and nothing that grades. It works in
the task's image. Then everything in the slot is killed, and the task's own
`tests/test.sh` grades what was left, never beside living processes, in one of three modes:

- `separate`: the task has a verifier with a box of its own, which gets the task's artifacts.
- `transplant`: a fresh slot of the same image with the files that the agent changed, less those
  that decide which programs run.
- `restart`: the same files without any process; changed programs are seen and void the score.

A task of several steps is graded after each of them, by the same rules; see `steps/`.

The score is what the tests write to /logs/verifier/reward.json or reward.txt. The exit code of
test.sh decides nothing. If there is no reward, the same tests run on an untouched box: a reward
there means that the agent has broken them, none means that they cannot run here.

`reason` in a verdict's report is one of graded, verifier_broken, too_large, unreadable (the
agent's files cannot be taken), suspect (programs of the image were changed).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from envs.base import Verdict
from hermes_plugins.harbor import box, boxes, cache, cheats
from hermes_plugins.harbor.boxes import granted
from hermes_plugins.harbor.evaluations import is_evaluation
from hermes_plugins.harbor.grading import services
from hermes_plugins.harbor.grading.grader import grade
from hermes_plugins.harbor.item import HarborItem
from hermes_plugins.harbor.steps import passage, rewards
from hermes_plugins.harbor.steps.folders import StepFolder, is_later, views
from hermes_plugins.harbor.task import TaskFolder
from hermes_queue.errors import EnvBug
from hermes_queue.models import Message, ToolCall
from hermes_queue.sandbox.base import SlotSpec
from hermes_queue.sandbox.context import SlotContext
from hermes_queue.tools.base import make_call

_SYSTEM = """\
You work alone on a task in a Linux box, through the tools you are given. Nobody answers \
questions, and commands must not wait for input.
{facts}
When the task is done, call the tool `submit`. Then your files are checked as you left them, after \
running processes have been ended.
"""

_TASK = """\
{instruction}

---
{facts}
Nobody answers questions, and commands must not wait for input. When the task is done, end your \
work: your files are then checked as you left them, after running processes have been ended.
"""
"""For programs, whose tools are not ours and which do not see `_SYSTEM`."""

_USER = re.compile(r"^\s*USER\s+([A-Za-z0-9_.-]+)", re.IGNORECASE | re.MULTILINE)


class Harbor:
    """The env of Harbor tasks, see the module's docstring. Stateless."""

    name: ClassVar[str] = "harbor"
    version: ClassVar[str] = "1"
    tools: ClassVar[Sequence[str]] = tuple(
        "terminal process read_file write_file patch search_files submit".split()
    )
    Item: type[HarborItem] = HarborItem

    async def load(self, item: HarborItem) -> HarborItem:
        """The item with its folder on this host; refuses tasks that cannot run here.

        Raises:
            EnvBug: the folder is not there, differs from the item's digest, or cannot run here.
            EnvInfraError: it cannot be fetched.
        """
        folder = await cache.load(item)
        steps = await asyncio.to_thread(views, folder)
        for each in steps:
            if item.grading == "separate" and not each.separate:
                raise EnvBug("grading: the task declares no separate verifier")
            validated = item.grading is not None
            await asyncio.to_thread(boxes.refuse_impossible, each, validated=validated)
        evaluation = await asyncio.to_thread(is_evaluation, folder, item)
        return item.loaded(folder, steps if folder.config.steps else (), evaluation=evaluation)

    def prompt(self, item: HarborItem) -> list[Message]:
        """Facts of the box, and the instruction."""
        user = Message(role="user", content=instruction(item))
        if is_later(item.folder):
            return [user]
        return [Message(role="system", content=system(item)), user]

    def task(self, item: HarborItem) -> str:
        """The same for a program with tools of its own."""
        return _for_program(item)

    def spec(self, item: HarborItem, profile: str) -> SlotSpec:
        """A slot with the task's image."""
        return boxes.agent_spec(item.folder, profile)

    async def setup(self, item: HarborItem, context: SlotContext) -> None:
        """Make log folders, start the image's ENTRYPOINT and wait until the box is healthy.

        Raises:
            EnvInfraError: it does not become healthy.
            EnvBug: the task's own check of its initial state fails, or it has a volume where none
                can be.
        """
        services.refuse_hiding(context)
        await box.make_ready(context, item.folder)
        await box.check_initial_state(context, item.folder)
        await passage.begin_first(context, item.folder)

    async def verify(
        self, item: HarborItem, context: SlotContext, transcript: Sequence[Message]
    ) -> Verdict:
        """Grade what the agent left, as the module's docstring says."""
        if isinstance(item.folder, StepFolder) and not item.folder.is_last:
            return await passage.grade_step(item, context)
        return await grade(item, context)

    # --- steps: `envs.base.HasSteps` ------------------------------------------------------

    def steps(self, item: HarborItem) -> Sequence[HarborItem]:
        """An item per step of the task."""
        return [item.loaded(each, item.steps) for each in item.steps] or [item]

    def step_limit_s(self, item: HarborItem) -> float | None:
        """The step's `agent.timeout_sec`, else that of the task."""
        return _limit_s(item) if item.steps else None

    def goes_on(self, item: HarborItem, verdict: Verdict) -> bool:
        """Whether the step has reached its `min_reward`."""
        return rewards.passes(item.folder, verdict)

    async def begin_step(self, item: HarborItem, context: SlotContext) -> Verdict | None:
        """Bring the agent's files back, and what the step brings along."""
        return await passage.begin_step(item, context)

    def total(self, items: Sequence[HarborItem], verdicts: Sequence[Verdict]) -> Verdict:
        """Mean or last rewards, as the task says."""
        return rewards.total([each.folder for each in items], verdicts)

    async def oracle(self, item: HarborItem, context: SlotContext) -> list[ToolCall]:
        """Put the solution into the slot and run it."""
        folder = item.folder.solution
        if folder is None:
            raise EnvBug("solution/solve.sh: there is none, so the oracle cannot solve the task")
        command = await box.put_solution(context, item.folder, folder)
        return [
            make_call("oracle_0", "terminal", command=command),
            make_call("oracle_1", "submit"),
        ]

    def oracle_answer(self, item: HarborItem) -> str:
        """The oracle's final message."""
        return "The task is done."

    def tamper(self, item: HarborItem) -> Mapping[str, Sequence[ToolCall | str]]:
        """Ways to a reward without the work."""
        return cheats.cases()


ENV = Harbor()


def system(item: HarborItem) -> str:
    """The system message."""
    return _SYSTEM.format(facts="\n".join(_facts(item))).strip()


def instruction(item: HarborItem) -> str:
    """The message with the instruction; of a later step, with the time for it."""
    task = item.folder
    if not is_later(task):
        return task.instruction
    limit = _limit_s(item)
    time = f"\n\nYou have {_duration(limit)} for this." if limit else ""
    return f"{task.instruction}{time}"


def _limit_s(item: HarborItem) -> float | None:
    """The agent's limit, in a task of several steps that of this one."""
    task = item.folder
    if not isinstance(task, StepFolder):
        return item.time_limit_s or task.config.agent.timeout_s
    return rewards.limit_s(item.steps, task.number, item.time_limit_s)


def _for_program(item: HarborItem) -> str:
    """The whole task in one text."""
    facts = "\n".join(_facts(item))
    return _TASK.format(instruction=item.folder.instruction, facts=facts)


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
    if limit := _limit_s(item):
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
