"""`hermes-queue play` at a terminal, or with its input from a file; a fork that has imported it."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import tempfile
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from zygote import ForkedProcess, zygote

_ROOT = Path(__file__).parents[4]
_GIVE_UP_S = 60.0


def environment(**more: str) -> dict[str, str]:
    """Nothing is configured, and the envs of the tests can be imported."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HERMES_QUEUE_")}
    path = f"{_ROOT}:{_ROOT / 'tests' / 'support'}"
    return {**clean, "PYTHONPATH": path, "TERM": "dumb", **more}


def play(
    *flags: str, lines: str = "", directory: Path, **more: str
) -> subprocess.CompletedProcess[str]:
    """Play with `lines` as standard input, to the end."""
    with tempfile.TemporaryFile() as typed, tempfile.TemporaryFile() as shown:
        typed.write(lines.encode())
        typed.seek(0)
        words = ["play", *flags]
        process = zygote().start(
            "hermes_queue.cli", words, environment(**more), shown, directory, typed=typed
        )
        try:
            code = process.wait(_GIVE_UP_S)
        finally:
            process.kill()
        shown.seek(0)
        return subprocess.CompletedProcess(words, code, shown.read().decode(), "")


class Terminal:
    """A person at a terminal at which `play` runs."""

    def __init__(self, process: ForkedProcess, master: int) -> None:
        self.process = process
        self.shown = ""
        self._master = master
        self._seen = 0

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._master, text.encode())

    def sees(self, text: str) -> None:
        """Wait until `text` is shown, after what was waited for before."""
        give_up = time.monotonic() + _GIVE_UP_S
        while (found := self.shown.find(text, self._seen)) < 0:
            if not self._read(give_up - time.monotonic()):
                raise AssertionError(f"{text!r} was not shown:\n{self.shown}")
        self._seen = found + len(text)

    def ends(self) -> int:
        """Wait for the end; returns the exit code."""
        while self._read(_GIVE_UP_S):
            pass
        return self.process.wait(_GIVE_UP_S)

    def _read(self, timeout_s: float) -> bool:
        if not select.select([self._master], [], [], max(0.0, timeout_s))[0]:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:  # nobody has the other end open any more
            return False
        self.shown += data.decode(errors="replace")
        return bool(data)


@contextmanager
def terminal(*flags: str, directory: Path, **more: str) -> Iterator[Terminal]:
    """Play at a terminal of its own."""
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (50, 200))
    with os.fdopen(slave, "r+b", buffering=0) as side:
        process = zygote().start(
            "hermes_queue.cli", ["play", *flags], environment(**more), side, directory, typed=side
        )
    try:
        yield Terminal(process, master)
    finally:
        process.kill()
        os.close(master)
