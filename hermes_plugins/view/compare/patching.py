"""Patches of samples: which are equal, and one against another."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from hermes_plugins.view.compare.alignment import common
from hermes_plugins.view.present.patches import files_of, lines_of, patch_text
from hermes_plugins.view.present.texts import ShownText, text_of

LINES_MOST = 4000
"""Of each patch, for a comparison of two."""
LINE_BYTES = 2000


def patches(records: Sequence[Mapping[Any, Any]]) -> list[dict[str, Any]]:
    """Per sample: `bytes`, `files`, and `like`, the first sample with the same patch, or None.

    None for a sample without a patch.
    """
    first: dict[bytes, int] = {}
    return [_patch(n, raw, first) for n, raw in enumerate(records)]


def _patch(n: int, raw: Mapping[Any, Any], first: dict[bytes, int]) -> Any:
    text, size = patch_text(raw)
    if not isinstance(text, str):
        return None
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).digest()
    like = first.setdefault(digest, n)
    return {"bytes": size, "files": files_of(raw)[:50], "like": None if like == n else like}


def patch_against(reference: Mapping[Any, Any], other: Mapping[Any, Any]) -> dict[str, Any]:
    """The lines of two patches aligned: `{"lines": [[sign, text], ...], "same", "cut"}`.

    The sign is `=` for a line of both, `-` for one of the reference, `+` for one of the other.
    """
    ours, theirs = _lines(reference), _lines(other)
    cut = max(len(ours), len(theirs)) > LINES_MOST
    ours, theirs = ours[:LINES_MOST], theirs[:LINES_MOST]
    lines: list[tuple[str, ShownText]] = []
    left = right = 0
    for here, there in [*common(ours, theirs), (len(ours), len(theirs))]:
        lines += [("-", _text(line)) for line in ours[left:here]]
        lines += [("+", _text(line)) for line in theirs[right:there]]
        lines += [("=", _text(line)) for line in ours[here : here + 1]]
        left, right = here + 1, there + 1
    return {"lines": lines, "same": ours == theirs and not cut, "cut": cut}


def _lines(raw: Mapping[Any, Any]) -> list[str]:
    text, _ = patch_text(raw)
    if not isinstance(text, str):
        return []
    # What `index` and the numbers of a hunk say follows from the other lines.
    lines = (
        "@@" if line.startswith("@@ ") else line
        for line in lines_of(text)
        if not line.startswith("index ")
    )
    return list(islice(lines, LINES_MOST + 1))


def _text(line: str) -> ShownText:
    return text_of(line, LINE_BYTES)
