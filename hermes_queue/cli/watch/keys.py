"""Keys of a terminal by name, while something is drawn."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

QUIT = frozenset({"q", "Q", "\x03", "gone"})
_SEQUENCES = {
    "\x1b[A": "up",
    "\x1bOA": "up",
    "\x1b[B": "down",
    "\x1bOB": "down",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b[H": "home",
    "\x1bOH": "home",
    "\x1b[1~": "home",
    "\x1b[F": "end",
    "\x1bOF": "end",
    "\x1b[4~": "end",
    "\x1b[Z": "back",
    "\t": "next",
    "k": "up",
    "j": "down",
    "b": "page up",
    " ": "page down",
    "g": "home",
    "G": "end",
}
_LONGEST = 8
"""Characters of a sequence."""


def named(text: str) -> list[str]:
    """The keys in what a terminal sent; unknown sequences are left out."""
    keys: list[str] = []
    while text:
        if text[0] != "\x1b":
            keys.append(_SEQUENCES.get(text[0], text[0]))
            text = text[1:]
            continue
        length = next((n for n in range(3, _LONGEST) if text[:n] in _SEQUENCES), None)
        if length is None:
            text = text[1:].lstrip("[O0123456789;~")
            continue
        keys.append(_SEQUENCES[text[:length]])
        text = text[length:]
    return keys


@contextmanager
def keys_pressed() -> Iterator[Callable[[float], list[str]]]:
    """Yield a function that waits for at most some seconds and returns the keys pressed by then.

    A terminal that is gone has pressed "gone".
    """
    if not sys.stdin.isatty():

        def waited(seconds: float) -> list[str]:
            time.sleep(seconds)
            return []

        yield waited
        return
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def pressed(seconds: float) -> list[str]:
        ready, _, _ = select.select([terminal], [], [], seconds)
        if not ready:
            return []
        try:
            data = os.read(terminal, 256)
        except OSError:
            data = b""
        return named(data.decode(errors="replace")) if data else ["gone"]

    tty.setcbreak(terminal)
    try:
        yield pressed
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
