"""Decides whether a bug makes a good task: the same tests fail in each run on every Python."""

from __future__ import annotations

import difflib
import hashlib
import re
from typing import Any

from envs.swe.grading.suite import SuiteRun
from envs.swe.item import Item
from envs.swe.recipe import Mutation, pin, splice
from envs.swe.workspace import pin as pin_item
from hermes_queue.errors import EnvInfraError
from hermes_queue.sandbox.base import AssetSpec
from tools.make_bugs.bench import BAD, Bench, passed
from tools.make_bugs.mutators import is_a_change
from tools.make_bugs.sites import Candidate
from tools.make_bugs.statement import write_statement
from tools.make_bugs.symptoms import FailedCheck

MAX_SHARE = 0.35
"""Largest share of the suite that a bug may fail, unless it fails very few tests."""
FEW = 4


class UnsuitableBug(Exception):
    """The bug is not a task; the message says why in two or three words."""


async def check(bench: Bench, candidate: Candidate) -> dict[str, Any]:
    """The dataset row of this bug.

    Raises:
        UnsuitableBug: the bug is not a good task.
        SandboxError: a slot failed.
    """
    before = bench.sources[candidate.file]
    if not is_a_change(before, candidate.site.edits):
        raise UnsuitableBug("no valid change")
    after = splice(before, candidate.site.edits)
    tree = await bench.repository.replace(bench.clean, {candidate.file: after})
    first = await bench.run(tree)
    failing, passing = _effects(bench, first)
    if not failing:
        raise UnsuitableBug("survived the tests")
    if len(failing) > max(FEW, MAX_SHARE * len(bench.reference.passing)) or not passing:
        raise UnsuitableBug("too broad")
    for python in bench.contexts:
        bad, good = _effects(bench, await bench.run(tree, python))
        if python is None and (bad, good) != (failing, passing):
            raise UnsuitableBug("unstable")
        failing, passing = failing & bad, passing & good
    if not failing or not passing:
        raise UnsuitableBug("differs between Pythons")
    row = _row(bench, candidate, after, (failing, passing), first)
    message = f"Bug: {row['instance_id']}"
    row["base_commit"] = await bench.repository.commit(tree, message, [bench.clean])
    row["test_secs"] = await _confirm(bench, Item.model_validate(row))
    return row


def _effects(bench: Bench, run: SuiteRun) -> tuple[frozenset[str], frozenset[str]]:
    """(tests that fail now, tests that still pass), of those that passed before."""
    if run.timed_out:
        raise UnsuitableBug("timed out")
    if not (run.complete and run.consistent):
        raise UnsuitableBug("run cut short")
    if bench.reference.passing - run.outcomes.keys():
        raise UnsuitableBug("tests vanish")
    failing = frozenset(t for t in bench.reference.passing if run.outcomes[t] in BAD)
    return failing, bench.reference.passing & passed(run)


async def _confirm(bench: Bench, item: Item) -> float:
    """Grade doing nothing and the gold answer as the env does; returns the seconds of the tests.

    Raises:
        UnsuitableBug: grading does not separate doing nothing from the gold answer.
    """
    pinned = await pin_item(item, _no_download)
    idle = await bench.run(pinned.graded, targets=item.test_files)
    good = passed(idle)
    if not idle.complete or good & {*item.FAIL_TO_PASS} or not good >= {*item.PASS_TO_PASS}:
        raise UnsuitableBug("differs by itself")
    fixed = await bench.run(await pinned.solved(), targets=item.test_files)
    if not fixed.complete or not passed(fixed) >= {*item.FAIL_TO_PASS, *item.PASS_TO_PASS}:
        raise UnsuitableBug("not reversible")
    return round(fixed.seconds, 1)


def _row(
    bench: Bench,
    candidate: Candidate,
    after: bytes,
    effects: tuple[frozenset[str], frozenset[str]],
    run: SuiteRun,
) -> dict[str, Any]:
    source = bench.package.source
    failing, passing = effects
    before = bench.sources[candidate.file]
    mutation = Mutation(files=(pin(candidate.file, before, candidate.site.edits),))
    digest = hashlib.sha256(f"{candidate.file}\0".encode() + after).hexdigest()[:8]
    name = f"pypi__{source.name}.{source.sha256[:8]}"
    statement = write_statement(
        bench.library,
        [read_failure(test, run.messages.get(test, "")) for test in sorted(failing)],
        len(passing),
        place=candidate.place,
        changed_lines=changed_lines(before, after),
        seed=digest,
    )
    if statement is None:
        raise UnsuitableBug("statement would tell")
    return {
        "instance_id": f"{name}.func_{candidate.site.kind}__{digest}",
        "repo": f"pypi/{source.name}",
        "version": source.version,
        "license": bench.package.license,
        "strategy": candidate.site.kind,
        "problem_statement": statement,
        "FAIL_TO_PASS": sorted(failing),
        "PASS_TO_PASS": sorted(passing),
        "source": source.model_dump(mode="json"),
        "clean_commit": bench.clean,
        "mutation": mutation.model_dump(mode="json", exclude_defaults=True),
        "environment": bench.runtime.model_dump(
            mode="json", include={"requirements", "pythonpath", "pytest_args", "tests"}
        ),
    }


async def _no_download(asset: AssetSpec, path: str) -> bytes:
    raise EnvInfraError(f"{path} of {asset.kind} should be in the cache")


def changed_lines(before: bytes, after: bytes) -> list[str]:
    """The lines that differ, of both sides."""
    old, new = (data.decode().splitlines() for data in (before, after))
    delta = difflib.unified_diff(old, new, n=0, lineterm="")
    return [line[1:] for line in list(delta)[2:] if line[0] in "+-"]


def read_failure(test: str, message: str) -> FailedCheck:
    """Parse a failure reported by the test run: the message, then the traceback's frames."""
    lines = message.splitlines()
    frames: list[tuple[str, int, str]] = []
    while lines and (frame := re.fullmatch(r"([^:]*\.py):([0-9]+): in (.+)", lines[-1])):
        frames.insert(0, (frame[1], int(frame[2]), frame[3]))
        lines.pop()
    return FailedCheck(test, "\n".join(lines), tuple(frames))
