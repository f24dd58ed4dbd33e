"""Runs the known fix of a row several times, with its files in other orders."""

from __future__ import annotations

import json
import random

from envs.swe.grading.grader import MORE_IDS, OTHER_IDS
from envs.swe.grading.suite import run_tests
from envs.swe.images.hidden import measured_row
from envs.swe.item import Item
from envs.swe.workspace import Pinned
from hermes_queue.errors import EnvBug
from hermes_queue.sandbox.context import SlotContext

_NAMED = 5
"""Number of tests that a fault names."""


async def repeat_known_fix(row: Item, context: SlotContext, pinned: Pinned, runs: int) -> None:
    """Run the tests that grade `runs` times in the slot, with the known fix.

    Raises:
        EnvBug: some fail, or pass and fail, and `environment.flaky` does not have them.
        SandboxError: the slot failed.
    """
    item = await measured_row(row, pinned, context)
    item = item.without(item.environment.flaky)
    passing, failing = set[str](), set[str]()
    async with pinned.scratch() as own:
        tree = await own.solved()
        for _ in range(runs):
            await context.renew()
            run = await run_tests(
                context,
                own.repository,
                tree,
                item.environment,
                random.sample(item.test_files, len(item.test_files)),
                item.test_timeout_s,
                own.distribution,
                most_ids=OTHER_IDS + MORE_IDS * len(item.test_ids),
                image=own.image,
            )
            if not run.complete:
                raise EnvBug(f"with the known fix the tests do not end: {run.output[-300:]}")
            accepted = ("passed",) if own.image is None else ("passed", "xfailed")
            passed = {test for test in item.test_ids if run.outcome(test) in accepted}
            passing |= passed
            failing |= {*item.test_ids} - passed
    if flaky := sorted(passing & failing):
        raise EnvBug(
            f"environment.flaky: in {runs} runs with the known fix, these tests passed and failed; "
            f"put them there, so that they decide nothing: {json.dumps(flaky)}"
        )
    if failing:
        named = ", ".join(sorted(failing)[:_NAMED])
        raise EnvBug(
            f"FAIL_TO_PASS, PASS_TO_PASS: with the known fix {len(failing)} of these tests do not "
            f"pass: {named}"
        )
