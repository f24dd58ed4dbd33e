"""Processes that live and die with the one that starts them."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path


def start(
    command: list[str],
    environment: dict[str, str],
    *,
    log: Path | None = None,
    append: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a process that a terminal's Ctrl-C does not reach and that dies with us.

    Args:
        command: with its arguments.
        environment: all of it.
        log: takes its output; None = where ours goes.
        append: whether to keep what is in the log.
    """
    if setpriv := shutil.which("setpriv"):
        command = [setpriv, "--pdeathsig", "TERM", *command]
    output = log.open("ab" if append else "wb") if log else None
    try:
        return subprocess.Popen(  # noqa: S603 - our own command
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT if log else None,
            start_new_session=True,
        )
    finally:
        if output:
            output.close()


def end(process: subprocess.Popen[bytes] | None, patience_s: float) -> None:
    """SIGTERM, then after `patience_s` SIGKILL. Does nothing when it has ended."""
    if process is None or process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
