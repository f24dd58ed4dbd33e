"""Files of a slot via bash, with the slot's own rights: for backends that can run commands."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from typing import Protocol

from hermes_queue.sandbox.base import MAX_OUTPUT_BYTES, ExecutionResult

TIMEOUT_S = 60.0
"""Of programs of the slot, which root of it may have replaced."""
_ABSENT, _NO_FILE = 66, 73
_READ = f'[ -f "$1" ] && [ -r "$1" ] || exit {_ABSENT}; exec head -c "$2" -- "$1"'
_WRITE = (
    f'[ ! -d "$1" ] && {{ [ ! -e "$1" ] || [ -f "$1" ]; }} || exit {_NO_FILE}; '
    'mkdir -p -- "$(dirname -- "$1")" && exec cat >"$1"'
)


class RunInSlot(Protocol):
    """Runs a program in one slot, as `ExecutionResult` describes; raises SandboxError."""

    async def __call__(
        self,
        argv: Sequence[str],
        *,
        script: str | None = None,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str,
        timeout_s: float,
        max_output_bytes: int = MAX_OUTPUT_BYTES,
    ) -> ExecutionResult:
        """Run `argv`, with `script` as bash's command line; `max_output_bytes` is per stream."""
        ...


async def read_file(run: RunInSlot, path: str, *, max_bytes: int) -> bytes:
    """See `SandboxBackend.read_file`."""
    words = ["/bin/bash", "-c", _READ, "read", _checked(path), str(max_bytes + 1)]
    result = await run(words, cwd="/", timeout_s=TIMEOUT_S, max_output_bytes=max_bytes + 2)
    _check_time(result, path)
    if not result.ok:
        raise FileNotFoundError(errno.ENOENT, "no such regular file", path)
    if len(result.stdout) > max_bytes:
        raise OSError(errno.EFBIG, f"larger than {max_bytes} bytes", path)
    return result.stdout


async def write_file(run: RunInSlot, path: str, data: bytes) -> None:
    """See `SandboxBackend.write_file`."""
    words = ["/bin/bash", "-c", _WRITE, "write", _checked(path)]
    result = await run(words, stdin=data, cwd="/", timeout_s=TIMEOUT_S)
    _check_time(result, path)
    if result.exit_code == _NO_FILE:
        raise OSError(errno.EISDIR, "not a regular file", path)
    if not result.ok:
        why = result.output.strip().rpartition(": ")[2] or "cannot be written"
        raise OSError(errno.EACCES, why, path)


def _checked(path: str) -> str:
    if "\0" in path:
        raise FileNotFoundError(errno.ENOENT, "a NUL byte in the path", path)
    return path


def _check_time(result: ExecutionResult, path: str) -> None:
    if result.timed_out:
        raise TimeoutError(errno.ETIMEDOUT, f"no answer within {TIMEOUT_S:g} s", path)
