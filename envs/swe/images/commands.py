"""The test command of a dataset, as the settings with which this env runs the tests itself."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from envs.swe.images.source import Runner

MAX_CHARACTERS = 20_000
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_PROGRAMS: Mapping[str, Runner] = {
    "pytest": "pytest",
    "py.test": "pytest",
    "unittest": "unittest",
    "tornado_unittest_runner.py": "unittest",
    "runtests.py": "django",
    "bin/test": "sympy",
}
"""End of the path of a program, or the module of `python -m`."""
_PREPARATION = frozenset(("cd", "source", ".", "conda", "set", "true", ":"))
"""Commands before the tests that select the environment, which this env does in its own way."""
_WITH_VALUE = frozenset(
    "-p -W -o -k -m -c -r -n --override-ini --tb --color --maxfail --durations --rootdir "
    "--numprocesses --timeout --pythonwarnings".split()
)
_OURS = re.compile(
    r"-[rnqvxs]|-r\w+|-n\w+|-[qvx]+|--(tb|color|maxfail|durations|numprocesses|exitfirst|verbose|quiet"
    r"|no-header|disable-warnings|capture|rootdir|collect-only|co|lf|ff|last-failed|failed-first"
    r"|cov[\w-]*|no-cov|junit[\w-]*|json-report[\w-]*|report-log)(=.*)?"
)
"""Options about output, order and extent."""


@dataclass(frozen=True, slots=True)
class TestCommand:
    """What a command line says beside which tests to run."""

    __test__ = False

    runner: Runner
    env: dict[str, str]
    arguments: tuple[str, ...]
    """Of pytest."""


def parse_command(text: str) -> TestCommand:
    """Read a command line, or a short script, that calls a program of tests once.

    Raises:
        ValueError: it runs something else.
    """
    env: dict[str, str] = {}
    found: TestCommand | None = None
    for words in _commands(text):
        if words[0] == "export":
            env |= _assignments(words[1:])
            continue
        count = next((at for at, word in enumerate(words) if not _ASSIGNMENT.match(word)), None)
        if count is None or words[count] in _PREPARATION:
            continue
        if found is not None:
            raise ValueError(f"{text.strip()[:200]!r} runs several programs")
        own = env | _assignments(words[:count])
        found = _call(words[count:], own, text)
    if found is None:
        raise ValueError(f"{text.strip()[:200]!r} runs no tests")
    return found


def _commands(text: str) -> list[list[str]]:
    """The simple commands of a script."""
    if len(text) > MAX_CHARACTERS:
        raise ValueError("the test command is too long")
    commands: list[list[str]] = [[]]
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|<>()")
        lexer.whitespace_split, lexer.commenters = True, "#"
        for word in lexer:
            if word in (";", "&&"):
                commands.append([])
            elif set(word) <= set(";&|<>()"):
                raise ValueError(f"{line.strip()[:200]!r} is more than a call of the tests")
            else:
                commands[-1].append(word)
        commands.append([])
    return [words for words in commands if words]


def _assignments(words: list[str]) -> dict[str, str]:
    pairs = (word.partition("=") for word in words)
    return {name: value for name, _, value in pairs if name != "PATH"}


def _call(words: list[str], env: dict[str, str], text: str) -> TestCommand:
    """The call of a program; adds to `env` what Python's own options say."""
    program, rest = words[0], words[1:]
    if re.fullmatch(r"(.*/)?python[0-9.]*", program):
        while rest and rest[0] in ("-W", "-X", "-B", "-u"):
            if rest[0] == "-W" and len(rest) > 1:
                env["PYTHONWARNINGS"] = ",".join(filter(None, [env.get("PYTHONWARNINGS"), rest[1]]))
            rest = rest[2 if rest[0] in ("-W", "-X") else 1 :]
        if rest[:1] == ["-m"]:
            program, rest = "".join(rest[1:2]), rest[2:]
        else:
            program, rest = "".join(rest[:1]), rest[1:]
    ends = [end for end in _PROGRAMS if f"/{program}".endswith(f"/{end}")]
    known = _PROGRAMS[ends[0]] if ends else None
    if known is None:
        raise ValueError(
            f"{text.strip()[:200]!r} does not run tests of pytest, unittest, Django or SymPy"
        )
    if known == "sympy":
        env["SYMPY_USE_CACHE"] = "no" if "-C" in rest else "yes"
    return TestCommand(known, env, tuple(_arguments(rest)) if known == "pytest" else ())


def _arguments(rest: list[str]) -> list[str]:
    """The arguments of pytest that count."""
    kept: list[str] = []
    while rest:
        option, *rest = rest
        value = [rest.pop(0)] if option in _WITH_VALUE and rest else []
        if option.startswith("-") and option != "--" and not _OURS.fullmatch(option):
            kept += [option, *value]
    return kept
