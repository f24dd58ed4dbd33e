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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes_queue.disk.durable import flush
from hermes_queue.errors import EXIT_FAILED, EnvInfraError, InputError, SlotLost
from hermes_queue.sandbox import make_backend
from hermes_queue.sandbox.base import SandboxBackend, SlotSpec
from hermes_queue.settings import SandboxSettings
from producers.command import fail, run_command
from producers.run.flags import at_least

if TYPE_CHECKING:
    from envs.swe.bugs.bench import Bench
    from envs.swe.bugs.sites import Draw

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
    python -m producers.make_bugs --package schedule==1.2.2 --count 5 --out rows.jsonl
  tests with more requirements than the package; on three Pythons, which must be installed:
    python -m producers.make_bugs --package schedule==1.2.2 --count 5 --out rows.jsonl \\
        --extra-requirement pytz==2025.2 --python 3.11,3.12,3.13
  run the reference solutions, then see that doing nothing scores 0:
    python -m producers.swe_smith --dataset rows.jsonl --items all
    python -m producers.swe_smith --dataset rows.jsonl --items all --agent nop

exit codes: 0 all rows made | 1 fewer than --count, or the sandbox failed | 2 wrong flag or
  package | 3 this machine cannot isolate slots | 130 interrupted (rows made so far are kept)
"""


def build_parser() -> argparse.ArgumentParser:
    """The parser of `python -m producers.make_bugs`."""
    parser = argparse.ArgumentParser(
        prog="python -m producers.make_bugs",
        description="Make software-engineering tasks from a package on the index: small bugs that "
        "its own tests detect. All code of the package runs in sandboxes.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_package(parser.add_argument_group("the package"))
    _add_rows(parser.add_argument_group("the rows"))
    return parser


def _add_package(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--package",
        required=True,
        metavar="NAME==VERSION",
        help="release whose sdist contains the tests; cannot be pytest or one of its dependencies",
    )
    group.add_argument(
        "--extra-requirement",
        action="append",
        default=[],
        metavar="REQUIREMENT",
        help="requirement of the tests that is not a dependency of the package; may be repeated",
    )
    group.add_argument(
        "--tests",
        action="append",
        default=[],
        metavar="PATH",
        help="test file or directory in the sdist (default: every test_*.py and *_test.py)",
    )
    group.add_argument(
        "--max-tests",
        type=at_least(2),
        metavar="N",
        help="refuse a package with more tests, because every row lists their ids",
    )
    group.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="X.Y[,X.Y]",
        help="also validate on these Pythons; only tests that behave the same on all of them "
        "are used",
    )


def _add_rows(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--count", type=at_least(1), default=5, metavar="N", help="rows to make (default: 5)"
    )
    group.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="PATH",
        help="JSON lines file to append to; rows in it are not made again",
    )
    group.add_argument(
        "--seed",
        default="0",
        help="seed of the random choice of bugs; the same seed makes the same rows (default: 0)",
    )
    group.add_argument(
        "--per-function",
        type=at_least(1),
        default=1,
        metavar="N",
        help="largest number of bugs per function (default: 1)",
    )
    group.add_argument("--quiet", action="store_true", help="do not show progress")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code (see `hermes_queue.errors`).

    Raises:
        SystemExit: for `--help` and for flags that cannot be parsed (exit code 2).
    """
    arguments = build_parser().parse_args(argv)
    return run_command(
        lambda: asyncio.run(_make(arguments)),
        interrupted=f"interrupted; rows made so far are in {arguments.out}",
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


async def _make(arguments: argparse.Namespace) -> int:
    from envs.swe.bugs.bench import open_bench
    from envs.swe.bugs.package import parse_pin, survey

    name, version = parse_pin(arguments.package)
    pythons = pythons_of(arguments.python)
    with _Out(arguments.out) as out, _Progress(arguments) as progress:
        backend = make_backend(SandboxSettings().backend, slots=len(pythons) + 1)
        await backend.start()
        try:
            await _check_pythons(backend, pythons)
            progress.say(f"asking the package index about {name}=={version}")
            package = await survey(backend, name, version, arguments.extra_requirement)
            if not package.permissive:
                licence = f"the licence is {package.license!r}"
                progress.say(f"note: {licence}; check that you may use the package")
            progress.say(f"running the tests of the clean package on {len(pythons)} Python(s)")
            async with open_bench(backend, package, pythons, arguments.tests) as bench:
                made = await _try_bugs(bench, arguments, out, progress)
        finally:
            await backend.stop()
    if made < arguments.count:
        return fail(
            f"made {made} of {arguments.count} rows; the tests of {name} detect too few bugs: "
            "add --tests, change --seed or raise --per-function",
            EXIT_FAILED,
        )
    return 0


async def _check_pythons(backend: SandboxBackend, pythons: Sequence[str | None]) -> None:
    for python in pythons:
        try:
            await backend.prepare(SlotSpec(python=python))
        except EnvInfraError as error:
            raise InputError(f"--python: {error}") from error


async def _try_bugs(
    bench: Bench, arguments: argparse.Namespace, out: _Out, progress: _Progress
) -> int:
    from envs.swe.bugs.sites import Draw
    from envs.swe.bugs.validate import UnsuitableBug, check

    await bench.measure(max_tests=arguments.max_tests)
    found = await bench.find_candidates()
    source = bench.package.source
    progress.say(
        f"{len(bench.reference.passing)} tests pass in {bench.reference.seconds:.1f} s, "
        f"{bench.reference.failing} fail and are not used; {len(found)} places for a bug"
    )
    seed = f"{arguments.seed}:{source.name}=={source.version}"
    draw = Draw(found, seed, per_function=arguments.per_function)
    out.note(draw, source.sha256)
    made = tries = 0
    for candidate in draw:
        if made == arguments.count or tries == TRIES_PER_ROW * arguments.count:
            break
        tries += 1
        progress.show(made, candidate.site.kind)
        try:
            row = await check(bench, candidate)
        except UnsuitableBug as reason:
            progress.refused(str(reason))
            continue
        except SlotLost:
            progress.refused("killed the sandbox")
            continue
        draw.use(candidate.site.kind, candidate.place)
        if out.write(row):
            made += 1
            progress.made(made, row)
    progress.end(made, tries)
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
                row = json.loads(line)
                self._place(row)
            except (ValueError, KeyError, TypeError, IndexError) as error:
                self._file.close()
                raise InputError(
                    f"--out: line {number} of {self._path} was not written by this program "
                    f"({error}); choose another file"
                ) from error
            self._rows.append(row)
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


class _Progress:
    """Progress on stderr."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        from rich.console import Console

        self._console = Console(stderr=True, quiet=arguments.quiet, highlight=False)
        self._total = arguments.count
        self._reasons: Counter[str] = Counter()
        self._status = self._console.status("starting")

    def __enter__(self) -> _Progress:
        if self._console.is_terminal:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def show(self, made: int, kind: str) -> None:
        refused = sum(self._reasons.values())
        self._status.update(f"{made}/{self._total} rows, {refused} refused, trying {kind}")

    def refused(self, reason: str) -> None:
        self._reasons[reason] += 1

    def made(self, number: int, row: dict[str, Any]) -> None:
        self.say(
            f"{number}/{self._total}  {row['instance_id']}  "
            f"{len(row['FAIL_TO_PASS'])} fail, {len(row['PASS_TO_PASS'])} pass"
        )

    def end(self, made: int, tries: int) -> None:
        reasons = ", ".join(f"{count} {reason}" for reason, count in self._reasons.most_common())
        self.say(f"{made} rows from {tries} tries" + (f"; refused: {reasons}" if reasons else ""))


if __name__ == "__main__":
    sys.exit(main())
