"""Run a tree's tests in a renewed slot and judge the outcome.

Beside the real tests run two canaries under names nobody can foresee, one that must pass
and one that must fail: a run that reports them wrongly does not tell the truth.
"""

from __future__ import annotations

import json
import secrets
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Any

from envs.swe.distribution import Distribution, place
from envs.swe.item import Item, Runtime
from envs.swe.repository import Repository
from envs.swe.sources import ASSETS, asset_key
from envs.swe.workspace import export, scratch_directory
from hermes_queue.errors import DeadlineExceeded, SandboxError
from hermes_queue.sandbox.base import AssetSpec
from hermes_queue.sandbox.context import SlotContext

VENV = f"{ASSETS}/venv"
MAX_REPORT_BYTES = 32 << 20
MAX_FILE_BLOCKS = 256 << 10
"""Largest file a test may write, in bash's ulimit unit of 1,024 bytes."""
LISTED_IDS = 50
"""How many failing ids a verdict's report names."""

_SETTINGS = (
    *("-p", "no:cacheprovider", "--color=no", "--tb=short", "-q", "--disable-warnings"),
    # One module that cannot be imported must not hide what the others would show.
    "--continue-on-collection-errors",
)
_FIXED_ENV = {
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "TZ": "UTC",
    "LANG": "C.UTF-8",
    "PATH": f"{VENV}/bin:/usr/local/bin:/usr/bin:/bin",
}


@dataclass(frozen=True, slots=True)
class SuiteRun:
    """What one run of the tests showed."""

    outcomes: Mapping[str, str]
    """Node id -> passed | xpassed | skipped | xfailed | failed | error."""
    messages: Mapping[str, str]
    """Of those that failed."""
    complete: bool
    """Whether the report has its end record and pytest ended as it does after a full run."""
    truthful: bool
    """Whether both canaries and the exit status are as they must be."""
    timed_out: bool
    exit_code: int
    seconds: float
    output: str
    """The end of what pytest printed."""


def venv_asset(runtime: Runtime, python: str) -> AssetSpec:
    """The dependencies of a row, without the package under test and without pip.

    Args:
        runtime: what to install.
        python: the version that `runtime.python` stands for, as part of the key.
    """
    listed = [*sorted(runtime.requirements), *runtime.install]
    lines = " ".join(map(shlex.quote, listed))
    options = "--quiet --prefer-binary --disable-pip-version-check"
    if not runtime.install:
        options += " --no-deps"
    if any("--hash=" in line for line in listed):
        options += " --require-hashes"
    script = f"""python3 -m venv --without-pip .
printf '%s\\n' {lines} > requirements.txt
$HQ_PIP --python ./bin/python install {options} -r requirements.txt
./bin/python -c 'import pytest'
"""
    return AssetSpec(
        kind="venv",
        key=asset_key(python, script),
        script=script,
        mount=VENV,
        python=runtime.python,
    )


def suite_environment(runtime: Runtime, workspace: str, metadata: str = "") -> dict[str, str]:
    """The environment variables that tests run with; `metadata` as `distribution.place` says."""
    roots = [str(PurePosixPath(workspace) / path) for path in runtime.pythonpath]
    return {**_FIXED_ENV, **runtime.env, "PYTHONPATH": ":".join(filter(None, [*roots, metadata]))}


async def run_tests(
    context: SlotContext,
    repository: Repository,
    tree: str,
    runtime: Runtime,
    targets: Sequence[str],
    timeout_s: float,
    distribution: Distribution | None = None,
) -> SuiteRun:
    """Export `tree` into the slot, which must be empty, and run the files `targets` there.

    Raises:
        SandboxError: the slot could not take the tree or run a command.
        DeadlineExceeded: the stage's deadline, not `timeout_s`, cut the run short.
    """
    canary = Canary.beside(targets[0])
    await export(context, repository, await repository.replace(tree, canary.files()))
    metadata = await place(context, distribution)
    scratch = await _upload(context)
    report, token = f"{scratch}/{secrets.token_hex(16)}", secrets.token_hex(16)
    job = {
        "arguments": [*_SETTINGS, *runtime.pytest_args, *targets, canary.file],
        "report": report,
        "token": token,
    }
    deadline_first = context.remaining_s() < timeout_s
    result = await context.run(
        f"ulimit -c 0 -f {MAX_FILE_BLOCKS}; "
        f"exec {VENV}/bin/python {scratch}/run_tests.py > {scratch}/output 2>&1",
        stdin=json.dumps(job).encode(),
        env=suite_environment(runtime, context.workspace, metadata),
        timeout_s=timeout_s,
    )
    if result.timed_out and deadline_first:
        raise DeadlineExceeded("the stage ended before the tests' own time limit")
    items, ended = _parse(await _read(context, report), token)
    outcomes = {item["id"]: item["outcome"] for item in items}
    truthful = ended and result.exit_code == 1 and canary.sings(outcomes)
    return SuiteRun(
        outcomes=outcomes,
        messages={item["id"]: item["message"] for item in items if item["message"]},
        complete=ended and result.exit_code in (0, 1),
        truthful=truthful,
        timed_out=result.timed_out,
        exit_code=result.exit_code,
        seconds=result.duration_s,
        output=(await _read(context, f"{scratch}/output")).decode(errors="replace")[-4000:],
    )


async def _upload(context: SlotContext) -> str:
    """The directory, outside the repository, that now holds the runner."""
    script = files("envs.swe.slot").joinpath("run_tests.py").read_bytes()
    try:
        scratch = await scratch_directory(context)
        await context.write_file(f"{scratch}/run_tests.py", script)
    except OSError as error:
        raise SandboxError(f"the test runner could not be uploaded: {error}") from error
    return scratch


@dataclass(frozen=True, slots=True)
class Canary:
    """A test file with one test that passes and one that fails."""

    file: str
    passing: str
    failing: str

    @classmethod
    def beside(cls, path: str) -> Canary:
        """One in the directory of `path`, under random names."""
        parent = PurePosixPath(path).parent if path.endswith(".py") else PurePosixPath(path)
        passing, failing, name = (secrets.token_hex(8) for _ in range(3))
        return cls(str(parent / f"test_{name}.py"), f"test_{passing}", f"test_{failing}")

    def files(self) -> dict[str, bytes | None]:
        """Path and content."""
        text = (
            f"def {self.passing}():\n    assert sum((1, 1)) == 2\n\n\n"
            f"def {self.failing}():\n    assert sum((1, 1)) == 3\n"
        )
        return {self.file: text.encode()}

    def sings(self, outcomes: dict[str, str]) -> bool:
        """Take both out of `outcomes` and tell whether they are right."""
        passing = outcomes.pop(f"{self.file}::{self.passing}", "")
        failing = outcomes.pop(f"{self.file}::{self.failing}", "")
        return passing == "passed" and failing == "failed"


def judge(item: Item, run: SuiteRun) -> tuple[str, dict[str, Any]]:
    """The reason ("resolved" or why not) and the tests' status in SWE-bench's terms."""
    status, failed = {}, 0
    for name, ids in (("FAIL_TO_PASS", item.FAIL_TO_PASS), ("PASS_TO_PASS", item.PASS_TO_PASS)):
        bad = [test for test in ids if run.outcomes.get(test) != "passed"]
        failed += len(bad)
        status[name] = {
            "success": len(ids) - len(bad),
            "failure": len(bad),
            "failing": {test: run.outcomes.get(test, "missing") for test in bad[:LISTED_IDS]},
        }
    if run.timed_out:
        return "timed_out", status
    if not run.complete:
        return "cut_short", status
    if not run.truthful:
        return "canary", status
    return ("tests_fail" if failed else "resolved"), status


async def _read(context: SlotContext, path: str) -> bytes:
    """A file that tests may have removed, blown up or never written: then nothing."""
    try:
        return await context.read_file(path, max_bytes=MAX_REPORT_BYTES)
    except OSError:
        return b""


def _parse(report: bytes, token: str) -> tuple[list[dict[str, str]], bool]:
    """The report's items, and whether it is whole."""
    items: list[dict[str, str]] = []
    try:
        for line in report.decode().splitlines():
            entry = json.loads(line)
            if "end" in entry:
                return items, entry["end"] == token
            items.append({key: str(entry[key]) for key in ("id", "outcome", "message")})
    except (ValueError, KeyError, TypeError):
        return [], False
    return items, False


async def control(
    context: SlotContext,
    item: Item,
    repository: Repository,
    clean: str,
    distribution: Distribution | None = None,
) -> None:
    """Grade the pinned clean tree in the same way, to tell whose fault a cut-short run was.

    Raises:
        SandboxError: the control is cut short as well.
    """
    await context.renew()
    run = await run_tests(
        context,
        repository,
        clean,
        item.environment,
        item.test_files,
        item.test_timeout_s,
        distribution,
    )
    if not (run.complete and run.truthful):
        raise SandboxError(
            "the tests were cut short, on the clean tree too "
            f"(exit code {run.exit_code}): {run.output[-500:]}"
        )
