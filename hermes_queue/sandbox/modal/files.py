"""Reading and writing a slot's files, with the slot's own rights."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

from hermes_queue.errors import SandboxError
from hermes_queue.sandbox.base import ExecutionResult
from hermes_queue.sandbox.local.slot import FILE_TIMEOUT_S, NOT_A_FILE, READ, WRITE
from hermes_queue.sandbox.modal.box import Box, Lease


async def read_file(box: Box, lease: Lease, path: str, *, max_bytes: int) -> bytes:
    """See `SandboxBackend.read_file`."""
    words = ["/bin/bash", "-c", READ, "read", path, str(max_bytes + 1)]
    result = await _run(box, lease, path, words, max_output_bytes=max_bytes + 2)
    if not result.ok:
        raise FileNotFoundError(errno.ENOENT, "no such regular file", path)
    if len(result.stdout) > max_bytes:
        raise OSError(errno.EFBIG, f"larger than {max_bytes} bytes", path)
    return result.stdout


async def write_file(box: Box, lease: Lease, path: str, data: bytes) -> None:
    """See `SandboxBackend.write_file`."""
    words = ["/bin/bash", "-c", WRITE, "write", path]
    result = await _run(box, lease, path, words, stdin=data)
    if result.exit_code == NOT_A_FILE:
        raise OSError(errno.EISDIR, "not a regular file", path)
    if not result.ok:
        why = result.output.strip().rpartition(": ")[2] or "cannot be written"
        raise OSError(errno.EACCES, why, path)


async def _run(
    box: Box, lease: Lease, path: str, words: Sequence[str], **options: Any
) -> ExecutionResult:
    if "\0" in path:
        raise FileNotFoundError(errno.ENOENT, "a NUL byte in the path", path)
    result = await box.run(lease, words, cwd="/", timeout_s=FILE_TIMEOUT_S, whole=True, **options)
    if result.timed_out:
        raise SandboxError(f"{path} did not answer within {FILE_TIMEOUT_S:g} s")
    return result
