"""A package's test suite in slots with its dependencies: clean runs and coverage."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from envs.swe.grading.suite import SuiteRun, run_tests, venv_asset
from envs.swe.item import SuiteRuntime
from envs.swe.package.distribution import Distribution, describe
from envs.swe.repository import Repository
from envs.swe.sources import sdist_repository
from hermes_queue.errors import EnvBug, InputError
from hermes_queue.sandbox.base import AssetSpec, SandboxBackend, SlotSpec
from hermes_queue.sandbox.context import SlotContext
from tools.make_bugs.package import Package, find_tests
from tools.make_bugs.sites import COVERAGE_FILE, Candidate, candidates, covered_lines, with_coverage
from tools.make_bugs.symptoms import Library, public_names

OWN_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
REFERENCE_TIMEOUT_S = 600.0
MIN_TIMEOUT_S = 20.0
BAD = ("failed", "error")


def passed(run: SuiteRun) -> frozenset[str]:
    """The tests that the run reports as passed."""
    return frozenset(test for test, outcome in run.outcomes.items() if outcome == "passed")


@dataclass(frozen=True, slots=True)
class Reference:
    """Results of the clean package under its own suite."""

    passing: frozenset[str]
    """Tests that pass on every Python in every run."""
    failing: int
    """Tests that fail on the worker's own Python although the package is clean."""
    seconds: float


@dataclass(slots=True)
class Bench:
    """One package with its suite, ready to try bugs on. Created by `open_bench`.

    Call `measure` and then `find_candidates` to fill it.
    """

    backend: SandboxBackend
    package: Package
    runtime: SuiteRuntime
    repository: Repository
    clean: str
    """Id of the clean commit."""
    contexts: Mapping[str | None, SlotContext]
    """A slot for each of the tested Pythons; the first is None, the worker's own."""
    distribution: Distribution | None
    timeout_s: float = REFERENCE_TIMEOUT_S
    reference: Reference = field(init=False)
    sources: Mapping[str, bytes] = field(init=False)
    """Files of the package that the suite runs."""
    library: Library = field(init=False)

    async def run(
        self, tree: str, python: str | None = None, targets: Sequence[str] = ()
    ) -> SuiteRun:
        """Run the whole suite, or the files `targets`, on a tree or commit in an emptied slot.

        Raises:
            SandboxError: the slot failed.
        """
        context = self.contexts[python]
        await context.renew()
        targets = targets or self.runtime.tests
        return await self._run(context, self.runtime, tree, targets, self.timeout_s)

    async def _run(
        self,
        context: SlotContext,
        runtime: SuiteRuntime,
        commit: str,
        targets: Sequence[str],
        timeout_s: float,
    ) -> SuiteRun:
        tree = await self.repository.resolve(f"{commit}^{{tree}}")
        return await run_tests(
            context, self.repository, tree, runtime, targets, timeout_s, self.distribution
        )

    async def measure(self, *, max_tests: int | None) -> None:
        """Run the clean package twice on every Python.

        Raises:
            InputError: the suite does not run, no test passes, more than `max_tests` pass, or
                its tests have other names in every run.
        """
        name = self.package.source.name
        runs: list[SuiteRun] = []
        for python in [*self.contexts, *self.contexts]:
            runs.append(await self.run(self.clean, python))
            self._expect_complete(runs[-1], python)
        first, again = runs[0], runs[len(self.contexts)]
        if changed := sorted(first.outcomes.keys() ^ again.outcomes.keys()):
            raise InputError(
                f"--package: {name}'s tests have other names in every run, e.g. {changed[0]}; "
                "choose another package, or --tests without it"
            )
        passing = frozenset.intersection(*map(passed, runs))
        if not passing:
            raise InputError(f"--package: no test of {name} passes: {_tail(first)}")
        if max_tests is not None and len(passing) > max_tests:
            raise InputError(
                f"--max-tests: {len(passing)} tests of {name} pass, more than {max_tests}; "
                "name fewer --tests or choose another package"
            )
        failing = sum(outcome in BAD for outcome in first.outcomes.values())
        self.reference = Reference(passing, failing, max(run.seconds for run in runs))
        self.timeout_s = max(MIN_TIMEOUT_S, 5 * self.reference.seconds)

    def _expect_complete(self, run: SuiteRun, python: str | None) -> None:
        if run.complete and run.consistent:
            return
        where = f" on Python {python}" if python else ""
        why = "took too long" if run.timed_out else "did not run to the end"
        raise InputError(
            f"--package: the tests of {self.package.source.name} {why}{where}; do they need an "
            f"--extra-requirement? pytest's output: {_tail(run)}"
        )

    async def find_candidates(self) -> list[Candidate]:
        """Find places for bugs by running the suite once under coverage.

        Raises:
            InputError: the run recorded no coverage.
        """
        source, read = self.package.source, self.repository.read
        lines = await self._coverage()
        paths = await self.repository.files(self.clean)
        self.sources = {p: await read(self.clean, p) for p in sorted(lines.keys() & paths)}
        tests = sorted({test.partition("::")[0] for test in self.reference.passing} & paths)
        self.library = Library(
            label=f"{source.name} {source.version}",
            names=public_names(self.sources.values()),
            tests={p: (await read(self.clean, p)).decode(errors="replace") for p in tests},
        )
        return candidates(self.sources, lines)

    async def _coverage(self) -> dict[str, frozenset[int]]:
        runtime = with_coverage(self.runtime)
        async with _slot(self.backend, runtime) as context:
            run = await self._run(context, runtime, self.clean, runtime.tests, REFERENCE_TIMEOUT_S)
            try:
                report = await context.read_file(f"{context.workspace}/{COVERAGE_FILE}")
                return covered_lines(report)
            except (OSError, ValueError) as error:
                message = f"--package: the tests recorded no coverage:  {_tail(run)}"
                raise InputError(message) from error


def _tail(run: SuiteRun) -> str:
    return run.output[-600:].strip() or "(nothing)"


@asynccontextmanager
async def open_bench(
    backend: SandboxBackend, package: Package, pythons: Sequence[str | None], tests: Sequence[str]
) -> AsyncIterator[Bench]:
    """A bench with one slot per Python; the first of `pythons` is None, the worker's own.

    Raises:
        InputError: the package has no tests, or they cannot be used.
        EnvInfraError: a dependency could not be installed.
    """
    source = package.source

    async def read_asset(asset: AssetSpec, path: str) -> bytes:
        await backend.prepare(SlotSpec(assets=(asset,), python=asset.python))
        return await backend.read_asset(asset, path)

    try:
        repository, clean = await sdist_repository(source, None, read_asset)
    except EnvBug as error:
        raise InputError(f"--package: {error}") from error
    runtime = SuiteRuntime(
        requirements=package.requirements,
        pytest_args=("-o", "addopts="),  # its own may need plugins
        tests=find_tests(await repository.files(clean), tests),
    )
    async with AsyncExitStack() as stack:
        repository = await stack.enter_async_context(repository.scratch())
        distribution = await describe(repository, clean, runtime, source)
        contexts = {}
        for python in pythons:
            of_python = runtime.model_copy(update={"python": python})
            contexts[python] = await stack.enter_async_context(_slot(backend, of_python))
        yield Bench(backend, package, runtime, repository, clean, contexts, distribution)


@asynccontextmanager
async def _slot(backend: SandboxBackend, runtime: SuiteRuntime) -> AsyncIterator[SlotContext]:
    venv = venv_asset(runtime, runtime.python or OWN_PYTHON)
    spec = SlotSpec(assets=(venv,), python=runtime.python)
    context = SlotContext(backend, await backend.acquire("make-bugs", spec), deadline=math.inf)
    try:
        yield context
    finally:
        await asyncio.shield(backend.release(context.slot))
