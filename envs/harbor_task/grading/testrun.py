"""The tests of a task, run in a box that is ready for them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from envs.harbor_task import box
from envs.harbor_task.boxes import granted
from envs.harbor_task.grading import kit
from envs.harbor_task.grading.modes import GradingBox
from envs.harbor_task.grading.named import named_tests
from envs.harbor_task.grading.needs import needs_of
from envs.harbor_task.grading.reward import FOLDER, NoReward, Reward, read_reward
from envs.harbor_task.task import TaskFolder
from envs.harbor_task.templates import filled
from hermes_queue.errors import EnvBug, SandboxError, SandboxRejected
from hermes_queue.sandbox.archives import ROOT, FilesRefused
from hermes_queue.sandbox.context import SlotContext
from hermes_queue.settings import HarborSettings

OUTPUT_TAIL_BYTES = 8192

_FRESH = f"""\
rm -rf /solution {FOLDER} {{tests}} || exit 1
mkdir -p {FOLDER} && chmod 0777 {FOLDER}
"""
_DROP_LINKS = f"""\
while IFS= read -r -d '' path; do
  [ -L "$path" ] || continue
  found=$(readlink -m -- "$path" 2>/dev/null || readlink -f -- "$path" 2>/dev/null)
  case "$found" in
  /tests|/tests/*|/solution|/solution/*|{FOLDER}|{FOLDER}/*|/proc|/proc/*|/dev/fd*|"{kit.PLACE}"/*|"")
    if [ -e "$path" ] || [ -n "$found" ]; then rm -f -- "$path" && printf '%s\\0' "$path"; fi ;;
  esac
done
"""
"""An agent's link into the tests would let it hand in what they compare with."""


@dataclass(slots=True)
class TestRun:
    """What came of one run of the tests."""

    __test__ = False  # pytest would collect it

    reward: Reward | None
    why: str = ""
    """Why there is no reward."""
    report: dict[str, Any] = field(default_factory=dict)


async def run_tests(context: SlotContext, task: TaskFolder, made: GradingBox) -> TestRun:
    """Put the tests into the box, run them, kill what they left, and read the reward.

    Raises:
        EnvBug, EnvInfraError: what the tests fetch is not to be had.
        FilesRefused: the files in the box leave no room for the tests, or no user to run them.
        SandboxError: the sandbox failed.
        DeadlineExceeded: the stage has no time left.
    """
    await _place(context, task)
    report: dict[str, Any] = {}
    if dropped := await _drop_links(context, made.agents):
        report["dropped_links"] = dropped[:100]
    variables = {**_home(context, task), **made.variables}
    bootstrap = await _bootstrap(context, task, report)
    own = filled(task.verifier.env, HarborSettings().env, place="verifier.env")
    variables |= {**bootstrap, **dict(own)}
    try:
        result = await context.run(
            f"exec bash /tests/test.sh >{FOLDER}/test-stdout.txt 2>&1 </dev/null",
            timeout_s=task.verifier.timeout_s,
            user=verifier_user(context, task),
            env=variables,
        )
    except SandboxRejected as error:  # the list of users is the agent's
        raise FilesRefused(str(error)) from error
    await box.kill_all(context)
    report["output"] = await _output(context)
    report |= await named_tests(context, report["output"])
    if bootstrap:
        report |= {"bootstrap": "kit", "kit": await kit.served(context)}
    if result.timed_out:
        if context.remaining_s() <= 0:  # not the tests', but the stage's time is over
            await context.run("true")
        limit = f"{task.verifier.timeout_s:g} s"
        return TestRun(None, f"the tests ran for more than {limit}", report)
    try:
        return TestRun(await read_reward(context), report=report)
    except NoReward as error:
        return TestRun(None, str(error), report)


def verifier_user(context: SlotContext, task: TaskFolder) -> str:
    """Who runs the tests: the task's choice, else the image's user."""
    config = context.slot.image_config
    return task.verifier.user or (config.user.partition(":")[0] if config else "") or ROOT


async def _place(context: SlotContext, task: TaskFolder) -> None:
    """Tests in /tests and an empty log folder, without any link on the way."""
    baked = task.tests_are_baked
    script = box.LOG_FOLDERS + _FRESH.format(tests="" if baked else "/tests")
    result = await context.run(script, cwd="/", user=ROOT, timeout_s=120.0)
    if not result.ok:
        failure = SandboxError if result.timed_out else FilesRefused
        raise failure(f"/tests and {FOLDER} cannot be made anew: {result.output[-500:]}")
    if baked:
        there = await context.run("[ -f /tests/test.sh ]", cwd="/", user=ROOT)
        if there.ok:
            return
    if not task.has_test_script:
        raise EnvBug("tests/test.sh: neither the verifier's image nor the task has it")
    for folder in task.test_folders:
        await box.upload(context, folder, "/tests")


async def _drop_links(context: SlotContext, paths: list[str]) -> list[str]:
    """Remove links of the agent's that lead to the tests; returns their paths."""
    if not paths:
        return []
    listed = "\0".join([*paths, ""]).encode("utf-8", "surrogateescape")
    result = await context.run(_DROP_LINKS, stdin=listed, cwd="/", user=ROOT, timeout_s=300.0)
    if not result.ok:
        raise SandboxError(f"links of the agent's cannot be looked at: {result.output[-300:]}")
    return [path for path in result.stdout.decode(errors="replace").split("\0") if path]


async def _bootstrap(
    context: SlotContext, task: TaskFolder, report: dict[str, Any]
) -> dict[str, str]:
    """Provide what the tests fetch, if they have no network; the variables for it."""
    if granted(task, grading=True).network == "open":
        return {}
    needs = needs_of(task.scripts, task.test_folders)
    if needs.other:
        report["fetches"] = list(needs.other[:20])
    if not needs.kit or not HarborSettings().kit:
        return {}
    return await kit.install(context, needs)


def _home(context: SlotContext, task: TaskFolder) -> dict[str, str]:
    """HOME of root by the image, not by a user list that an agent has changed."""
    config = context.slot.image_config
    if verifier_user(context, task) not in ("root", "0"):
        return {}
    return {"HOME": config.env.get("HOME", "/root") if config else "/root"}


async def _output(context: SlotContext) -> str:
    command = f"tail -c {OUTPUT_TAIL_BYTES} {FOLDER}/test-stdout.txt"
    result = await context.run(command, cwd="/", user=ROOT, max_output_bytes=OUTPUT_TAIL_BYTES)
    return "" if not result.ok else result.stdout.decode(errors="replace")
