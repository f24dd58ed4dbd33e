"""The documentation's pages, taken apart for tests: code blocks, commands, remarks for us.

A remark is an HTML comment on the line above a block, such as `<!-- file: my_env.py -->`; readers
do not see it.
"""

from __future__ import annotations

import functools
import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])

_BLOCK = re.compile(
    r"(?:^ *<!-- (?P<remark>[^\n]*?) -->\n)?"
    r"^(?P<indent> *)```(?P<language>[^\n]*)\n(?P<text>.*?)^(?P=indent)```",
    re.MULTILINE | re.DOTALL,
)
_HERE_DOCUMENT = re.compile(
    r"<<-?\s*['\"]?(\w+)['\"]?(.*?)\n.*?\n\s*\1\s*$", re.MULTILINE | re.DOTALL
)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: Path
    line: int
    language: str
    remark: str
    text: str

    def __str__(self) -> str:
        return f"{page_id(self.page)}:{self.line}"

    def says(self, key: str) -> str | None:
        """The value in the remark `<!-- key: value -->`."""
        name, _, value = self.remark.partition(": ")
        return value if name == key and value else None


def page_id(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(page: Path, *languages: str) -> list[Block]:
    """The page's fenced blocks, in order; only those in `languages` if any are named."""
    return [block for block in _blocks(page) if not languages or block.language in languages]


@functools.cache
def _blocks(page: Path) -> tuple[Block, ...]:
    """All of them, found once per process: many files of tests ask for them."""
    text = page.read_text(encoding="utf-8")
    return tuple(
        Block(
            page,
            text.count("\n", 0, match.start("language")) + 1,
            match["language"].strip(),
            match["remark"] or "",
            textwrap.dedent(match["text"]),
        )
        for match in _BLOCK.finditer(text)
    )


def all_blocks(*languages: str) -> list[Block]:
    return [block for page in PAGES for block in blocks(page, *languages)]


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return _BLOCK.sub("", page.read_text(encoding="utf-8"))


def commands(block: Block) -> Iterator[list[str]]:
    """The words of every simple command of a `sh` block, without variables set before it."""
    text = _HERE_DOCUMENT.sub(r"\2", block.text).replace("\\\n", " ")
    for line in text.splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        words: list[str] = []
        redirected = False
        for word in [*lexer, ";"]:
            if set(word) <= set("<>") or word == ">&":
                redirected = True
            elif word and set(word) <= set("|&;"):
                while words and _ASSIGNMENT.match(words[0]):
                    words.pop(0)
                if words:
                    yield words
                words, redirected = [], False
            elif redirected:
                redirected = False  # the file's name
            else:
                words.append(word)
