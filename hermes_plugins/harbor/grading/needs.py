"""What a verifier's scripts fetch while they grade, as far as their text says it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_CONTINUED = re.compile(r"\\\n\s*")
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*$", re.MULTILINE)
_UV = re.compile(r"astral\.sh/uv|(?:^|[\s;&|(/])uvx?(?=\s)", re.MULTILINE)
_URL = re.compile(r"\b(?:https?|ftp|git)://(?!localhost|127\.|0\.0\.0\.0|\[::1\])[^\s'\"()<>|;]+")
_FETCHES = re.compile(r"\b(?:curl|wget|git\s+clone|pip3?\s+install\s+git\+|npm\s+(?:i|install))\b")
_UV_SOURCES = ("astral.sh/uv", "github.com/astral-sh/uv")
_SPLIT = re.compile(r"&&|\|\||[;\n|]")
_REQUIREMENT = re.compile(
    r"[A-Za-z0-9][\w.-]*(?:\[[\w,.-]+\])?(?:(?:[=<>~!]=?|===)[\w.,*+!=<>~-]+)?"
)
_WITH_VALUE = frozenset(
    "-p --python -i --index-url --extra-index-url --index --default-index --find-links -f -t "
    "--target --prefix --root --cache-dir --project --directory -c --constraint --timeout".split()
)
_HARMLESS_APT = frozenset("curl wget ca-certificates".split())
MAX_REQUIREMENTS = 200
_ENVIRONMENT = frozenset(".venv .python-version .python-versions uv.toml".split())
_PROJECT = _ENVIRONMENT | frozenset("pyproject.toml uv.lock".split())
_NODE = frozenset(
    ".bin .npmrc .yarnrc .yarnrc.yml .yarn .pnpmfile.cjs .pnp.cjs .pnp.loader.mjs "
    "pnpm-workspace.yaml bunfig.toml".split()
)
_BEFORE = r"[;&|({\"'`!]|\b(?:exec|sudo|env|then|do|else|if|time|nohup)\s|=\S*\s"
"""What stands before a program's name, in shell or in a list of another language."""
_STEERED_BY: tuple[tuple[re.Pattern[str], frozenset[str]], ...] = tuple(
    (re.compile(rf"(?m)(?:^|{_BEFORE})[ \t]*(?:[\w./~$-]*/)?(?:{program})(?=[\s\"',;)]|$)"), names)
    for program, names in (
        ("uvx?", _ENVIRONMENT),
        (r"uv[\"',\s]+(?:-\S+\s+)*(?:run|add|init|sync|venv|lock|remove|export|build)", _PROJECT),
        ("npm|npx|pnpm|pnpx|yarn|corepack|bunx?", _NODE),
        ("tox", frozenset("tox.ini tox.toml pyproject.toml setup.cfg .tox".split())),
        ("nox", frozenset("noxfile.py .nox".split())),
        (
            "poetry|pdm|hatch|pipenv|rye|pixi",
            _PROJECT
            | frozenset(
                "poetry.lock poetry.toml pdm.lock pdm.toml .pdm-python hatch.toml Pipfile "
                "Pipfile.lock pixi.toml pixi.lock .pixi".split()
            ),
        ),
        (
            "direnv|mise|asdf|pyenv",
            frozenset(".envrc .env .tool-versions mise.toml .mise.toml .python-version".split()),
        ),
    )
)
"""Tools that take programs and settings from the project in which they start, and from which of
its files. It is a property of each tool, which no image can tell."""
_VENV = re.compile(r"\b(?:uv|python[\d.]*\s+-m)\s+(?:virtual)?venv((?:[ \t]+[^\s;&|]+)+)")


@dataclass(frozen=True, slots=True)
class Needs:
    """What the verifier of a task fetches."""

    uv: bool = False
    packages: tuple[str, ...] = ()
    """Requirements for pip."""
    installed: tuple[str, ...] = ()
    """Those that are installed where Python packages of the box may be, too."""
    added: tuple[str, ...] = ()
    """Those that `uv add` makes a part of a project."""
    other: tuple[str, ...] = ()
    """Anything else, as people would look for it in the scripts."""

    @property
    def kit(self) -> bool:
        """Whether a kit of uv and packages could serve it."""
        return self.uv or bool(self.packages)


def needs_of(scripts: str, tests: Sequence[Path] = ()) -> Needs:
    """What shell scripts fetch; their requirements files are in a folder of `tests`."""
    text = _COMMENT.sub("", _CONTINUED.sub(" ", scripts))
    packages: dict[str, None] = {}
    installed: dict[str, None] = {}
    added: dict[str, None] = {}
    other: dict[str, None] = {}
    for line in _SPLIT.split(text):
        words = _words(line)
        own = dict.fromkeys(
            each for at in _installs(words) for each in _installed(words[at:], tests)
        )
        installed.update(own)
        if "uv" in words and "add" in words:
            added.update(own)
        packages.update({**dict.fromkeys(_tools(words)), **own})
        other.update(dict.fromkeys(_other(line, words)))
    uv = _UV.search(text) is not None
    if uv and not any(re.match(r"pytest\b(?!-)", each) for each in packages):
        packages["pytest"] = None
    return Needs(uv, _most(packages), _most(installed), _most(added), tuple(other))


def project_files(text: str) -> frozenset[str]:
    """Names of files by which a project steers the tools that tests with this text start."""
    found = {name for program, names in _STEERED_BY if program.search(text) for name in names}
    for words in _VENV.findall(text):  # which the tests make anew, where an agent may have put one
        last = words.split()[-1].rstrip("/").rpartition("/")[2]
        if last and not last.startswith("-") and not last[0].isdigit():
            found.add(last.strip("\"'"))
    return frozenset(found)


def _most(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(names)[:MAX_REQUIREMENTS])


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()


def _tools(words: list[str]) -> Iterator[str]:
    """Packages in an environment that uv makes for a command."""
    if "uvx" in words or ("uv" in words and {"run", "tool"} & set(words)):
        yield from _with(words)


def _with(words: list[str]) -> Iterator[str]:
    """Packages of `uvx -w X --with Y --from Z` and `uvx tool@version`."""
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in ("--with", "--from") and equals:
            yield from _requirements(value)
        elif word in ("-w", "--with", "--from") and index + 1 < len(words):
            yield from _requirements(words[index + 1])
        elif re.fullmatch(r"[\w.-]+@[\d.]+", word):
            yield word.replace("@", "==")


def _installs(words: list[str]) -> Iterator[int]:
    """Positions after `pip install`, `uv pip install`, `uv add`."""
    for index, word in enumerate(words[:-1]):
        program = word.rpartition("/")[2]
        following = words[index + 1]
        if re.fullmatch(r"pip[\d.]*", program) and following == "install":
            yield index + 2
        elif program == "uv" and following == "add":
            yield index + 2


def _installed(words: list[str], tests: Sequence[Path]) -> Iterator[str]:
    skip, listed = False, False
    for word in words:
        if skip:
            skip = False
        elif listed:
            listed = False
            yield from _from_file(word, tests)
        elif word in ("-r", "--requirement"):
            listed = True
        elif word.startswith("-"):
            skip = word in _WITH_VALUE
        else:
            yield from _requirements(word)


def _from_file(word: str, tests: Sequence[Path]) -> Iterator[str]:
    places = [] if ".." in word else [each / word.removeprefix("/tests/") for each in tests]
    for file in [place for place in places if place.is_file()][-1:]:
        for line in file.read_text(errors="replace").splitlines()[:MAX_REQUIREMENTS]:
            yield from _requirements(line.partition("#")[0].partition(";")[0].strip())


def _requirements(text: str) -> Iterator[str]:
    for each in text.split(","):
        if _REQUIREMENT.fullmatch(each.strip()):
            yield each.strip()


def _other(line: str, words: list[str]) -> Iterator[str]:
    for url in _URL.findall(line):
        if _FETCHES.search(line) and not any(source in url for source in _UV_SOURCES):
            yield url
    for index, word in enumerate(words[:-1]):
        if word in ("apt-get", "apt", "apk", "yum", "dnf"):
            after = words[index + 1 :]
            if {"install", "add"} & set(after):
                wanted = [each for each in after if not each.startswith("-")]
                for name in wanted:
                    if name not in _HARMLESS_APT | {"install", "add", "update"}:
                        yield f"{word} install {name}"
