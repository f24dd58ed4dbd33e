"""The tests of a task, run in a box that is ready for them."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from typing import Any

from hermes_plugins.harbor import box
from hermes_plugins.harbor.grading import kit, links
from hermes_plugins.harbor.grading.modes import GradingBox, reported
from hermes_plugins.harbor.grading.named import named_tests
from hermes_plugins.harbor.grading.places import is_passing
from hermes_plugins.harbor.grading.provided import verifier_user
from hermes_plugins.harbor.grading.reward import FOLDER, NoReward, Reward, read_reward
from hermes_plugins.harbor.settings import HarborSettings
from hermes_plugins.harbor.task import TaskFolder
from hermes_plugins.harbor.templates import filled
from hermes_queue.errors import EnvBug, SandboxError, SandboxRejected
from hermes_queue.sandbox.archives import ROOT, FilesRefused
from hermes_queue.sandbox.context import SlotContext

_DEVICE = re.compile(r"/dev/(?!shm/)|/proc/|/sys/")
OUTPUT_TAIL_BYTES = 8192

_FRESH = f"""\
rm -rf /solution {FOLDER} {{tests}} || exit 1
mkdir -p {FOLDER} && chmod 0777 {FOLDER}
"""
_OF_TESTS = ("/tests", "/solution", FOLDER, "/proc", kit.PLACE)
"""Where an agent's link would let it hand in what the tests compare with."""


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
        EnvBug: there is no test script.
        FilesRefused: the files in the box leave no room for the tests, or no user to run them.
        SandboxError: the sandbox failed.
        DeadlineExceeded: the stage has no time left.
    """
    if made.unfit:
        raise FilesRefused(made.unfit)
    await _place(context, task)
    report: dict[str, Any] = dict(made.provided.report)
    if dropped := await _drop_links(context, task, made.agents):
        report |= reported("dropped_links", dropped)
    variables = {**_home(context, task), **made.variables}
    own = filled(task.verifier.env, HarborSettings().env, place="verifier.env")
    variables |= {**made.provided.variables, **dict(own)}
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
    if made.provided.has_kit:
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


async def _drop_links(context: SlotContext, task: TaskFolder, paths: list[str]) -> list[str]:
    """Remove links of the agent's that lead to the tests, or to what these may make.

    Returns their paths.
    """
    found = await links.links_among(context, paths)
    if not found:
        return []
    places = await links.resolved(context, found)
    named = set(re.findall(r"/[\w./-]+", await asyncio.to_thread(task.tests_text)))
    passing = {each for each in places if is_passing(each)}
    to_come = {each for each in places if each and (each in passing or each in named)}
    there = set(await links.existing(context, sorted(to_come)))
    written = {each for each in passing & named if not _DEVICE.match(each)}
    made_by_tests = (to_come - there) | written
    leading = [
        path
        for path, place in zip(found, places, strict=True)
        if place in made_by_tests or _leads_to_tests(place)
    ]
    await links.delete(context, leading)
    return leading


def _leads_to_tests(place: str) -> bool:
    return place.startswith("/dev/fd") or any(
        place == each or place.startswith(f"{each}/") for each in _OF_TESTS
    )


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
