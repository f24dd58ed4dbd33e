"""The agent that repeats the assistant's messages of a stored conversation.

Jobs name the file, but it is on the worker's host, outside of any sandbox. So only regular files
below a directory that the operator chose are opened, and the amount read is bounded.
"""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePath
from typing import IO, Any

from pydantic import TypeAdapter, ValidationError, model_validator

from hermes_queue.agent.parameters import AgentParams
from hermes_queue.agent.registry import AgentScript
from hermes_queue.agent.scripted import scripted
from hermes_queue.errors import ModelConfigError
from hermes_queue.models import Message
from hermes_queue.settings import PathSettings

FILE_MAX_BYTES = 256 << 20
LINE_MAX_BYTES = 32 << 20
"""Largest size of one record."""

_MESSAGES = TypeAdapter(list[Message])
_HERE = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""Flags that refuse symbolic links out of the directory and do not block on opening a pipe."""


class ReplayParams(AgentParams):
    """Where the conversation is: exactly one of the two."""

    path: str | None = None
    """A JSONL file of records below the worker's `PathSettings.replay`. Records of the same
    instance are preferred, and `sample_index` selects one of them."""
    messages: Any = None
    """The conversation itself."""

    @model_validator(mode="after")
    def _one_source(self) -> ReplayParams:
        if (self.path is None) == (self.messages is None):
            raise ValueError('give exactly one of "path" and "messages"')
        return self


async def write(params: ReplayParams, script: AgentScript) -> list[Message]:
    """Repeat the assistant's messages of a stored conversation."""
    stored = params.messages
    if params.path is not None:
        stored = await asyncio.to_thread(_stored_messages, params.path, script)
    try:
        return [m for m in _MESSAGES.validate_python(stored) if m.role == "assistant"]
    except ValidationError as error:
        raise ModelConfigError(f"agent replay: unusable messages: {error}") from error


def _stored_messages(path: str, script: AgentScript) -> Any:
    root = PathSettings().replay
    if root is None:
        raise ModelConfigError(
            f"agent replay: {path}: this worker may not open files for jobs: set "
            "HERMES_QUEUE_PATHS_REPLAY to the directory of the records, or send them in the job "
            '(the param "messages")'
        )
    try:
        with _opened(root, path) as lines:
            return _chosen(lines, script)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelConfigError(f"agent replay: {path}: {type(error).__name__}: {error}") from error


def _chosen(lines: IO[bytes], script: AgentScript) -> Any:
    """The messages of one record. For the others only their offsets are kept."""
    every: list[int] = []
    same: list[int] = []
    for start, record in _records(lines):
        every.append(start)
        if record.get("instance_id") == script.instance_id:
            same.append(start)
    places = same or every
    if not places:
        raise ValueError("there are no records")
    lines.seek(places[script.sample_index % len(places)])
    return next(_records(lines))[1]["messages"]


def _records(lines: IO[bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each record with the offset of its line."""
    start = lines.tell()
    while line := lines.readline(LINE_MAX_BYTES + 1):
        if len(line) > LINE_MAX_BYTES or start > FILE_MAX_BYTES:
            raise ValueError(
                f"at most {LINE_MAX_BYTES} bytes a record and {FILE_MAX_BYTES} bytes are read"
            )
        record = json.loads(line)
        if "messages" not in record:
            raise ValueError("a record without messages")
        yield start, record
        start += len(line)


def _opened(root: Path, path: str) -> IO[bytes]:
    """Open a regular file below `root`. Raises ValueError or OSError, also for links on its way."""
    given = PurePath(path)
    base = root.absolute()
    with suppress(ValueError):  # a relative path starts at the directory
        given = given.relative_to(base)
    if given.is_absolute() or ".." in given.parts or not given.parts:
        raise ValueError(f"it is not below {base} (HERMES_QUEUE_PATHS_REPLAY)")
    at = os.open(base, os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in given.parts[:-1]:
            inner = os.open(part, os.O_DIRECTORY | _HERE, dir_fd=at)
            os.close(at)
            at = inner
        file = os.open(given.parts[-1], os.O_RDONLY | _HERE, dir_fd=at)
    finally:
        os.close(at)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise ValueError("it is not a regular file")
    return os.fdopen(file, "rb")


AGENT = scripted(write, ReplayParams)
