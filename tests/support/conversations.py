"""A conversation with tools, records of it, and what a sink writes of them."""

from __future__ import annotations

import json
from pathlib import Path

from records import make_job, make_record

from hermes_queue.models import FunctionCall, Message, ScoredTrajectory, ToolCall

TOOL = {
    "type": "function",
    "function": {
        "name": "terminal",
        "description": "Run a command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    },
}


def call(number: int, name: str, arguments: str) -> ToolCall:
    return ToolCall(id=f"c{number}", function=FunctionCall(name=name, arguments=arguments))


def message(role: str, content: str | None = None, **more: object) -> Message:
    return Message.model_validate({"role": role, "content": content, **more})


CONVERSATION = (
    message("system", "You repair bugs."),
    message("user", "Repair it."),
    message(
        "assistant",
        "Looking.",
        reasoning="hmm",
        tool_calls=[call(1, "terminal", '{"command": "ls é"}'), call(2, "read_file", "{}")],
    ),
    message("tool", '{"output": "a.py", "error": null}', tool_call_id="c1"),
    message("tool", "Error: no path", tool_call_id="c2"),
    message("assistant", "<REASONING_SCRATCHPAD>so</REASONING_SCRATCHPAD> Done."),
    message("user", "Sure?"),
    message("assistant", "Yes. "),
)


def record(messages=CONVERSATION, *, sample=0, instance="i", score=1.0, **more) -> ScoredTrajectory:
    made = make_record(make_job(instance=instance, sample=sample, size=8), score)
    return made.model_copy(update={"messages": tuple(messages), "tools": (TOOL,), **more})


def written(sink_type, path: Path, *records: ScoredTrajectory) -> list[dict]:
    with sink_type(path) as sink:
        sink.write(records)
    return [json.loads(line) for line in path.read_text().splitlines()]
