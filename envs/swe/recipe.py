"""A bug as byte edits: rows hold them in place of a patch, so that they quote no package.

The JSON format, under the row's key `mutation`:

    {"files": [{"file": "src/pkg/core.py",
                "sha256_before": "<hex>", "sha256_after": "<hex>",
                "edits": [{"start": 120, "end": 124, "text": "<=",
                           "kind": "cmp_edge", "function": "clamp", "line": 7}]}]}

`start` and `end` are byte offsets into the file *before* any edit (`end` excluded; `start ==
end` inserts); `text` replaces that span, in UTF-8. `"copy_from": [a, b]` instead of `text`
inserts the bytes a..b of the file before any edit: two edits that copy each other's span swap
them without quoting them. Edits of a file are in ascending order and do not overlap. Both
digests are of the whole file. The bug's tree is the clean tree with these files replaced and
nothing else changed.
"""

from __future__ import annotations

import hashlib
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from envs.swe.paths import RelativePath

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class RecipeMismatch(ValueError):
    """The recipe was made for another file content."""


class Edit(BaseModel):
    """One span of bytes and its replacement. The last three fields are only descriptive."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    start: int = Field(ge=0)
    end: int = Field(ge=0)
    text: str = ""
    copy_from: tuple[int, int] | None = None
    """A span of the file before any edit, whose bytes replace this one instead of `text`."""
    kind: str = ""
    """Kind of mutation, e.g. "cmp_edge"."""
    function: str = ""
    """Qualified name of the enclosing function; empty at module level."""
    line: int = Field(default=0, ge=0)
    """Line of `start`, counted from 1; 0 = not recorded."""


class FileMutation(BaseModel):
    """The edits of one file, and the digests that pin it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: RelativePath
    sha256_before: Sha256
    sha256_after: Sha256
    edits: tuple[Edit, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _ordered(self) -> FileMutation:
        position = 0
        for number, edit in enumerate(self.edits):
            if edit.start < position or edit.end < edit.start:
                raise ValueError(
                    f"edits[{number}] of {self.file!r} overlaps, is reversed or is out of order; "
                    "list the edits by ascending start"
                )
            position = edit.end
        return self

    def apply(self, before: bytes) -> bytes:
        """The file with the bug.

        Raises:
            RecipeMismatch: the digest of `before` or of the result is wrong.
        """
        if _sha256(before) != self.sha256_before:
            raise RecipeMismatch(
                f"mutation: {self.file!r} has sha256 {_sha256(before)}, but sha256_before is "
                f"{self.sha256_before}; make the row again for this source"
            )
        after = splice(before, self.edits)
        if _sha256(after) != self.sha256_after:
            raise RecipeMismatch(
                f"mutation: the edits turn {self.file!r} into sha256 {_sha256(after)}, but "
                f"sha256_after is {self.sha256_after}; the row was altered, make it again"
            )
        return after


class Mutation(BaseModel):
    """The whole bug."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    files: tuple[FileMutation, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _distinct(self) -> Mutation:
        names = [part.file for part in self.files]
        if len(set(names)) != len(names):
            raise ValueError("files names one file twice; put all its edits into one entry")
        return self


def splice(before: bytes, edits: tuple[Edit, ...]) -> bytes:
    """`before` with the spans replaced; digests are not checked."""
    parts, position = [], 0
    for edit in edits:
        text = before[slice(*edit.copy_from)] if edit.copy_from else edit.text.encode()
        parts += [before[position : edit.start], text]
        position = edit.end
    return b"".join([*parts, before[position:]])


def pin(file: str, before: bytes, edits: tuple[Edit, ...]) -> FileMutation:
    """The recipe for `edits` (in ascending order) of a file whose content is `before`."""
    return FileMutation(
        file=file,
        sha256_before=_sha256(before),
        sha256_after=_sha256(splice(before, edits)),
        edits=edits,
    )


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
