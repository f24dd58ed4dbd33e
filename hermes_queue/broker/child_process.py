"""Child processes that die with their parent."""

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
    """Start a process that ignores the terminal's Ctrl-C and dies with the thread that calls this.

    `environment` is its whole environment; stdout and stderr go to `log`, or where ours go.
    """
    # The kernel sends the signal when we die, even by SIGKILL, after which no code of ours runs.
    # If we die before setpriv has asked for that, the child lives on.
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
    """Send SIGTERM, and SIGKILL after `patience_s`. Does nothing if the process has ended."""
    if process is None or process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
