"""What a command line cannot carry."""

from __future__ import annotations


def is_no_argument(text: str) -> bool:
    """Whether the text cannot be passed as an argument: it has a NUL or invalid Unicode."""
    return "\0" in text or (not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text))
