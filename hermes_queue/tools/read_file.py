"""Shows a text file of the slot with line numbers."""

from __future__ import annotations

import errno

from pydantic import Field

from hermes_queue.tools.base import (
    Arguments,
    FilePath,
    Tool,
    ToolContext,
    ToolResult,
    beside_the_loop,
)

MAX_READ_BYTES = 8 << 20
MAX_LINE_CHARS = 2000
_STRIDE_CHARS = 1 << 16
FOOTER_BYTES = 200
"""Bytes of the observation reserved for the note on how to continue."""


class ReadFileArguments(Arguments):
    """Arguments of `read_file`."""

    path: FilePath = Field(min_length=1, description="File, relative to the workspace or absolute.")
    offset: int = Field(default=1, ge=1, description="First line to show, counted from 1.")
    limit: int = Field(default=500, ge=1, le=5000, description="How many lines to show.")


async def load_text(context: ToolContext, path: str) -> str | ToolResult:
    """The content of a text file, or why it cannot be read. Raises SandboxError."""
    try:
        data = await context.slot.read_file(context.path(path), max_bytes=MAX_READ_BYTES)
    except FileNotFoundError:
        return ToolResult(f"{path}: not found, not readable, or not a regular file", ok=False)
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno == errno.EFBIG:
            reason = f"larger than {MAX_READ_BYTES} bytes; use the terminal (head, tail, sed -n)"
        return ToolResult(f"{path}: {reason}", ok=False)
    try:
        return await beside_the_loop(data.decode)
    except UnicodeDecodeError:
        return ToolResult(f"{path}: not UTF-8 text ({len(data)} bytes)", ok=False)


async def run(context: ToolContext, arguments: ReadFileArguments) -> ToolResult:
    """Show lines `offset` to `offset + limit - 1`, fewer if the observation is full."""
    text = await load_text(context, arguments.path)
    if isinstance(text, ToolResult):
        return text
    return await beside_the_loop(_show, arguments, text, context.observation_bytes)


def _show(arguments: ReadFileArguments, text: str, observation_bytes: int) -> ToolResult:
    if not text:
        return ToolResult(f"{arguments.path}: empty file")
    count = text.count("\n") + (not text.endswith("\n"))
    if arguments.offset > count:
        return ToolResult(f"{arguments.path} has only {count} lines", ok=False)
    begin = _line_start(text, arguments.offset)
    lines = text[begin:].split("\n", arguments.limit)[: arguments.limit]
    room = observation_bytes - FOOTER_BYTES
    output: list[str] = []
    for number, line in enumerate(lines[: count - arguments.offset + 1], arguments.offset):
        numbered = f"{number:>6}\t{_shorten(line)}"
        room -= len(numbered.encode()) + 1
        if room < 0 and output:
            break
        output.append(numbered)
    last = arguments.offset + len(output) - 1
    if last < count:
        output.append(f"[lines {arguments.offset}-{last} of {count}; go on: offset={last + 1}]")
    return ToolResult("\n".join(output))


def _line_start(text: str, number: int) -> int:
    """Offset of line `number`, counted from 1, which must exist.

    It does not split the text: a file of line breaks alone has millions of lines.
    """
    at, left = 0, number - 1
    while (passed := text.count("\n", at, at + _STRIDE_CHARS)) < left:
        left -= passed
        at += _STRIDE_CHARS
    for _ in range(left):
        at = text.index("\n", at) + 1
    return at


def _shorten(line: str) -> str:
    line = line.rstrip("\r")
    if len(line) <= MAX_LINE_CHARS:
        return line
    return f"{line[:MAX_LINE_CHARS]} [... {len(line) - MAX_LINE_CHARS} more characters]"


TOOL = Tool(
    name="read_file",
    description="Show a text file with line numbers.",
    arguments=ReadFileArguments,
    run=run,
)
