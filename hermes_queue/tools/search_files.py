"""Finds text or file names below a directory of the slot."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from hermes_queue.tools.base import Arguments, FilePath, Line, Tool, ToolContext, ToolResult

_PRUNE = "-name .git -prune -o"

# Everything the model wrote is passed in the environment, so that there is nothing to quote and no
# option to inject. The output is sorted, because the order of a directory differs between machines.
_BY_NAME = (
    f'find "$HQ_PATH" {_PRUNE} -type f -name "$HQ_PATTERN" -print'
    ' | LC_ALL=C sort | head -n "$HQ_LIMIT"; exit "${PIPESTATUS[0]}"'
)
_BY_CONTENT = (
    'grep -rnIHP --exclude-dir=.git ${HQ_GLOB:+"--include=$HQ_GLOB"} -e "$HQ_PATTERN" '
    '-- "$HQ_PATH" | LC_ALL=C sort -t: -k1,1 -k2,2n | cut -c1-500 | head -n "$HQ_LIMIT"; '
    'exit "${PIPESTATUS[0]}"'
)


class SearchFilesArguments(Arguments):
    """Arguments of `search_files`."""

    pattern: Line = Field(
        min_length=1,
        max_length=2000,
        description="A Perl-compatible regular expression, or a glob such as *.py for names.",
    )
    target: Literal["content", "names"] = Field(
        default="content", description="Search in file contents or in file names."
    )
    path: FilePath = Field(default=".", min_length=1, description="Directory or file to search.")
    glob: Line | None = Field(
        default=None, max_length=500, description="Only contents of files whose name matches."
    )
    limit: int = Field(default=100, ge=1, le=1000, description="How many matches to show.")


async def run(context: ToolContext, arguments: SearchFilesArguments) -> ToolResult:
    """Return matches as `path:line:text`, or paths, relative to the workspace if possible."""
    by_content = arguments.target == "content"
    timeout_s = context.budget_s()
    result = await context.slot.run(
        _BY_CONTENT if by_content else _BY_NAME,
        timeout_s=timeout_s,
        env={
            "HQ_PATTERN": arguments.pattern,
            "HQ_PATH": context.path(arguments.path),
            "HQ_GLOB": arguments.glob or "",
            "HQ_LIMIT": str(arguments.limit + 1),
        },
    )
    if result.timed_out:
        return ToolResult(f"timed out after {timeout_s:g} s; narrow the search", ok=False)
    prefix = context.slot.workspace.rstrip("/") + "/"
    found = [
        line.removeprefix(prefix) for line in result.stdout.decode(errors="replace").splitlines()
    ]
    if not found:
        # grep: 1 = no match, 2 = error; find: 1 = error.
        failed = result.exit_code > 1 or (not by_content and result.exit_code != 0)
        reason = result.stderr.decode(errors="replace").strip().replace(prefix, "")
        return ToolResult(f"failed: {reason}" if failed else "no matches", ok=not failed)
    if len(found) > arguments.limit:
        found[arguments.limit :] = [f"[more than {arguments.limit} matches: narrow the search]"]
    return ToolResult("\n".join(found))


TOOL = Tool(
    name="search_files",
    description=(
        "Search below a directory: file contents by regular expression (shows path:line:text), "
        "or file names by glob. Binary files and .git are left out."
    ),
    arguments=SearchFilesArguments,
    run=run,
)
