"""Token ids as text, with the `tokenizer.json` of the model. Nothing is ever downloaded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hermes_queue.errors import ConfigurationError
from hermes_queue.terminal.escapes import visible

TOGETHER_MOST = 12
"""Ids that may share one character: it has at most four bytes, and some tokens have less than one
character of the normalised text."""
DECODED_MOST = 1 << 20
"""Ids of one sequence that are decoded."""


class Decoder:
    """A tokenizer from a file. Needs the package `tokenizers`, which is imported here.

    Raises:
        ConfigurationError: the package is not installed, or the file is no tokenizer.
    """

    def __init__(self, path: Path) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise ConfigurationError(
                "texts of token ids need the package tokenizers: pip install tokenizers"
            ) from error
        try:
            self._tokenizer: Any = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing more special
            raise ConfigurationError(f"{path}: is no tokenizer file: {error}") from error

    def pieces(self, ids: Sequence[int]) -> list[tuple[str, int]]:
        """The text of a sequence in pieces: text and number of ids.

        The sequence is decoded as a whole, so that ids which share a character are one piece.
        Characters that would deceive are visible signs; an id that the tokenizer does not know is
        `⟨id 7⟩`.
        """
        return [(visible(text), count) for text, count in self._pieces(ids[:DECODED_MOST])]

    def _pieces(self, ids: Sequence[int]) -> Iterator[tuple[str, int]]:
        context: list[int] = []
        """Ids of the last piece: the text of a token depends on what stands before it."""
        waiting: list[int] = []
        for number in ids:
            if not self._knows(number):
                if waiting:
                    yield self._text(context, waiting), len(waiting)
                yield f"⟨id {number}⟩", 1
                context, waiting = [], []
                continue
            waiting.append(number)
            text = self._text(context, waiting)
            if not text.endswith("\ufffd") or len(waiting) >= TOGETHER_MOST:
                yield text, len(waiting)
                context, waiting = waiting, []
        if waiting:
            yield self._text(context, waiting), len(waiting)

    def _text(self, context: list[int], ids: list[int]) -> str:
        """What `ids` add behind `context`."""
        before = self._decoded(context)
        both = self._decoded(context + ids)
        return both[len(before) :] if both.startswith(before) else self._decoded(ids)

    def _decoded(self, ids: list[int]) -> str:
        if not ids:
            return ""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False)
        return text

    def _knows(self, number: int) -> bool:
        return 0 <= number < 1 << 31 and self._tokenizer.id_to_token(number) is not None
