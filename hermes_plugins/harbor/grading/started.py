"""Where tests start programs, as far as their text says it: folders, and Python environments."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping

_ASSIGNED = re.compile(r"(?m)^[ \t]*(?:export[ \t]+)?(\w+)=[\"']?([^\s\"';&|$`]+)")
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_WORD = r"[\"']?(~?[\w./${}-]+)"
_ENTERED = re.compile(
    rf"(?:\b(?:cd|pushd)[ \t]+(?:--[ \t]+)?|\b(?:chdir|cwd)\s*[=(]\s*|\bPYTHONPATH=|"
    rf"\bsys\.path\.(?:insert\(\s*\d+\s*,|append\()\s*){_WORD}"
)
_ENVIRONMENT = re.compile(
    rf"(?:^|(?<=[\s\"'=(;&|])){_WORD}/bin/(?:activate\b|python|pip|py\.?test\b)", re.MULTILINE
)


def folders_entered(text: str, workdir: str, variables: Mapping[str, str]) -> tuple[str, ...]:
    """Folders in which tests with this text start programs, or from which they import modules.

    `variables`: those of the image. A folder that is named by the one entered before it is looked
    for there and in the work directory.
    """
    found: dict[str, None] = {}
    before = workdir
    for name in _named(_ENTERED, text, variables):
        for start in (workdir, before):
            found[posixpath.normpath(posixpath.join(start, name))] = None
        before = posixpath.normpath(posixpath.join(before, name))
    return tuple(each for each in found if each not in ("/", workdir))


def environments(text: str, workdir: str, variables: Mapping[str, str]) -> tuple[str, ...]:
    """Folders of Python environments whose programs the tests name, or which they activate."""
    names = _named(_ENVIRONMENT, text, variables)
    found = (posixpath.normpath(posixpath.join(workdir, name)) for name in names)
    return tuple(dict.fromkeys(each for each in found if each != "/"))


def _named(pattern: re.Pattern[str], text: str, variables: Mapping[str, str]) -> Iterator[str]:
    """The paths that a pattern finds, without those of unknown variables."""
    known = {"HOME": "/root", **variables, **dict(_ASSIGNED.findall(text))}
    for path in pattern.findall(text):
        path = re.sub(r"^~(?=/|$)", known["HOME"], path)
        path = _VARIABLE.sub(lambda match: known.get(match[1] or match[2], match[0]), path)
        if "$" not in path and "{" not in path:
            yield path
