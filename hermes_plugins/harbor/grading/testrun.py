"""The tests of a task, run in a box that is ready for them, and their outcomes by test.

Outcomes are read from `ctrf.json` in /logs/verifier, as pytest-json-ctrf and other reporters write
it; else from pytest's short summary (`-rA`) in the output. Both were written in a box with the
agent's work, so they explain a verdict and are no part of it: the reward alone is the score.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from envs.named_tests import compact
from hermes_plugins.harbor import box
from hermes_plugins.harbor.grading import kit, links
from hermes_plugins.harbor.grading.modes import GradingBox, reported
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

NAMED_MAX_BYTES = 1 << 20
_SHOW = f"""\
file={FOLDER}/ctrf.json
[ -f "$file" ] && [ ! -L "$file" ] && [ ! -L {FOLDER} ] && [ ! -L /logs ] || exit 67
exec head -c {NAMED_MAX_BYTES + 1} -- "$file"
"""
_HEADING = re.compile(r"(?m)^(?:\x1b\[[\d;]*m)*=+ short test summary info =+(?:\x1b\[[\d;]*m)*$")
_ENDS = re.compile(r"(?m)^(?:\x1b\[[\d;]*m)*=+ ")
_SUMMARY = re.compile(r"(?m)^(PASSED|FAILED|ERROR) (\S[^\n]{0,999})$")
_OF_A_SUMMARY = re.compile(r"(?:PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) ")
_OF_SUMMARY = {"PASSED": "passed", "FAILED": "failed", "ERROR": "failed"}


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


async def named_tests(context: SlotContext, output: str) -> dict[str, Any]:
    """`{"tests": {...}}` for a report, or nothing if no test is named.

    Raises:
        SandboxError: the sandbox could not answer.
    """
    result = await context.run(
        _SHOW, cwd="/", user=ROOT, timeout_s=30.0, max_output_bytes=NAMED_MAX_BYTES * 2
    )
    found = of_ctrf(result.stdout) if result.ok else {}
    source = "ctrf" if found else "output"
    return report_of(source, found or of_summary(output))


def report_of(source: str, outcomes: dict[str, str]) -> dict[str, Any]:
    """The names of `outcomes` for a report, those of each outcome bounded."""
    if not outcomes:
        return {}
    by = {how: [t for t, each in outcomes.items() if each == how] for how in ("passed", "failed")}
    return {"tests": {"source": source, **{how: compact(tests) for how, tests in by.items()}}}


def of_ctrf(content: bytes) -> dict[str, str]:
    """Test -> passed, failed or other, of a report in the Common Test Report Format.

    A name that comes twice has failed if it has failed once. Empty for anything else.
    """
    if len(content) > NAMED_MAX_BYTES:
        return {}
    try:
        tests = json.loads(content)["results"]["tests"]
        return _worst((each["name"], each["status"]) for each in tests)
    except (ValueError, RecursionError, TypeError, LookupError):
        return {}


def of_summary(output: str) -> dict[str, str]:
    """The same of the short summaries with which pytest ends its output, each below its heading.

    Lines elsewhere may be what tested programs print, such as `ERROR reading x` of a log. Where the
    output was cut, its beginning may be in a summary, which has lines of this form alone.
    """
    beginning, *below = _HEADING.split(output)
    parts = [_ENDS.split(each, maxsplit=1)[0] for each in below]
    if not below and (end := _ENDS.search(beginning)):
        parts.append(_last_lines(beginning[: end.start()]))
    # A reason follows a test that failed: "FAILED tests/a.py::test_x - assert 1 == 2".
    return _worst(
        (name if how == "PASSED" else name.split(" - ", 1)[0], _OF_SUMMARY[how])
        for part in parts
        for how, name in _SUMMARY.findall(part)
    )


def _last_lines(text: str) -> str:
    """Lines of a summary with which a text ends, if it has none but these after its first."""
    lines = text.splitlines()[1:]
    return "\n".join(lines) if all(map(_OF_A_SUMMARY.match, lines)) else ""


def _worst(pairs: Iterator[tuple[Any, Any]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, status in pairs:
        if not isinstance(name, str) or not isinstance(status, str):
            raise TypeError
        if found.get(name) != "failed":
            found[name] = status if status in ("passed", "failed") else "other"
    return found
