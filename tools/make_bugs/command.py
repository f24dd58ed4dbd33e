"""Make SWE tasks from a package on the index: insert small bugs, keep those that its tests detect.

Flags are parsed here, then `bugs/package.py` pins sdist and dependencies, `bugs/bench.py` runs
the clean suite with coverage, `bugs/sites.py` draws places for bugs, and `bugs/validate.py`
tries each bug and makes a row, with a statement from `bugs/statement.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hermes_queue.disk.durable import flush
from hermes_queue.errors import EXIT_FAILED, EnvInfraError, InputError, SlotLost
from hermes_queue.sandbox import make_backend
from hermes_queue.sandbox.base import SlotSpec
from hermes_queue.settings import SandboxSettings
from hermes_queue.terminal.output import console as terminal_console
from producers.command import fail, run_command
from producers.run.flags import Options, at_least, flag, switch

if TYPE_CHECKING:
    from rich.status import Status

    from tools.make_bugs.bench import Bench
    from tools.make_bugs.sites import Draw

TRIES_PER_ROW = 15
"""About every second try becomes a row; a package that needs many more tries has a weak test
suite."""

_EPILOG = """\
A bug is a change of a few bytes: an inverted comparison, a constant off by one, two
arguments or statements swapped, a condition, call or assignment removed, ... It becomes a row
only if a few of the package's own tests detect it, in every run and on every Python, and if
undoing it makes them pass again. A row contains no code of the package, only the sdist's pin,
byte spans, test ids and a generated report.

examples:
  five tasks from one package:
    python -m tools.make_bugs --package schedule==1.2.2 --count 5 --out rows.jsonl
  tests with more requirements than the package; on three Pythons, which must be installed:
    python -m tools.make_bugs --package schedule==1.2.2 --count 5 --out rows.jsonl \\
        --extra-requirement pytz==2025.2 --python 3.11,3.12,3.13
  run the reference solutions, then see that doing nothing scores 0:
    python -m producers.swe_smith --dataset rows.jsonl --items all
    python -m producers.swe_smith --dataset rows.jsonl --items all --agent nop

exit codes: 0 all rows made | 1 fewer than --count, or the sandbox failed | 2 wrong flag or
  package | 3 this machine cannot isolate slots | 130 interrupted (rows made so far are kept)
"""


@dataclass(frozen=True)
class PackageOptions(Options):
    """The package and its tests."""

    title: ClassVar[str] = "the package"
    package: str = flag(
        "release whose sdist contains the tests; cannot be pytest or one of its dependencies",
        required=True,
        metavar="NAME==VERSION",
    )
    extra_requirement: tuple[str, ...] = flag(
        "requirement of the tests that is not a dependency of the package; may be repeated",
        default=(),
        metavar="REQUIREMENT",
    )
    tests: tuple[str, ...] = flag(
        "test file or directory in the sdist (default: every test_*.py and *_test.py)",
        default=(),
        metavar="PATH",
    )
    max_tests: int | None = flag(
        "refuse a package with more tests, because every row lists their ids",
        type=at_least(2),
        metavar="N",
    )
    python: tuple[str, ...] = flag(
        "also validate on these Pythons; only tests that behave the same on all of them are used",
        default=(),
        metavar="X.Y[,X.Y]",
    )


@dataclass(frozen=True)
class BugOptions(Options):
    """The bugs to make, and the file of their rows."""

    title: ClassVar[str] = "the rows"
    count: int = flag("rows to make (default: 5)", default=5, type=at_least(1), metavar="N")
    out: Path = flag(
        "JSON lines file to append to; rows in it are not made again",
        required=True,
        type=Path,
        metavar="PATH",
    )
    seed: str = flag(
        "seed of the random choice of bugs; the same seed makes the same rows (default: 0)",
        default="0",
    )
    per_function: int = flag(
        "largest number of bugs per function (default: 1)",
        default=1,
        type=at_least(1),
        metavar="N",
    )
    quiet: bool = switch("do not show progress")


def build_parser() -> argparse.ArgumentParser:
    """The parser of `python -m tools.make_bugs`."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.make_bugs",
        description="Make software-engineering tasks from a package on the index: small bugs that "
        "its own tests detect. All code of the package runs in sandboxes.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    PackageOptions.add(parser)
    BugOptions.add(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code (see `hermes_queue.errors`).

    Raises:
        SystemExit: for `--help` and for flags that cannot be parsed (exit code 2).
    """
    parsed = build_parser().parse_args(argv)
    wanted, rows = PackageOptions.of(parsed), BugOptions.of(parsed)
    return run_command(
        lambda: asyncio.run(_make(wanted, rows)),
        interrupted=f"interrupted; rows made so far are in {rows.out}",
    )


def pythons_of(texts: Sequence[str]) -> list[str | None]:
    """The Pythons to validate on; None, the worker's own, comes first.

    Raises:
        InputError: a version is not of the form 3.12.
    """
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    versions = [part.strip() for text in texts for part in text.split(",")]
    for python in versions:
        if not re.fullmatch(r"3\.\d{1,2}", python):
            raise InputError(f'--python: {python!r} is not of the form "3.12"')
    return [None, *(p for p in dict.fromkeys(versions) if p != own)]


async def _make(wanted: PackageOptions, rows: BugOptions) -> int:
    from tools.make_bugs.bench import open_bench
    from tools.make_bugs.package import parse_pin, survey

    name, version = parse_pin(wanted.package)
    pythons = pythons_of(wanted.python)
    console = terminal_console(
        stderr=True, quiet=rows.quiet, highlight=False, markup=False, soft_wrap=True
    )
    with _Out(rows.out) as out, console.status("starting") as status:
        backend = make_backend(SandboxSettings().backend, slots=len(pythons) + 1)
        await backend.start()
        try:
            for python in pythons:
                try:
                    await backend.prepare(SlotSpec(python=python))
                except EnvInfraError as error:
                    raise InputError(f"--python: {error}") from error
            console.print(f"asking the package index about {name}=={version}")
            package = await survey(backend, name, version, wanted.extra_requirement)
            if not package.permissive:
                licence = f"the licence is {package.license!r}"
                console.print(f"note: {licence}; check that you may use the package")
            console.print(f"running the tests of the clean package on {len(pythons)} Python(s)")
            async with open_bench(backend, package, pythons, wanted.tests) as bench:
                await bench.measure(max_tests=wanted.max_tests)
                made = await _try_bugs(bench, rows, out, status)
        finally:
            await backend.stop()
    if made < rows.count:
        return fail(
            f"made {made} of {rows.count} rows; the tests of {name} detect too few bugs: "
            "add --tests, change --seed or raise --per-function",
            EXIT_FAILED,
        )
    return 0


async def _try_bugs(bench: Bench, rows: BugOptions, out: _Out, status: Status) -> int:
    from tools.make_bugs.sites import Draw
    from tools.make_bugs.validate import UnsuitableBug, check

    found = await bench.find_candidates()
    source, say = bench.package.source, status.console.print
    say(
        f"{len(bench.reference.passing)} tests pass in {bench.reference.seconds:.1f} s, "
        f"{bench.reference.failing} fail and are not used; {len(found)} places for a bug"
    )
    seed = f"{rows.seed}:{source.name}=={source.version}"
    draw = Draw(found, seed, per_function=rows.per_function)
    out.note(draw, source.sha256)
    made, tries, refused = 0, 0, Counter[str]()
    for candidate in draw:
        if made == rows.count or tries == TRIES_PER_ROW * rows.count:
            break
        tries += 1
        kind = candidate.site.kind
        status.update(f"{made}/{rows.count} rows, {refused.total()} refused, trying {kind}")
        try:
            row = await check(bench, candidate)
        except (UnsuitableBug, SlotLost) as reason:
            refused[str(reason) if isinstance(reason, UnsuitableBug) else "killed the sandbox"] += 1
            continue
        draw.use(kind, candidate.place)
        if out.write(row):
            made += 1
            say(
                f"{made}/{rows.count}  {row['instance_id']}  "
                f"{len(row['FAIL_TO_PASS'])} fail, {len(row['PASS_TO_PASS'])} pass"
            )
    reasons = ", ".join(f"{count} {reason}" for reason, count in refused.most_common())
    say(f"{made} rows from {tries} tries" + (f"; refused: {reasons}" if reasons else ""))
    return made


class _Out:
    """The output file of rows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: list[dict[str, Any]] = []

    def __enter__(self) -> _Out:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("a+", encoding="utf-8")
        except OSError as error:
            raise InputError(f"--out: {self._path} cannot be written: {error}") from error
        self._file.seek(0)
        for number, line in enumerate(self._file, 1):
            try:
                self._rows.append(json.loads(line))
                self._place(self._rows[-1])
            except (ValueError, KeyError, TypeError, IndexError) as error:
                self._file.close()
                raise InputError(
                    f"--out: line {number} of {self._path} was not written by this program "
                    f"({error}); choose another file"
                ) from error
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        if not self._rows:
            self._path.unlink()

    @staticmethod
    def _place(row: dict[str, Any]) -> tuple[str, str]:
        [part] = row["mutation"]["files"]
        return part["file"], part["edits"][0]["function"]

    def note(self, draw: Draw, sha256: str) -> None:
        """Mark the rows of this package that the file already holds as used in the draw."""
        for row in self._rows:
            if row["source"]["sha256"] == sha256:
                draw.use(row["strategy"], self._place(row))

    def write(self, row: dict[str, Any]) -> bool:
        """Append and flush a row; False if the file already holds it."""
        if any(old["instance_id"] == row["instance_id"] for old in self._rows):
            return False
        self._rows.append(row)
        self._file.write(json.dumps(row, ensure_ascii=False) + "\n")
        flush(self._file)
        return True
