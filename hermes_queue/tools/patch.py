"""Replace an exact piece of text in a file of the slot."""

from __future__ import annotations

from pydantic import Field

from hermes_queue.tools.base import Arguments, Line, Tool, ToolContext, ToolResult
from hermes_queue.tools.read_file import load_text
from hermes_queue.tools.write_file import store


class PatchArguments(Arguments):
    """Arguments of `patch`."""

    path: Line = Field(min_length=1, description="File, relative to the workspace or absolute.")
    old_string: str = Field(
        min_length=1,
        description="Text to replace, exactly as in the file; must occur once.",
    )
    new_string: str = Field(description="What to put in its place.")
    replace_all: bool = Field(default=False, description="Replace every occurrence instead.")


async def run(context: ToolContext, arguments: PatchArguments) -> ToolResult:
    """Replace, or say how many matches there are and what would make it work."""
    old, new = arguments.old_string, arguments.new_string
    if old == new:
        return ToolResult("old_string and new_string are the same: nothing to do", ok=False)
    text = await load_text(context, arguments.path)
    if isinstance(text, ToolResult):
        return text
    if old not in text and "\r\n" in text:
        # Models write \n; a file with DOS line ends keeps them.
        old, new = (s.replace("\r\n", "\n").replace("\n", "\r\n") for s in (old, new))
    count = text.count(old)
    if count == 0:
        return ToolResult(
            f"{arguments.path}: 0 matches of old_string. {_hint(text, old)}", ok=False
        )
    lines = ", ".join(str(n) for n in _match_lines(text, old)[:20])
    if count > 1 and not arguments.replace_all:
        return ToolResult(
            f"{arguments.path}: {count} matches of old_string (at lines {lines}). Add surrounding "
            "lines until it is unique, or set replace_all to true. Nothing was changed.",
            ok=False,
        )
    failed = await store(context, arguments.path, text.replace(old, new).encode())
    return failed or ToolResult(f"{arguments.path}: replaced {count} match(es), line {lines}")


def _match_lines(text: str, old: str) -> list[int]:
    """Line numbers, from 1, where the non-overlapping matches begin."""
    numbers, line = [], 1
    for piece in text.split(old)[:-1]:
        line += piece.count("\n")
        numbers.append(line)
        line += old.count("\n")
    return numbers


def _hint(text: str, old: str) -> str:
    """Where `old` would match if white space at the ends of lines did not count."""
    wanted = [line.strip() for line in old.strip().splitlines()]
    lines = [line.strip() for line in text.splitlines()]
    for start in range(len(lines) - len(wanted) + 1) if any(wanted) else ():
        if lines[start : start + len(wanted)] == wanted:
            return f"Line {start + 1} matches except for white space: copy it exactly."
    return "Read the file and copy the text exactly, white space included."


TOOL = Tool(
    name="patch",
    description=(
        "Edit a text file: replace old_string by new_string. old_string must be copied exactly, "
        "indentation included, and occur exactly once unless replace_all is true."
    ),
    arguments=PatchArguments,
    run=run,
)
