"""Replaces an exact piece of text in a file of the slot."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from pydantic import Field

from hermes_queue.tools.base import (
    Arguments,
    FilePath,
    Tool,
    ToolContext,
    ToolResult,
    beside_the_loop,
)
from hermes_queue.tools.read_file import MAX_READ_BYTES, load_text
from hermes_queue.tools.write_file import store

SHOWN_MATCHES = 20
MAX_HINT_LINES = 100_000
"""In longer files, near matches of `old_string` are not searched for."""


class PatchArguments(Arguments):
    """Arguments of `patch`."""

    path: FilePath = Field(min_length=1, description="File, relative to the workspace or absolute.")
    old_string: str = Field(
        min_length=1,
        description="Text to replace, exactly as in the file; must occur once.",
    )
    new_string: str = Field(description="What to put in its place.")
    replace_all: bool = Field(default=False, description="Replace every occurrence instead.")


async def run(context: ToolContext, arguments: PatchArguments) -> ToolResult:
    """Replace the text, or return the number of matches and a hint."""
    old, new = arguments.old_string, arguments.new_string
    if old == new:
        return ToolResult("old_string and new_string are the same: nothing to do", ok=False)
    text = await load_text(context, arguments.path)
    if isinstance(text, ToolResult):
        return text
    edited = await beside_the_loop(_edit, arguments, text)
    if isinstance(edited, ToolResult):
        return edited
    data, done = edited
    return await store(context, arguments.path, data) or done


def _edit(arguments: PatchArguments, text: str) -> tuple[bytes, ToolResult] | ToolResult:
    """The new content and the observation, or only an observation if nothing can be replaced.

    Time and memory are linear in the file and the arguments, whatever their content.
    """
    old, new = arguments.old_string, arguments.new_string
    if old not in text and "\r\n" in text:
        # Models write \n; keep a file's DOS line ends.
        old, new = (s.replace("\r\n", "\n").replace("\n", "\r\n") for s in (old, new))
    count = text.count(old)
    if count == 0:
        return ToolResult(
            f"{arguments.path}: 0 matches of old_string. {_hint(text, old)}", ok=False
        )
    lines = ", ".join(str(n) for n in islice(_match_lines(text, old), SHOWN_MATCHES))
    if count > 1 and not arguments.replace_all:
        return ToolResult(
            f"{arguments.path}: {count} matches of old_string (at lines {lines}). Add surrounding "
            "lines until it is unique, or set replace_all to true. Nothing was changed.",
            ok=False,
        )
    # Check before replacing: a megabyte in place of each of a million letters fits no memory.
    grown = len(text) + count * (len(new) - len(old))
    if grown > MAX_READ_BYTES:
        return ToolResult(
            f"{arguments.path}: the result would have {grown} characters, more than "
            f"{MAX_READ_BYTES}. Nothing was changed.",
            ok=False,
        )
    done = ToolResult(f"{arguments.path}: replaced {count} match(es), line {lines}")
    return text.replace(old, new).encode(), done


def _match_lines(text: str, old: str) -> Iterator[int]:
    """Line numbers, counted from 1, at which the non-overlapping matches begin."""
    line, at, found = 1, 0, text.find(old)
    while found >= 0:
        line += text.count("\n", at, found)
        yield line
        at, found = found, text.find(old, found + len(old))


def _hint(text: str, old: str) -> str:
    """A hint: where `old` would match if white space at the ends of lines were ignored."""
    stripped = old.strip()
    if stripped and stripped.count("\n") <= text.count("\n") < MAX_HINT_LINES:
        # Search for it as one text: comparing it at each line would cost lines times lines.
        lines = _stripped(text)
        at = lines.find(_stripped(stripped))
        if at >= 0:
            line = lines.count("\n", 0, at + 1)
            return f"Line {line} matches except for white space: copy it exactly."
    return "Read the file and copy the text exactly, white space included."


def _stripped(text: str) -> str:
    """The lines of `text` without white space at their ends, each between line breaks."""
    return "\n" + "\n".join(line.strip() for line in text.split("\n")) + "\n"


TOOL = Tool(
    name="patch",
    description=(
        "Edit a text file: replace old_string by new_string. old_string must be copied exactly, "
        "indentation included, and occur exactly once unless replace_all is true."
    ),
    arguments=PatchArguments,
    run=run,
)
