"""Words that make a reader decode a sentence stay out of the product's source."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("hermes_queue", "workers", "producers", "envs")
AVOIDED = re.compile(
    r"\b([Tt]old|[Ll]ikewise|[Ss]o (much|many)|[Ww]hat bec(omes|ame) of)\b"
    r"|(?<!there )\bis none\b(?! of these)"
)
"""Name the thing and use a verb of the field instead: reported, released, counted, missing."""
NOT_YET: tuple[str, ...] = ()
"""Folders and files whose sentences are still to be rewritten. Entries may only be removed."""


def avoided_words() -> dict[str, str]:
    """First avoided word of each source file that has one."""
    return {
        path.relative_to(ROOT).as_posix(): match[0]
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if (match := AVOIDED.search(path.read_text(encoding="utf-8")))
    }


def test_sentences_use_the_words_of_the_field() -> None:
    found = avoided_words()
    assert {name: word for name, word in found.items() if not name.startswith(NOT_YET)} == {}


def test_rooms_that_are_done_leave_the_list() -> None:
    found = avoided_words()
    assert [place for place in NOT_YET if not any(name.startswith(place) for name in found)] == []
