"""ShareGPT rows in the format of hermes-agent's batch runner, with our reward columns added.

Keys, their order and the shape of every turn are those of `batch_runner.py` and
`convert_to_trajectory_format` of NousResearch/hermes-agent (MIT), so that its compressor and
other readers of its datasets accept these rows unchanged. The columns from `reward` on are ours.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hermes_queue import extensions
from hermes_queue.models import Message, ScoredTrajectory, ToolCall
from hermes_queue.sinks.base import Format
from hermes_queue.sinks.datasets.lines import LinesSink, NotRepresentable

_SYSTEM = (
    "You can call functions. Those there are stand as JSON between <tools> and </tools>:\n"
    "<tools>\n%s\n</tools>\n"
    "Results come between <tool_response> and </tool_response>. Where no function is of use, "
    "answer in words; ask for arguments that you do not know.\n"
    "Call as many as you need, each as one JSON object of this schema:\n"
    '{"title": "FunctionCall", "type": "object", "properties": {"name": {"title": "Name", '
    '"type": "string"}, "arguments": {"title": "Arguments", "type": "object"}}, '
    '"required": ["name", "arguments"]}\n'
    "Put every call between <tool_call> and </tool_call>, for example\n"
    '<tool_call>\n{"name": "a_function", "arguments": {"a": 1}}\n</tool_call>'
)
"""The content of hermes-agent's preamble in our words: tools, schema, tags, example."""

_INVALID_JSON = (ValueError, RecursionError)
"""Errors of `json` for texts of models and tools, which may be nested without limit."""

_TOOLSETS = {"read_file": "file", "write_file": "file", "patch": "file", "search_files": "file"}
"""hermes-agent's toolsets of the tools that we have under the same name."""


class ShareGptSink(LinesSink):
    """Appends one row per trajectory to `path` (`*.jsonl`). See `LinesSink`."""

    def __init__(self, path: Path) -> None:
        self._instances: dict[str, int] = {}
        super().__init__(path, self._row, kind="sharegpt")
        for instance in self.held.values():
            self._index_of(instance)

    def _row(self, trajectory: ScoredTrajectory) -> Mapping[str, Any]:
        _check_tools(trajectory)
        turns = conversations(trajectory)
        return row(trajectory, turns, self._index_of(trajectory.instance_id))

    def _index_of(self, instance: str) -> int:
        return self._instances.setdefault(instance, len(self._instances))


def row(
    trajectory: ScoredTrajectory, turns: Sequence[Mapping[str, str]], prompt_index: int
) -> dict[str, Any]:
    """The whole row.

    Args:
        trajectory: the trajectory that it describes.
        turns: the trajectory's `conversations`.
        prompt_index: index of the dataset row; samples of one instance share it.
    """
    stats = tool_stats(trajectory)
    offered = [tool["function"]["name"] for tool in trajectory.tools]
    return {
        "prompt_index": prompt_index,
        "conversations": turns,
        "metadata": {
            "batch_num": 0,
            "timestamp": datetime.fromtimestamp(trajectory.created, UTC).isoformat(),
            "model": trajectory.agent.model or trajectory.agent.kind,
        },
        "completed": trajectory.stop_reason in ("submitted", "no_tool_call", "exited"),
        "partial": trajectory.stop_reason == "format_errors",
        "api_calls": sum(message.role == "assistant" for message in trajectory.messages),
        "toolsets_used": list(dict.fromkeys(_TOOLSETS.get(name, name) for name in offered)),
        "tool_stats": stats,
        "tool_error_counts": {name: counts["failure"] for name, counts in stats.items()},
        "reward": trajectory.score,
        "scored": trajectory.score is not None,
        "trajectory_id": trajectory.trajectory_id,
        "group_id": trajectory.group_id,
        "run_id": trajectory.run_id,
        "sample_index": trajectory.sample_index,
        "env": trajectory.env,
        "instance_id": trajectory.instance_id,
        "stop_reason": trajectory.stop_reason,
    }


def conversations(trajectory: ScoredTrajectory) -> list[dict[str, str]]:
    """The turns of the conversation.

    The real system prompt is omitted: the format has no place for it.

    Raises:
        NotRepresentable: no user message begins the conversation.
    """
    messages = [message for message in trajectory.messages if message.role != "system"]
    if not messages or messages[0].role != "user":
        raise NotRepresentable("no user message")
    turns = [
        {"from": "system", "value": _SYSTEM % _tools(trajectory.tools)},
        {"from": "human", "value": messages[0].content or ""},
    ]
    calls: Sequence[ToolCall] = ()
    answers: list[str] = []
    for message in [*messages[1:], None]:
        if message and message.role == "tool":
            answers.append(_answer(message, calls, len(answers)))
            continue
        if answers:
            turns.append({"from": "tool", "value": "\n".join(answers)})
            answers = []
        if message and message.role == "assistant":
            calls = message.tool_calls
            turns.append({"from": "gpt", "value": _assistant_text(message)})
        elif message:
            turns.append({"from": "human", "value": message.content or ""})
    return turns


def _check_tools(trajectory: ScoredTrajectory) -> None:
    """Refuse calls of unknown tools, as the batch runner does.

    They would add a key to the statistics, and readers that derived their schema from earlier rows
    could no longer open the file.
    """
    tools = {*extensions.own("tool"), *(tool["function"]["name"] for tool in trajectory.tools)}
    for message in trajectory.messages:
        if any(call.function.name not in tools for call in message.tool_calls):
            raise NotRepresentable("call of an unknown tool")


def tool_stats(trajectory: ScoredTrajectory) -> dict[str, dict[str, int]]:
    """Calls, successes and failures of every known tool, including zeros.

    Arrow derives one schema from the first rows, so all rows need the same keys.
    """
    names: dict[str, str] = {}
    counts: Counter[tuple[str, str]] = Counter()
    for message in trajectory.messages:
        for call in message.tool_calls:
            names[call.id] = call.function.name
            counts[call.function.name, "count"] += 1
        if message.role == "tool" and (name := names.get(message.tool_call_id or "")):
            counts[name, "success" if _succeeded(message.content or "") else "failure"] += 1
    tools = sorted({*extensions.own("tool"), *names.values()})
    return {name: {k: counts[name, k] for k in ("count", "success", "failure")} for name in tools}


def _succeeded(content: str) -> bool:
    """A call failed if its result reports an error; the batch runner ignores exit codes too."""
    try:
        data = json.loads(content)
    except _INVALID_JSON:
        return bool(content) and not content.strip().lower().startswith("error:")
    if not isinstance(data, dict):
        return True
    inner = data.get("content")
    failed = data.get("error") is not None
    failed = failed or (isinstance(inner, dict) and inner.get("error") is not None)
    return not failed and data.get("success") is not False


def _tools(tools: Iterable[Mapping[str, Any]]) -> str:
    listed = [
        {
            "name": tool["function"]["name"],
            "description": tool["function"].get("description", ""),
            "parameters": tool["function"].get("parameters", {}),
            "required": None,
        }
        for tool in tools
    ]
    return json.dumps(listed, ensure_ascii=False)


def _assistant_text(message: Message) -> str:
    # Models without a thinking mode were asked to reason in tags of another name.
    content = (message.content or "").replace("<REASONING_SCRATCHPAD>", "<think>")
    content = content.replace("</REASONING_SCRATCHPAD>", "</think>")
    text = f"<think>\n{message.reasoning}\n</think>\n" if (message.reasoning or "").strip() else ""
    if message.tool_calls:
        text += f"{content}\n" if content.strip() else ""
        text += "".join(_call_text(call) for call in message.tool_calls)
    else:
        text += content
    if "<think>" not in text:
        text = "<think>\n</think>\n" + text
    return text.rstrip() if message.tool_calls else text.strip()


def _call_text(call: ToolCall) -> str:
    data: dict[str, Any] = {"name": call.function.name, "arguments": {}}
    text = _json(data)
    with suppress(*_INVALID_JSON):
        text = _json(data | {"arguments": json.loads(call.function.arguments)})
    return f"<tool_call>\n{text}\n</tool_call>\n"


def _answer(message: Message, calls: Sequence[ToolCall], index: int) -> str:
    content = message.content or ""
    data: dict[str, Any] = {
        "tool_call_id": message.tool_call_id or "",
        "name": calls[index].function.name if index < len(calls) else "unknown",
        "content": content,
    }
    text = _json(data)
    if content.strip().startswith(("{", "[")):
        with suppress(*_INVALID_JSON):
            text = _json(data | {"content": json.loads(content)})
    return f"<tool_response>\n{text}\n</tool_response>"


def _json(value: Any) -> str:
    """JSON text that can be encoded as UTF-8: a model may escape half of a surrogate pair."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    return text


FORMAT = Format(
    help="Conversations in the format of hermes-agent's batch runner, with a reward, in the "
    "JSON-lines file OUT.",
    open=lambda out, options, choice: ShareGptSink(out),
)
