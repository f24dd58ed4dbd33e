"""Grades an agent's tree by its row's tests, and verifies the grading itself.

FAIL_TO_PASS tests run first, and the rest only if they pass, since most attempts fail there. The
tests are shown in several *views*, each in an emptied slot and with other planted failures (see
`plants`). A score of 1 requires that in every view each original test passes and each planted
one fails.

Before a failure counts against the agent, the known fix is put to the same test: always if a run
was cut short, took too long or reported plants wrongly, and once per row and host if tests
simply failed. If the known fix fails too, the machine or the row is to blame. A test that the known
fix both fails and passes is flaky: it decides nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal, NoReturn

from envs.swe.grading.controls import RowMemory, RowRecord
from envs.swe.grading.findings import (
    LISTED_IDS,
    Findings,
    Reason,
    Step,
    SuiteResults,
    first_failure,
    reported,
)
from envs.swe.grading.places import TestFunction
from envs.swe.grading.plants import Planter, View
from envs.swe.grading.suite import OVERHEAD_S, SuiteRun, run_tests
from envs.swe.item import Item
from envs.swe.paths import file_of
from envs.swe.workspace import Pinned
from hermes_queue.errors import DeadlineExceeded, EnvBug, SandboxError
from hermes_queue.sandbox.context import SlotContext

MAX_ROUNDS = 4
"""Number of times that the views are drawn again because plants turned out to be unusable."""
REPETITIONS = 2
"""Number of times that a run is repeated to see whether its failures are the tests' own."""
MAX_PLANTED_FILES = 12
MAX_COMPANIONS = 4
"""Number of PASS_TO_PASS functions of a row from which some are planted."""
FEW_TESTS = 20
LEAST_SHARE = 4
"""Least share of the row's limit that a view gets, however little time the stage has left."""


MORE_IDS = 4
"""Multiple of the tests of a step that a run may report: files have tests that no row lists."""
OTHER_IDS = 10_000
"""Number of further tests that it may report."""
SLOW_SHARE = 4
"""A host on which the known fix takes more than this part of the tests' time is too slow to say
that they take too long: rows allow ten times what they took where they were made."""


class Grader:
    """Grades one attempt on `item` in its slot.

    With `wary`, the patch looks like an attempt to interfere: there are more views.
    """

    def __init__(
        self, context: SlotContext, item: Item, pinned: Pinned, *, wary: bool = False
    ) -> None:
        self._context = context
        self._row = item
        self._pinned = pinned
        self._wary = wary
        self._memory = RowMemory(item, context.slot.image if pinned.image else None)
        self._record = RowRecord()
        self._chance = random.SystemRandom()
        self._limit_s = item.test_timeout_s
        self._leave_out(frozenset())
        self._planter: Planter | None = None
        self._redrawn = False

    async def grade(self, tree: str) -> dict[str, Any]:
        """The report on `tree`: its `reason` is "resolved", or the reason why the score is 0.

        Raises:
            EnvBug: the known fix does not pass these tests here either; the row is to blame.
            SandboxError: nothing could be measured, not even on the known fix.
            DeadlineExceeded: the stage's time is over.
        """
        self._record = await self._memory.read()
        if self._record.fault:
            raise EnvBug(self._record.fault)
        self._leave_out(self._record.flaky)
        for left in reversed(range(MAX_ROUNDS)):
            if left == 0:  # plants in the tests do not work: use added test files
                await self._doubt(plantless=True)
            results = SuiteResults()
            reason = await self._round(tree, results)
            if reason is not None:
                report = results.report(self._item, reason)
                flaky = [test for test in self._row.test_ids if test not in self._item.test_ids]
                return report | ({"flaky": flaky[:LISTED_IDS]} if flaky else {})
        raise EnvBug(
            "FAIL_TO_PASS: tests that were changed to fail pass, even with the known fix; they "
            "look like tests that check nothing"
        )

    async def _round(self, tree: str, results: SuiteResults) -> Reason | None:
        """Run the steps until one decides; None = draw the views again."""
        reason: Reason = "resolved"
        for step in await self._steps():
            if reason != "resolved" and not (self._item.full_report and step.stage == "all"):
                continue
            if self._planter:  # redrawn plants in place of doubtful ones
                step = replace(step, view=self._planter.current(step.view))
            run = await self._run(tree, step, later=bool(results.runs))
            settled = await self._settle(tree, step, run, results)
            if settled is None:
                return None
            reason = settled if reason == "resolved" else reason
        return reason

    async def _settle(
        self, tree: str, step: Step, run: SuiteRun, results: SuiteResults, *, repeated: bool = False
    ) -> Reason | None:
        """The verdict of a run, checked with the known fix; None = its plants were unusable."""
        findings = await self._findings(await self._excusing(step, run), run)
        reason = findings.reason(run)
        failing = map(TestFunction.of, findings.failing)
        fix_passes = self._record.fix_passes(step.kind, step.view.variants, failing)
        if reason in ("timed_out", "cut_short"):
            gold = await self._expect_control(step.without_plants())
            slow = run.timed_out and gold.seconds > run.seconds / SLOW_SHARE
            if (run.may_be_chance or slow) and not repeated:
                if self._context.remaining_s() < 2 * (self._limit_s + OVERHEAD_S):
                    self._expect_fast(run, gold)
                    results.add(step, run, findings)
                    return reason
                again = await self._run(tree, step)
                return await self._settle(tree, step, again, results, repeated=True)
            if slow:
                self._expect_fast(run, gold)
        elif reason == "canary" or (reason == "tests_fail" and not fix_passes):
            if not await self._fix_does_better(step):
                return None
        if reason == "tests_fail" and await self._are_flaky(tree, findings):
            return None
        if reason == "canary" and (other := self._in_other_words(step, findings)):
            again = await self._run(tree, other, later=True)
            return await self._settle(tree, other, again, results, repeated=repeated)
        run, findings = await self._looked_at_again(tree, step, run, findings)
        results.add(step, run, findings)
        return findings.reason(run)

    def _expect_fast(self, run: SuiteRun, gold: SuiteRun) -> None:
        """Raise if there is no time to repeat the run and the known fix was slow too."""
        if run.timed_out and gold.seconds > run.seconds / SLOW_SHARE:
            raise SandboxError(
                f"the tests took too long, and {gold.seconds:.0f} of {run.seconds:.0f} s with "
                "the known fix: this machine is too slow, or test_secs of the row too small"
            )

    async def _pass_when_repeated(self, tree: str, step: Step, findings: Findings) -> bool:
        """Whether tests that a slow machine may have failed pass when they run alone.

        Tried only if the failures are a few PASS_TO_PASS tests that the agent could read: some
        tests check durations.
        """
        failing = tuple(findings.failing)
        functions = frozenset(TestFunction.of(test) for test in failing)
        known = {function.file for function in functions}.isdisjoint(self._item.hidden_files)
        if findings.lies or not known or len(failing) > FEW_TESTS:
            return False
        alone = replace(self._step("again", View({}, frozenset()), functions), test_ids=failing)
        again = await self._run(tree, alone)
        findings = await self._findings(await self._excusing(alone, again), again)
        return findings.reason(again) == "resolved"

    async def _excusing(self, step: Step, run: SuiteRun) -> Step:
        """The step in which only tests marked so may fail as expected.

        Code under test can say of any test that its failure is expected; the marks are what the
        known fix's run shows.
        """
        mine = step.may_xfail.intersection(step.test_ids) if run.complete else ()
        excused = {test for test in mine if run.outcome(test) == "xfailed"}
        if excused - self._record.marked:
            gold = await self._expect_control(step.without_plants())
            marked = {test for test in mine if gold.outcome(test) in ("xfailed", "xpassed")}
            await self._remember(marked=self._record.marked | marked)
        return replace(step, may_xfail=self._record.marked) if excused else step

    def _in_other_words(self, step: Step, findings: Findings) -> Step | None:
        """The step with other plants, if the plants that were reported as passed leave doubts.

        Odd but honest code may put two texts into one message, or raise an exception of two
        classes. Done only once per verdict: from a second draw, code that lies could learn which
        variant is the original.
        """
        if self._redrawn or self._planter is None or not findings.lies <= step.view.planted:
            return None
        view = self._planter.redrawn(step.view, findings.lies)
        self._redrawn = view is not None
        return None if view is None else replace(step, view=view)

    async def _looked_at_again(
        self, tree: str, step: Step, run: SuiteRun, findings: Findings
    ) -> tuple[SuiteRun, Findings]:
        """The run that decides, and its findings: this one, or one of the original tests.

        Wrong code can give by chance what a plant expects. Then it fails the original tests, which
        names the verdict and does not change the score: without the time for it, or if the sandbox
        fails, the verdict stands as it is.
        """
        reason = findings.reason(run)
        if reason == "tests_fail" and await self._pass_when_repeated(tree, step, findings):
            return run, replace(findings, failing={})
        needed_s = self._limit_s / LEAST_SHARE + 2 * OVERHEAD_S
        if (
            reason == "canary"
            and findings.lies
            and findings.lies <= step.view.variants.keys()
            and self._context.remaining_s() > needed_s
        ):
            plain = replace(step.without_plants(), may_xfail=self._record.marked)
            with suppress(SandboxError, DeadlineExceeded):
                original = await self._run(tree, plain, later=True)
                wrong = await self._findings(plain, original)
                if wrong.reason(original) == "tests_fail":
                    return original, wrong
        return run, findings

    # --- the known fix --------------------------------------------------------------------

    async def _expect_control(self, step: Step) -> SuiteRun:
        """The known fix's run if it was complete; else raise."""
        gold = await self._gold(step)
        if not gold.complete:
            await self._cannot_run(step, gold)
        return gold

    async def _cannot_run(self, step: Step, gold: SuiteRun) -> NoReturn:
        # Twice, because a full disk would look the same.
        if gold.cannot_run and (await self._gold(step.without_plants())).cannot_run:
            last = gold.output.strip().rpartition("\n")[2][:500]
            await self._blame_row(
                f"environment: with the known fix {self._item.runner} ends with {gold.exit_code} "
                f"here: {last}"
            )
        how = "took too long" if gold.timed_out else f"was cut short (exit code {gold.exit_code})"
        raise SandboxError(f"the test run {how}, even with the known fix:  {gold.output[-500:]}")

    async def _fix_does_better(self, step: Step) -> bool:
        """Whether the known fix passes the step; if not, records the reason and returns False.

        Raises:
            EnvBug: the known fix fails tests that it should pass.
        """
        gold = await self._expect_control(step)
        findings = await self._findings(step, gold)
        if findings.reason(gold) == "resolved":
            if not await self._passes_alone(step):
                await self._doubt(whole_files=True)
                return False
            await self._remember(passes=self._record.passing(step.kind, step.view.variants).passes)
            return True
        if not findings.failing and not self._record.plantless:
            await self._doubt(unplantable=self._record.unplantable | findings.lies)
            return False
        if await self._changes(step, findings.failing):
            return False
        plain = step.without_plants()
        for simpler in (plain, plain.whole_files()):
            gold = await self._gold(simpler)
            findings = await self._findings(simpler, gold)
            if findings.reason(gold) == "resolved":
                alone = simpler.only == step.only
                await self._doubt(**{"plantless" if alone else "whole_files": True})
                return False
        if not gold.complete:
            await self._cannot_run(step, gold)
        named = ", ".join(f"{test} ({how})" for test, how in list(findings.failing.items())[:3])
        await self._blame_row(
            "FAIL_TO_PASS, PASS_TO_PASS: with the known fix "
            f"{len(findings.failing)} of these tests do not pass here: {named}; "
            f"{first_failure(list(findings.failing), gold.outcomes, gold.messages)}. "
            "Correct the ids, or the row's environment"
        )

    async def _passes_alone(self, step: Step) -> bool:
        """Whether FAIL_TO_PASS tests pass without the other tests of their files in this step."""
        alone = self._step("again", View({}, frozenset()), self._wanted)
        if step.only is None or step.only == alone.only:
            return True
        gold = await self._gold(alone)
        return (await self._findings(alone, gold)).reason(gold) == "resolved"

    # --- flaky tests ----------------------------------------------------------------------

    def _leave_out(self, flaky: Collection[str]) -> None:
        """Grade without these tests, and those that the row marks."""
        self._item = self._row.without({*self._row.environment.flaky, *flaky})
        self._wanted = frozenset(TestFunction.of(test) for test in self._item.FAIL_TO_PASS)
        self._may_xfail = frozenset(self._item.PASS_TO_PASS if self._pinned.image else ())

    async def _mark(self, tests: Collection[str]) -> None:
        """Record tests as flaky. Raises EnvBug: nothing is left that decides."""
        await self._doubt(flaky=self._record.flaky | {*tests})
        self._leave_out(self._record.flaky)
        self._planter = None
        if not self._item.FAIL_TO_PASS:
            await self._blame_row(
                "FAIL_TO_PASS: each of these tests passes and fails with the same files, so none "
                f"shows whether the bug is repaired: {', '.join(sorted(self._record.flaky)[:3])}; "
                "leave the row out"
            )

    async def _are_flaky(self, tree: str, findings: Findings) -> bool:
        """Whether failures of an attempt are the tests' own, seen in runs of the known fix."""
        failing = findings.failing.keys() - self._record.steady
        if tree == await self._pinned.solved():  # which has passed them, too
            await self._mark(findings.failing)
            return True
        if findings.lies or not 0 < len(failing) <= FEW_TESTS:
            return False
        alone = self._step("again", View({}, frozenset()), frozenset(map(TestFunction.of, failing)))
        runs = [run for _ in range(REPETITIONS) if (run := await self._gold(alone)).complete]
        failed = [failing & (await self._findings(alone, run)).failing.keys() for run in runs]
        # One that fails alone each time needs tests that run before it, and can rely on them.
        flaky = {test for test in failing if 0 < sum(test in each for each in failed) < len(failed)}
        if flaky:
            await self._mark(flaky)
            return True
        await self._remember(steady=self._record.steady | failing)
        return False

    async def _changes(self, step: Step, failing: Collection[str]) -> bool:
        """Whether tests that the known fix has failed in this step pass when it is repeated."""
        for _ in range(REPETITIONS if failing else 0):
            gold = await self._gold(self._in_another_order(step))
            flaky = {*failing} - (await self._findings(step, gold)).failing.keys()
            if gold.complete and flaky:
                await self._mark(flaky)
                return True
        return False

    def _in_another_order(self, step: Step) -> Step:
        return replace(step, targets=tuple(self._chance.sample(step.targets, len(step.targets))))

    async def _blame_row(self, fault: str) -> NoReturn:
        await self._doubt(fault=fault)
        raise EnvBug(fault)

    async def _doubt(self, **changes: Any) -> None:
        """Record a finding against the row, which expires."""
        if changes.get("whole_files"):  # the lines found by running tests alone are void too
            self._planter, changes["lines"] = None, None
        await self._remember(**changes, doubted_at=time.time())

    async def _remember(self, **changes: Any) -> None:
        self._record = replace(self._record, **changes)
        await self._memory.write(self._record)

    # --- runs -----------------------------------------------------------------------------

    async def _gold(self, step: Step) -> SuiteRun:
        return await self._run(await self._pinned.solved(), step, reserve_s=0.0)

    async def _findings(self, step: Step, run: SuiteRun) -> Findings:
        # In a thread: code under test decides how long it takes.
        return await asyncio.to_thread(Findings.of, step, run)

    async def _run(
        self, tree: str, step: Step, *, later: bool = False, reserve_s: float | None = None
    ) -> SuiteRun:
        repository, limit_s = self._pinned.repository, self._limit_s
        if later:
            limit_s = later_limit_s(limit_s, self._context.remaining_s())
        shown_tree = await repository.replace(tree, step.view.files) if step.view.files else tree
        await self._context.renew()
        return await run_tests(
            self._context,
            repository,
            shown_tree,
            self._item.environment,
            step.targets,
            limit_s,
            self._pinned.distribution,
            most_ids=OTHER_IDS + MORE_IDS * len(step.test_ids),
            only=step.only,
            reserve_s=self._limit_s + OVERHEAD_S if reserve_s is None else reserve_s,
            image=self._pinned.image,
        )

    async def _steps(self) -> list[Step]:
        """The views in the order in which they run: cheap ones before the whole suite."""
        views = await self._views()
        ids = self._item.test_ids
        planted = frozenset().union(*(view.planted for view in views))
        steps = [self._step("first", views[0], self._wanted | planted)]
        steps += [self._step("again", view, self._wanted) for view in views[1:-1]]
        targets = self._targets(ids, views[-1])
        return [*steps, Step("all", views[-1], targets, ids, may_xfail=self._may_xfail)]

    def _step(
        self, stage: Literal["first", "again"], view: View, functions: Collection[TestFunction]
    ) -> Step:
        """A run of only these functions, if the row's tests can run alone."""
        mine = tuple(test for test in self._item.test_ids if TestFunction.of(test) in functions)
        ours = {*functions, *view.added, *view.planted}
        only = tuple(sorted(f"{test.file}::{test.name}" for test in ours))
        step = Step(stage, view, self._targets(mine, view), mine, only, self._may_xfail)
        return step.whole_files() if self._record.whole_files else step

    def _targets(self, test_ids: Sequence[str], view: View) -> tuple[str, ...]:
        """The files to run; an added file is placed at random among them."""
        targets = sorted(set(map(file_of, test_ids)))
        for file in sorted({test.file for test in view.added | view.planted} - {*targets}):
            if view.added:
                targets.insert(self._chance.randrange(len(targets)), file)
        return tuple(targets)

    async def _failing_lines(self) -> dict[TestFunction, int]:
        """Lines at which FAIL_TO_PASS functions fail on the tree with the bug; 0 = unknown."""
        if self._record.lines is None:
            step = self._step("again", View({}, frozenset()), self._wanted)
            run = await self._run(self._pinned.graded, step)
            if run.may_be_chance:
                run = await self._run(self._pinned.graded, step)
            await self._look_again(step, run)
            found = {}
            for test in step.test_ids:
                if line := run.failing_line(test):
                    found[TestFunction.of(test)] = line
            known = tuple(sorted(found.items()))
            if reported(step, run):
                await self._remember(lines=known)
            elif run.may_be_chance:
                self._record = replace(self._record, lines=known)
            else:  # the bug may hang its tests: later attempts need not wait
                await self._doubt(lines=known)
        return dict.fromkeys(self._wanted, 0) | dict(self._record.lines or ())

    async def _look_again(self, step: Step, run: SuiteRun) -> None:
        """Mark FAIL_TO_PASS tests that have passed with the bug, unless they do so again."""
        passing = {test for test in step.test_ids if run.outcome(test) == "passed"}
        for _ in range(REPETITIONS if passing and run.complete else 0):
            again = await self._run(self._pinned.graded, self._in_another_order(step))
            flaky = {test for test in passing if again.outcome(test) in ("failed", "error")}
            if again.complete and flaky:
                await self._mark(flaky)
                return

    async def _new_planter(self) -> Planter:
        lines = await self._failing_lines()
        item = self._item
        files = [file for file in item.hidden_files if file.endswith(".py")]
        chosen = self._chance.sample(files, min(len(files), MAX_PLANTED_FILES))
        sources = {f: await self._pinned.repository.read(self._pinned.graded, f) for f in chosen}
        ids = item.test_ids
        return await asyncio.to_thread(
            Planter,
            sources,
            item.hidden_files,
            ids,
            self._chance,
            lines,
            item.problem_statement,
            classes=item.runner in ("unittest", "django"),
            mixed=self._wanted.intersection(map(TestFunction.of, item.PASS_TO_PASS)),
        )

    async def _views(self) -> list[View]:
        if self._planter is None:
            self._planter = await self._new_planter()
        planter, record = self._planter, self._record
        usable = frozenset() if record.plantless else planter.plantable - record.unplantable
        decoys = self._wanted & usable
        others = {TestFunction.of(test) for test in self._item.PASS_TO_PASS} & usable - decoys
        # Always the same few: each further one may have to be tried with the known fix.
        ranked = sorted(others, key=self._rank)
        alike = [
            test for kind in planter.mimics(decoys) for test in [t for t in ranked if t in kind][:2]
        ]
        companions = list(dict.fromkeys([*alike, *ranked]))[:MAX_COMPANIONS]
        views = await asyncio.to_thread(planter.views, decoys, companions, wary=self._wary)
        longest_s = len(views) * (self._limit_s + OVERHEAD_S)
        if self._wary and longest_s > self._context.remaining_s():
            views = await asyncio.to_thread(planter.views, decoys, companions, wary=False)
        return views

    def _rank(self, test: TestFunction) -> bytes:
        text = f"{self._item.instance_id}\0{test.file}\0{test.name}"
        return hashlib.sha256(text.encode()).digest()


def later_limit_s(limit_s: float, remaining_s: float) -> float:
    """Time limit of a view after the first: `limit_s`, less if the stage ends earlier.

    In the `remaining_s` of the stage, the known fix may have to run too.
    """
    spare_s = remaining_s - limit_s - 2 * OVERHEAD_S
    return min(limit_s, max(spare_s, limit_s / LEAST_SHARE))
