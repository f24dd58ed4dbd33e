"""Whether a record holds a text, anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def holds_all(raw: Mapping[str, Any], texts: Sequence[str]) -> bool:
    """Whether each of `texts` is part of some text of the record, in the same case.

    Keys are no texts. Never raises.
    """
    missing = set(texts)
    for found in _texts(raw):
        missing = {text for text in missing if text not in found}
        if not missing:
            return True
    return not missing


def _texts(raw: Mapping[str, Any]) -> Iterator[str]:
    """All texts, without recursion: a record may be nested as deep as its parser takes it."""
    waiting: list[Any] = [raw]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, list | tuple):
            waiting.extend(each for each in value if isinstance(each, str | dict | list | tuple))
