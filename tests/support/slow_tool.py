"""A tool from outside of the package, which waits for ever."""

from __future__ import annotations

import asyncio

from hermes_queue.tools.base import Arguments, Tool, ToolContext, ToolResult


async def _run(context: ToolContext, arguments: Arguments) -> ToolResult:
    await asyncio.Event().wait()
    return ToolResult("never")


TOOL = Tool("slow", "Waits for ever.", Arguments, _run, runs_in="worker")
