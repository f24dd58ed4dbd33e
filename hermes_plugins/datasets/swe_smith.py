"""Trajectories as SWE-smith publishes them, in its three styles.

Keys and their order are those of `swesmith/train/traj_mgr/collect_trajs.py` of SWE-bench/SWE-smith
(MIT) and of the data set SWE-bench/SWE-smith-trajectories; the styles are those of `utils.py`
beside it: `tool` (OpenAI's calls), `xml` (`<function=...>` in the text, results as messages of the
user) and `ticks` (a command between three backticks). SWE-agent's parsers `xml_function_calling`
and `thought_action` read the latter two: a trajectory with a reply in which tags or fences would be
ambiguous has no row. Several calls of one reply follow one another in `xml`, as in SWE-smith.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from hermes_plugins.datasets.openai import conversation
from hermes_queue.errors import InputError
from hermes_queue.models import Message, ScoredTrajectory, ToolCall
from hermes_queue.sinks.base import Format, SinkOptions
from hermes_queue.sinks.datasets.lines import DatasetRow, LinesSink, NotRepresentable

Style = Literal["tool", "xml", "ticks"]

_MULTILINE = frozenset({"old_str", "new_str", "file_text", "old_string", "new_string", "content"})
"""Parameters that stand on lines of their own: SWE-smith's, and ours of the same meaning."""
_SHELLS = frozenset({"terminal", "bash"})
_TAG = re.compile(r"</?(?:function|parameter)[=>]")
_NAME = re.compile(r"[\w.-]+")
_FENCE = re.compile(r"^```", re.MULTILINE)

_XML_FORM = (
    "To call a function, end the reply with the call in this form, and write nothing after it:\n"
    "<function=name>\n<parameter=name>value</parameter>\n</function>"
)
_TICKS_FORM = (
    "End every reply with one command between lines of three backticks. It is a shell command, or "
    "one of those above with its arguments as options:\n```\nname --parameter value\n```"
)


class StyleOptions(SinkOptions):
    """Options of `swe_smith`."""

    style: Style = Field(default="xml", description="swe_smith: how replies state their calls.")
    system_prompt: Path | None = Field(
        default=None,
        description="swe_smith: file whose text is the system prompt of styles xml and ticks. "
        "Default: the recorded one, the tools, and the form of a call.",
    )
    messages_as_text: bool = Field(
        default=False,
        description="swe_smith: write the messages as JSON text, as the published data set has "
        "them.",
    )


class SweSmithSink(LinesSink):
    """Appends one row per trajectory to `path` (`*.jsonl`). See `LinesSink`.

    Raises:
        InputError: the file of the system prompt cannot be read.
    """

    def __init__(self, path: Path, options: StyleOptions | None = None) -> None:
        options = options or StyleOptions()
        render = partial(row, options=options, system=_text(options.system_prompt))
        super().__init__(path, render, kind=f"swe_smith, style {options.style}")


def row(trajectory: ScoredTrajectory, options: StyleOptions, system: str | None) -> DatasetRow:
    """The row of one trajectory.

    Args:
        trajectory: a measured one.
        options: style and form of the messages.
        system: the system prompt of styles other than `tool`; None: made from the trajectory's.

    Raises:
        NotRepresentable: the style cannot hold the conversation, or nothing was measured.
    """
    if trajectory.score is None:  # else `resolved` would be made up
        raise NotRepresentable("no score")
    messages = _STYLES[options.style](trajectory, system)
    return {
        "messages": json.dumps(messages) if options.messages_as_text else messages,
        "instance_id": trajectory.instance_id,
        "resolved": trajectory.score >= 1,
        "model": trajectory.agent.model or trajectory.agent.kind,
        "traj_id": trajectory.trajectory_id,
        "patch": _patch(trajectory.report),
    }


def _patch(report: Mapping[str, Any]) -> str | None:
    """The whole patch; None if the report has none, only its beginning, or not its own bytes."""
    patch = report.get("patch")
    if not isinstance(patch, str):
        return None
    size = len(patch.encode(errors="replace"))
    return patch if report.get("patch_bytes", size) == size else None


def _text(path: Path | None) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip() if path else None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--system-prompt {path}: cannot be read: {error}") from error


# --- the styles -------------------------------------------------------------------------


def _tool_style(trajectory: ScoredTrajectory, system: str | None) -> list[dict[str, Any]]:
    return [message.to_openai() for message in conversation(trajectory)]


def _xml_style(trajectory: ScoredTrajectory, system: str | None) -> list[dict[str, Any]]:
    return _as_text(trajectory, system, _xml_reply, _XML_FORM)


def _ticks_style(trajectory: ScoredTrajectory, system: str | None) -> list[dict[str, Any]]:
    return _as_text(trajectory, system, _ticks_reply, _TICKS_FORM)


_STYLES: Mapping[Style, Callable[[ScoredTrajectory, str | None], list[dict[str, Any]]]] = {
    "tool": _tool_style,
    "xml": _xml_style,
    "ticks": _ticks_style,
}


def _as_text(
    trajectory: ScoredTrajectory,
    system: str | None,
    reply: Callable[[Message], str],
    form: str,
) -> list[dict[str, Any]]:
    """The messages as text; the results of one reply's calls are one message of the user."""
    messages = conversation(trajectory)
    prompt = _system(trajectory, form) if system is None else system
    made = [{"role": "system", "content": prompt}]
    answered = False
    for message in messages:
        content = reply(message) if message.role == "assistant" else message.content or ""
        if message.role == "tool" and answered:
            made[-1]["content"] += f"\n{content}"
        elif message.role != "system":
            role = "user" if message.role == "tool" else message.role
            made.append({"role": role, "content": content})
        answered = message.role == "tool"
    return made


def _system(trajectory: ScoredTrajectory, form: str) -> str:
    recorded = [m.content or "" for m in trajectory.messages if m.role == "system"]
    tools = [_described(tool["function"]) for tool in trajectory.tools]
    listed = ["You can use these functions:", *tools] if tools else []
    return "\n\n".join(filter(None, [*recorded, *listed, form]))


def _described(function: Mapping[str, Any]) -> str:
    schema = function.get("parameters") or {}
    required = schema.get("required") or ()
    lines = [f"{function['name']}: {function.get('description', '')}".rstrip()]
    for name, about in (schema.get("properties") or {}).items():
        need = "required" if name in required else "optional"
        known = about if isinstance(about, Mapping) else {}  # a schema may be true or false
        kind = known.get("type") or "any type"
        lines.append(f"- {name} ({kind}, {need}): {known.get('description', '')}".rstrip())
    return "\n".join(lines)


def _xml_reply(message: Message) -> str:
    thought = message.content or ""
    if _TAG.search(thought):
        raise NotRepresentable("a tag in the text of a reply")
    calls = "\n".join(map(_xml_call, message.tool_calls))
    return f"{thought}\n\n{calls}".strip()


def _xml_call(call: ToolCall) -> str:
    name, arguments = _parsed(call)
    lines = [f"<function={name}>"]
    for key, value in arguments.items():
        text = _value(value)
        if _TAG.search(text):
            raise NotRepresentable("a tag in a call")
        inner = f"\n{text}\n" if key in _MULTILINE else text
        lines.append(f"<parameter={key}>{inner}</parameter>")
    return "\n".join([*lines, "</function>"])


def _ticks_reply(message: Message) -> str:
    thought = message.content or ""
    if not message.tool_calls:
        if _FENCE.search(thought):
            raise NotRepresentable("a fence in a reply without a call")
        return thought.strip()
    if len(_FENCE.findall(thought)) % 2:
        raise NotRepresentable("an open fence in the text of a reply")
    action = _command(message.tool_calls)
    if _FENCE.search(action):
        raise NotRepresentable("a fence in a call")
    return f"{thought}\n\n```\n{action}\n```".strip()


def _command(calls: Sequence[ToolCall]) -> str:
    if len(calls) > 1:
        raise NotRepresentable("several calls in one reply")
    name, arguments = _parsed(calls[0])
    command = arguments.get("command")
    if name in _SHELLS and isinstance(command, str):
        return command
    options = (f"--{key} {shlex.quote(_value(value))}" for key, value in arguments.items())
    return " ".join([name, *options])


def _parsed(call: ToolCall) -> tuple[str, dict[str, Any]]:
    arguments = json.loads(call.function.arguments)
    if not all(_NAME.fullmatch(name) for name in (call.function.name, *arguments)):
        raise NotRepresentable("a name of a call that the style cannot hold")
    return call.function.name, arguments


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


FORMAT = Format(
    help="Trajectories as SWE-smith publishes them, in its styles tool, xml and ticks, in the "
    "JSON-lines file OUT.",
    open=lambda out, options, choice: SweSmithSink(out, options),
    options=StyleOptions,
)
