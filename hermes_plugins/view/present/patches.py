"""The patch of a trajectory: a unified diff by file, in git's format or the plain one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from hermes_plugins.view.present.shapes import mapping, whole
from hermes_plugins.view.present.texts import text_of
from hermes_queue.terminal.escapes import label

PATCH_BYTES = 1 << 20
"""Most of a patch that is shown by file; the record as a file has all of it."""
FILES_MOST = 500
LINES_MOST = 20_000
LINE_BYTES = 2000
_PATH_MOST = 500

_TEST = re.compile(
    r"(?:^|/)(?:tests?|testing|spec)/|(?:^|/)(?:test_[^/]*|conftest\.py)$|[._-](?:test|spec)\.\w+$"
    r"|_test\.\w+$"
)
_UNTOLD = ("index ", "old mode", "new mode", "similarity", "dissimilarity")
_HUNK = re.compile(r"@@ -\d+(?:,(\d{1,9}))? \+\d+(?:,(\d{1,9}))? @@")
_QUOTED = re.compile(r"\\([0-7]{1,3}|.)")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}


def patch(raw: Mapping[Any, Any]) -> dict[str, Any]:
    """The patch in a report, file by file.

    Keys: `files`, each with `path`, `old_path` (None unless it moved), `kind` (`added`, `removed`,
    `changed`, `renamed` or `binary`), `test` (whether it looks like a test), `added` and `removed`
    (lines), `hunks` of `header` and `lines` (pairs of a sign and a text); `text`, what of it is no
    diff, as a text, or None; `bytes`, of the whole patch as the env counted it; `cut`, whether the
    record or this answer has it only in part.
    """
    given, size = patch_text(raw)
    text = given if isinstance(given, str) else ""
    part = text[:PATCH_BYTES]
    reader = _Reader()
    for line in lines_of(part):
        if not reader.take(line):
            break
    odd = "\n".join(reader.other) if isinstance(given, str) else given
    return {
        "files": [file for file in reader.files if file["path"] or file["hunks"]],
        "text": text_of(odd, 64 << 10) if odd else None,
        "bytes": size,
        "cut": reader.full or size > _size(part),
    }


def patch_text(raw: Mapping[Any, Any]) -> tuple[object, int]:
    """What the report has as its patch, and the size of the whole patch in bytes."""
    report = mapping(raw.get("report"))
    given = report.get("patch")
    own = _size(given) if isinstance(given, str) else 0
    return given, max(own, whole(report.get("patch_bytes")) or 0)


def files_of(raw: Mapping[Any, Any]) -> list[str]:
    """Paths that the patch touches, in its order."""
    return [file["path"] for file in patch(raw)["files"]]


def looks_like_test(path: str) -> bool:
    """Whether a path is named as tests are."""
    return bool(_TEST.search(path))


class _Reader:
    """Reads a diff line by line. What is not a diff is kept in `other`."""

    def __init__(self) -> None:
        self.files: list[dict[str, Any]] = []
        self.other: list[str] = []
        self.full = False
        """Whether something had to be left out."""
        self._left = [0, 0]
        """Lines of the old and the new file that the hunk still has."""
        self._taken = 0

    def take(self, line: str) -> bool:
        """Read one line; False if no more can be taken."""
        self._taken += 1
        if self._taken > LINES_MOST or len(self.files) > FILES_MOST:
            self.full = True
            return False
        if max(self._left) > 0 and line[:1] in ("+", "-", " ", "\\", ""):
            self._line(line)
        elif line.startswith("diff --git "):
            self._begin(*_paths(line.removeprefix("diff --git ")))
        elif (found := _HUNK.match(line)) and self.files:
            self._left = [int(count) if count else 1 for count in found.groups()]
            hunk = {"header": label(line, 300), "lines": []}
            self.files[-1]["hunks"].append(hunk)
        elif line.startswith("\\") and self.files and self.files[-1]["hunks"]:
            self.files[-1]["hunks"][-1]["lines"].append(["\\", text_of(line, LINE_BYTES)])
        elif not self._header(line) and line:
            self.other.append(line)
        return True

    def _line(self, line: str) -> None:
        mark = line[:1] or " "
        file = self.files[-1]
        if mark in "- ":
            self._left[0] -= 1
        if mark in "+ ":
            self._left[1] -= 1
        if mark in "+-":
            file["added" if mark == "+" else "removed"] += 1
        file["hunks"][-1]["lines"].append([mark, text_of(line[1:], LINE_BYTES)])

    def _begin(self, old: str, new: str) -> None:
        self._left = [0, 0]
        self.files.append(
            {
                "path": new,
                "old_path": old if old != new else None,
                "kind": "renamed" if old != new else "changed",
                "test": looks_like_test(new) or looks_like_test(old),
                "added": 0,
                "removed": 0,
                "hunks": [],
            }
        )

    def _header(self, line: str) -> bool:
        """Read a line between the name of a file and its hunks."""
        word = line.partition(" ")[0]
        if word == "---" and (not self.files or self.files[-1]["hunks"]):
            self._begin("", "")  # the plain format has no other beginning
        file = self.files[-1] if self.files else None
        if file is None or file["hunks"]:
            return False
        if word in ("---", "+++"):
            self._named(file, word, _path(line[4:].partition("\t")[0]))
        elif line.startswith(("new file", "deleted file")):
            file["kind"] = "added" if word == "new" else "removed"
        elif line.startswith(("Binary files ", "GIT binary patch")):
            file["kind"] = "binary"
        elif line.startswith(("rename from ", "copy from ")):
            file["old_path"] = _path(line.split(" ", 2)[2], bare=True)
            file["kind"] = "renamed"
        elif line.startswith(("rename to ", "copy to ")):
            file["path"] = _path(line.split(" ", 2)[2], bare=True)
        else:
            return line.startswith(_UNTOLD)
        file["test"] = looks_like_test(file["path"]) or looks_like_test(file["old_path"] or "")
        return True

    def _named(self, file: dict[str, Any], word: str, path: str) -> None:
        if path == "/dev/null":
            file["kind"] = "added" if word == "---" else "removed"
        elif word == "+++" or not file["path"]:
            file["path"] = path
        if file["kind"] != "renamed":
            file["old_path"] = None


def lines_of(text: str) -> Iterator[str]:
    """Lines as git has them: only a line feed ends one."""
    at = 0
    while at < len(text):
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        yield text[at:end]
        at = end + 1


def _paths(names: str) -> tuple[str, str]:
    """Both paths of `diff --git a/OLD b/NEW`, as far as spaces in them leave no doubt."""
    if names.startswith('"'):
        old, _, new = names[1:].partition('" ')
        return _path(f'"{old}"'), _path(new)
    if names.endswith('"') and ' "' in names:
        old, _, new = names.partition(' "')
        return _path(old), _path(f'"{new}')
    middle = len(names) // 2
    if names[middle : middle + 1] == " " and names[2:middle] == names[middle + 3 :]:
        return _path(names[:middle]), _path(names[middle + 1 :])
    old, _, new = names.rpartition(" b/")
    return (_path(old), label(new, _PATH_MOST)) if old else ("", _path(names))


def _path(name: str, *, bare: bool = False) -> str:
    """A path as the diff has it, without quotes and `a/` or `b/`."""
    if len(name) > 1 and name[0] == name[-1] == '"':
        name = _QUOTED.sub(_unquoted, name[1 : min(len(name) - 1, 8 * _PATH_MOST)])
        name = name.encode("latin-1", "replace").decode(errors="replace")
    if not bare and name[:2] in ("a/", "b/"):
        name = name[2:]
    return label(name, _PATH_MOST)


def _unquoted(found: re.Match[str]) -> str:
    code = found[1]
    if code[0] in "01234567":
        return chr(int(code, 8) & 0xFF)
    return _ESCAPES.get(code, code)


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
