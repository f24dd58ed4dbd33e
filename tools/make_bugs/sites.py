"""Selection of the bugs to try: on lines that the suite runs, all kinds in turn."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from envs.swe.item import SuiteRuntime
from tools.make_bugs.mutators import Site, find_sites

COVERAGE_FILE = ".coverage.json"
_COVERAGE = ("coverage==7.10.7", "pytest-cov==7.0.0")
_NO_SOURCE = re.compile(
    r"(^|/)(tests?|testing|specs?|docs?|examples?|bench(marks?)?|tools?|scripts?)/"
    r"|(^|/)(test_[^/]*|[^/]*_test|tests?|conftest|setup|noxfile|__main__|_?version)\.py$"
)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A bug to try."""

    file: str
    site: Site

    @property
    def place(self) -> tuple[str, str]:
        """File and function of the bug."""
        return self.file, self.site.function


def with_coverage(runtime: SuiteRuntime) -> SuiteRuntime:
    """The same runtime, with recording of the lines that run. No row uses its environment."""
    arguments = ("--cov=.", f"--cov-report=json:{COVERAGE_FILE}", "--cov-config=/dev/null")
    return runtime.model_copy(
        update={
            "requirements": (*runtime.requirements, *_COVERAGE),
            "pytest_args": (*runtime.pytest_args, *arguments),
            "env": {**runtime.env, "COVERAGE_FILE": "/tmp/.coverage"},  # noqa: S108 - the slot's
        }
    )


def covered_lines(report: bytes) -> dict[str, frozenset[int]]:
    """Lines that ran, by file of the package, without tests and the like.

    Raises:
        ValueError: the report is not a JSON coverage report.
    """
    try:
        files = json.loads(report)["files"]
        lines = {path: frozenset(data["executed_lines"]) for path, data in files.items()}
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError("not a coverage report") from error
    return {path: ran for path, ran in lines.items() if ran and not _NO_SOURCE.search(path)}


def candidates(
    sources: Mapping[str, bytes], lines: Mapping[str, frozenset[int]]
) -> list[Candidate]:
    """Every site in these files on a line that ran. Files that cannot be parsed have none."""
    found = []
    for file in sorted(sources):
        try:
            sites = find_sites(sources[file])
        except (SyntaxError, ValueError):
            continue
        ran = lines.get(file, frozenset())
        found += [Candidate(file, site) for site in sites if not ran.isdisjoint(site.lines)]
    return found


class Draw:
    """Hands out candidates: least used kinds first, a bounded number per function."""

    def __init__(self, found: Collection[Candidate], seed: str, *, per_function: int = 1) -> None:
        order = sorted(found, key=lambda c: (c.file, c.site.edits[0].start, c.site.kind))
        chance = random.Random(seed)  # noqa: S311 - reproducible on purpose
        chance.shuffle(order)
        self._by_kind: dict[str, list[Candidate]] = {}
        for candidate in order:
            self._by_kind.setdefault(candidate.site.kind, []).append(candidate)
        self._turn = list(self._by_kind)
        chance.shuffle(self._turn)
        self._per_function = per_function
        self._functions: Counter[tuple[str, str]] = Counter()
        self._kinds: Counter[str] = Counter()

    def use(self, kind: str, place: tuple[str, str]) -> None:
        """Count a bug of this kind in this function."""
        self._kinds[kind] += 1
        self._functions[place] += 1

    def __iter__(self) -> Iterator[Candidate]:
        """Yield candidates until none are left. A kind that was drawn in vain goes to the back."""
        while self._turn:
            kind = min(self._turn, key=lambda name: self._kinds[name])
            self._turn.remove(kind)
            waiting = self._by_kind[kind]
            while waiting:
                candidate = waiting.pop()
                if self._functions[candidate.place] < self._per_function:
                    self._turn.append(kind)
                    yield candidate
                    break
