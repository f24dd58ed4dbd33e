"""Ends the trajectory."""

from __future__ import annotations

from pydantic import Field

from hermes_queue.tools.base import Arguments, Tool, ToolContext, ToolResult


class SubmitArguments(Arguments):
    """Arguments of `submit`."""

    summary: str = Field(default="", description="What was done, in one or two sentences.")


async def run(context: ToolContext, arguments: SubmitArguments) -> ToolResult:
    """Do nothing: the loop stops after this call."""
    return ToolResult("submitted")


TOOL = Tool(
    name="submit",
    description="Hand in the work as it is now. Nothing can be changed afterwards.",
    arguments=SubmitArguments,
    run=run,
    runs_in="worker",
    submits=True,
)
