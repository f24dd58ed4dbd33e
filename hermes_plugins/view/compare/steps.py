"""What a sample did: its tool calls, each reduced to its name and its first argument."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hermes_plugins.view.present.conversation import all_messages, arguments_of, main_argument
from hermes_plugins.view.present.shapes import as_json, items, mapping
from hermes_queue.terminal.escapes import label

STEPS_MOST = 2000
"""Of one sample."""
ARGUMENT_MOST = 160
ANSWER = "(answer)"
"""Name of the step of a reply without a call."""
_READ_MOST = 2000
"""Characters of an argument that are looked at."""

_END = r"\s'\"`;|&<>()"
"""Characters of a shell's line that end a path."""
_TEMPORARY = re.compile(
    rf"(/tmp/|/var/tmp/|/dev/shm/|/run/user/)[^{_END}]*?(\.\w{{1,5}})?(?=[{_END}]|$)"
)
_PLACE = re.compile(r"^\s*cd [^\s;&|]{1,200} *(?:&&|;) *")
_WORKSPACE = re.compile(
    r"(?:/workspace|/testbed|\$PWD|\$HOME|~)/(?=[\w.])|(?<![\w./])(?:\./)+(?=[\w.])"
)
_RANDOM = re.compile(
    r"\b(?:[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}|(?=[0-9a-f]*\d)(?=\d*[a-f])[0-9a-f]{8,64}|\d{5,20})\b"
)
_BLANK = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class AgentStep:
    """One step; equal steps are the same action."""

    name: str
    argument: str


@dataclass(frozen=True, slots=True)
class AgentSteps:
    """The steps of a sample, and the number of the message of each."""

    steps: tuple[AgentStep, ...]
    at: tuple[int, ...]
    left_out: int


def steps_of(raw: Mapping[Any, Any]) -> AgentSteps:
    """The steps of a record in order, at most `STEPS_MOST`.

    A reply without a call is a step, too: its last line.
    """
    found: list[AgentStep] = []
    at: list[int] = []
    left_out = 0
    for n, message in enumerate(all_messages(raw)):
        known = mapping(message)
        if known.get("role") != "assistant":
            continue
        calls = items(known.get("tool_calls"))
        taken = calls[: STEPS_MOST - len(found)]
        left_out += len(calls) - len(taken)
        found += map(_step, taken)
        at += [n] * len(taken)
        if not calls and len(found) < STEPS_MOST:
            found.append(AgentStep(ANSWER, _last_line(known.get("content"))))
            at.append(n)
    return AgentSteps(tuple(found), tuple(at), left_out)


def normalised(argument: str) -> str:
    """An argument without what differs for no reason: white space, temporary names, the workspace.

    `cd /workspace && python  ./x.py /tmp/a81.log` becomes `python x.py /tmp/*.log`. Long numbers
    and hashes become `#`.
    """
    text = _BLANK.sub(" ", argument[:_READ_MOST]).strip()
    text = _PLACE.sub("", text)
    text = _TEMPORARY.sub(lambda found: f"{found[1]}*{found[2] or ''}", text)
    text = _RANDOM.sub("#", _WORKSPACE.sub("", text))
    return label(text, ARGUMENT_MOST)


def _step(call: object) -> AgentStep:
    function = mapping(mapping(call).get("function"))
    given = arguments_of(call)
    if given is None:
        main = function.get("arguments")
    else:
        main = main_argument(given)
    if main is not None and not isinstance(main, str):
        main = as_json(main, indent=None)
    return AgentStep(label(function.get("name"), 80), normalised(main or ""))


def _last_line(content: object) -> str:
    if not isinstance(content, str):
        return ""
    return normalised(content[-_READ_MOST:].strip().rpartition("\n")[2])
