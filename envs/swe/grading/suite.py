"""Runs a tree's tests in an emptied slot, and reads their report as untrusted data."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import shlex
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import islice, takewhile
from pathlib import PurePosixPath
from typing import Any

from envs.swe.images.workplace import ImagePlace
from envs.swe.item import SuiteRuntime
from envs.swe.package.distribution import Distribution, place
from envs.swe.paths import file_of
from envs.swe.repository import Repository
from envs.swe.sources import ASSETS, asset_key
from envs.swe.workspace import GIT_ENV, export
from hermes_queue.errors import DeadlineExceeded, SandboxError, SlotLost
from hermes_queue.sandbox.base import AssetSpec, ExecutionResult
from hermes_queue.sandbox.context import SlotContext

VENV = f"{ASSETS}/venv"
MAX_REPORT_BYTES = 12 << 20
"""More than the script in the slot keeps of a report."""
MOST_IDS = 100_000
"""Number of tests that a run of a whole suite may report."""
_END = frozenset(("exit_status", "finished", "timed_out", "flooded", "output"))
MAX_FILE_BLOCKS = 256 << 10
"""Largest file that a test may write, in bash's ulimit unit of 1,024 bytes."""
PATIENCE = 3
"""Multiple of its limit that a run may take if other processes keep it from the processor."""
STARVED_SHARE = 0.25
OVERHEAD_S = 30.0
"""Time of a run beside the tests; after it, the runner in the slot counts as dead."""

_SCRIPTS = ("run_tests.py", "session.py", "program_session.py")
_SETTINGS = (
    *("-p", "no:cacheprovider", "--color=no", "--tb=short", "-q", "--disable-warnings"),
    # One module that cannot be imported must not hide the results of the others.
    "--continue-on-collection-errors",
)
# After the row's own arguments: a failing test, such as a planted one, must not end the run.
_LAST_SETTINGS = ("--maxfail=0",)
_FIXED_ENV = {
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "TZ": "UTC",
    "LANG": "C.UTF-8",
    "PATH": f"{VENV}/bin:/usr/local/bin:/usr/bin:/bin",
}

RUNNER_ENV = {
    "sympy": {
        "SYMPY_USE_CACHE": "no",
        "PYTHONWARNINGS": "ignore::UserWarning,ignore::SyntaxWarning",
    }
}
"""What SWE-bench's test command sets: `bin/test -C`."""

_RANKS = ("passed", "xpassed", "xfailed", "skipped", "failed", "error")


def is_cut(test: str) -> bool:
    """Whether a node id ends inside its brackets."""
    return "[" in test and not test.endswith("]")


@dataclass(frozen=True, slots=True)
class SuiteRun:
    """Results of one run of the tests."""

    outcomes: Mapping[str, str]
    """Node id -> passed | xpassed | skipped | xfailed | failed | error."""
    messages: Mapping[str, str]
    """Messages of the tests that failed."""
    ended: bool
    """Whether pytest ended regularly and its report arrived."""
    timed_out: bool
    exit_code: int
    """pytest's own, 128 + N after signal N, or the slot's if `ended` is false."""
    seconds: float
    output: str
    """The end of pytest's output."""
    cpu_s: float = 0.0
    """Processor time of pytest and of the processes that it waited for."""
    waited_s: float = 0.0
    """Seconds for which pytest was ready to run while others had the processor."""
    _ordered: Sequence[str] = field(init=False, repr=False, compare=False)
    """The node ids in order."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_ordered", sorted(self.outcomes))

    @property
    def complete(self) -> bool:
        """Whether pytest reports a full run: all passed, some failed, or none found."""
        return self.ended and self.exit_code in (0, 1, 5)

    @property
    def cannot_run(self) -> bool:
        """Whether pytest gave up, and would do so again: bad arguments, a broken conftest."""
        return not self.complete and not self.timed_out and 0 <= self.exit_code < 128

    @property
    def may_be_chance(self) -> bool:
        """Whether something else may have ended the run: load on the processor, or a SIGKILL."""
        if self.timed_out:
            return self.waited_s > STARVED_SHARE * self.seconds
        return not self.ended and self.exit_code >= 128

    @property
    def consistent(self) -> bool:
        """Whether the exit status agrees with the outcomes: 0 means that nothing failed."""
        failed = any(outcome in ("failed", "error") for outcome in self.outcomes.values())
        return self.complete and not (failed and self.exit_code == 0)

    def outcome(self, test: str) -> str:
        """The outcome of a node id; "missing" if it has none.

        SWE-bench takes ids from pytest's output up to the first blank. An id that ends inside its
        brackets stands for all that begin like it, and the worst of their outcomes counts.
        """
        own = self.outcomes.get(test)
        if own is not None or not is_cut(test):
            return own or "missing"
        return max(self.outcomes_of(test), key=_RANKS.index, default="missing")

    def outcomes_of(self, beginning: str) -> list[str]:
        """The outcomes of all node ids that begin like this."""
        return [self.outcomes[each] for each in self._beginning(beginning)]

    def _beginning(self, test: str) -> list[str]:
        first = bisect_left(self._ordered, test)
        following = islice(self._ordered, first, None)
        return list(takewhile(lambda each: each.startswith(test), following))

    def failing_line(self, test: str) -> int:
        """The line of the test's own file in which it failed; 0 if unknown."""
        file = re.escape(file_of(test))
        known = [test] if test in self.messages or not is_cut(test) else self._beginning(test)
        text = next((self.messages[each] for each in known if each in self.messages), "")
        frames = re.findall(rf"^{file}:(\d+): ", text, re.MULTILINE)
        return int(frames[-1]) if frames and len(frames[-1]) < 8 else 0


def venv_asset(runtime: SuiteRuntime, python: str) -> AssetSpec:
    """The dependencies of a row, without the package under test and without pip.

    `python` is the version that `runtime.python` stands for.
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
    key = asset_key(python, script)
    return AssetSpec(kind="venv", key=key, script=script, mount=VENV, python=runtime.python)


def suite_environment(runtime: SuiteRuntime, workspace: str, metadata: str = "") -> dict[str, str]:
    """The environment variables for tests; `metadata` is the result of `distribution.place`."""
    roots = [str(PurePosixPath(workspace) / path) for path in runtime.pythonpath]
    return {**_FIXED_ENV, **runtime.env, "PYTHONPATH": ":".join(filter(None, [*roots, metadata]))}


async def run_tests(
    context: SlotContext,
    repository: Repository,
    tree: str,
    runtime: SuiteRuntime,
    targets: Sequence[str],
    timeout_s: float,
    distribution: Distribution | None = None,
    *,
    most_ids: int = MOST_IDS,
    only: Sequence[str] | None = None,
    reserve_s: float = 0.0,
    image: ImagePlace | None = None,
) -> SuiteRun:
    """Put `tree` into the slot, which must be empty or fresh, and run the files `targets` there.

    The tests get `timeout_s` as long as they get the processor; `reserve_s` of the stage are left
    for a control after a run that took too long. `only` lists node ids without parameters; other
    tests of the files are deselected. A run that reports more than `most_ids` tests counts as one
    that did not end. So does a slot that dies during the tests: they may have killed it.

    Raises:
        SandboxError: the slot could not take the tree or start a command.
        DeadlineExceeded: the stage's deadline, not `timeout_s`, cut the run short.
    """
    runner = "pytest" if image is None else image.source.runner
    if image is None:
        await export(context, repository, tree)
        metadata = await place(context, distribution)
        python = f"{VENV}/bin/python"
        distributions = [f"{VENV}/lib/python3*/site-packages", metadata]
        environment = suite_environment(runtime, context.workspace, metadata)
    else:  # what is installed there belongs to it, plugins included
        await image.fill(context, repository, tree)
        python, distributions = image.facts.python, None
        environment = {**_FIXED_ENV, "PATH": image.source.path}
        environment |= {**RUNNER_ENV.get(runner, {}), **runtime.env}
    scratch = await _upload(context)
    token = secrets.token_hex(16)
    spare_s = context.remaining_s() - OVERHEAD_S - reserve_s
    longest_s = max(timeout_s, min(PATIENCE * timeout_s, spare_s))
    job = {
        "runner": runner,
        "arguments": [*_SETTINGS, *runtime.pytest_args, *_LAST_SETTINGS],
        "targets": list(targets),
        "only": only,
        "distributions": distributions,
        "limit_s": timeout_s,
        "longest_s": longest_s,
        "most_ids": most_ids,
        "token": token,
    }
    try:
        result = await context.run(
            f"ulimit -c 0 -f {MAX_FILE_BLOCKS}\n"
            f"exec {shlex.quote(python)} -I {scratch}/run_tests.py",
            stdin=json.dumps(job).encode(),
            env=environment,
            timeout_s=longest_s + OVERHEAD_S,
            max_output_bytes=MAX_REPORT_BYTES,
        )
    except SlotLost as error:
        return SuiteRun({}, {}, False, False, 137, 0.0, str(error))
    if result.timed_out and result.duration_s < timeout_s + OVERHEAD_S / 2:
        raise DeadlineExceeded("the stage ended before the tests' own time limit")
    return await asyncio.to_thread(_read, result, token)


async def _upload(context: SlotContext) -> str:
    """Write the scripts into a new directory, in one command: engines take long for each."""
    lines, data = ["set -eu", "d=$(mktemp -d)"], b""
    for name in _SCRIPTS:
        script = files("envs.swe.grading.slot").joinpath(name).read_bytes()
        lines.append(f'head -c {len(script)} > "$d"/{name}')
        data += script
    lines.append('printf %s "$d"')
    result = await context.run(
        "\n".join(lines), stdin=data, env=GIT_ENV, cwd="/", timeout_s=OVERHEAD_S
    )
    scratch = result.stdout.decode(errors="replace")
    if not result.ok or not scratch.startswith("/") or "\n" in scratch:
        raise SandboxError(f"the test runner could not be uploaded: {result.output[-300:]}")
    return scratch


def _read(result: ExecutionResult, token: str) -> SuiteRun:
    items, end = _parse(b"" if result.truncated else result.stdout, token)
    ended = bool(end) and end["finished"] and not end["timed_out"] and not end["flooded"]
    return SuiteRun(
        outcomes={item["id"]: item["outcome"] for item in items},
        messages={item["id"]: item["message"] for item in items if item["message"]},
        ended=ended,
        timed_out=result.timed_out or bool(end.get("timed_out")),
        exit_code=int(end.get("exit_status", result.exit_code)),
        seconds=result.duration_s,
        output=str(end.get("output", result.output))[-4000:],
        cpu_s=float(end.get("cpu_s", 0.0)),
        waited_s=float(end.get("waited_s", 0.0)),
    )


def _parse(report: bytes, token: str) -> tuple[list[dict[str, str]], dict[str, Any]]:
    """The report's items and its end record; both empty if any part is malformed."""
    items: list[dict[str, str]] = []
    try:
        for line in report.splitlines():
            entry = json.loads(line)
            if "end" in entry:
                whole = entry["end"] == token and entry.keys() >= _END
                return (items, entry) if whole else ([], {})
            items.append({key: _text(entry[key]) for key in ("id", "outcome", "message")})
    except (ValueError, KeyError, TypeError, RecursionError):
        return [], {}
    return [], {}


def _text(value: object) -> str:
    """`value` as text with lone surrogates replaced, which UTF-8 cannot encode."""
    return str(value).encode("utf-8", "replace").decode()
