"""Runs a bash command in the slot."""

from __future__ import annotations

from pydantic import Field

from hermes_queue.sandbox.base import ExecutionResult
from hermes_queue.tools.base import Arguments, Line, Tool, ToolContext, ToolResult


class TerminalArguments(Arguments):
    """Arguments of `terminal`."""

    command: Line = Field(min_length=1, description="The bash command line to run.")
    timeout_s: float | None = Field(
        default=None, gt=0, description="Seconds after which the command is killed."
    )


async def run(context: ToolContext, arguments: TerminalArguments) -> ToolResult:
    """Return exit code and output; a non-zero exit code or a timeout is an observation."""
    timeout_s = context.budget_s(arguments.timeout_s)
    result = await context.slot.run(arguments.command, timeout_s=timeout_s)
    return ToolResult(render(result, timeout_s), ok=result.ok)


def render(result: ExecutionResult, timeout_s: float) -> str:
    """A command's result for the model: status line, stdout, stderr, notice."""
    status = f"exit code {result.exit_code}"
    if result.timed_out:
        status = f"timed out after {timeout_s:g} s; the command and its children were killed"
    if result.truncated:
        status += " (very long output, its middle was dropped)"
    parts = [f"[{status}]"]
    for stream in (result.stdout, result.stderr):
        if stream:
            parts.append(stream.decode(errors="replace").rstrip("\n"))
    if result.notice:
        parts.append(f"[{result.notice}]")
    return "\n".join(parts)


TOOL = Tool(
    name="terminal",
    description=(
        "Run a bash command in the workspace. Every call starts a new shell in the workspace "
        "directory, so `cd` and variables do not carry over. There is no terminal to type into: "
        "interactive programs do not work."
    ),
    arguments=TerminalArguments,
    run=run,
)
