"""Creates or replaces a file of the slot."""

from __future__ import annotations

from pydantic import Field

from hermes_queue.tools.base import Arguments, FilePath, Tool, ToolContext, ToolResult


class WriteFileArguments(Arguments):
    """Arguments of `write_file`."""

    path: FilePath = Field(min_length=1, description="File, relative to the workspace or absolute.")
    content: str = Field(description="The whole new content.")


async def store(context: ToolContext, path: str, data: bytes) -> ToolResult | None:
    """Write `data`; None, or the reason why that failed. Raises SandboxError."""
    try:
        await context.slot.write_file(context.path(path), data)
    except OSError as error:
        return ToolResult(f"{path}: not written: {error.strerror or error}", ok=False)
    return None


async def run(context: ToolContext, arguments: WriteFileArguments) -> ToolResult:
    """Write the file; return the number of bytes, or the reason why it failed."""
    data = arguments.content.encode()
    failed = await store(context, arguments.path, data)
    return failed or ToolResult(f"wrote {len(data)} bytes to {arguments.path}")


TOOL = Tool(
    name="write_file",
    description="Create or replace a file; missing directories are created.",
    arguments=WriteFileArguments,
    run=run,
)
