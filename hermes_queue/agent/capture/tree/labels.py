"""Which conversation a call belongs to: main, sub_agent, compaction or side.

The task's text is ours, so the conversation whose opening contains it is the main one, in whatever
order the first calls end. The rest follows from the program's headers and from what the calls say.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hermes_queue.agent.capture.calls import ModelCall
from hermes_queue.agent.capture.tree.canonical import Meant, arguments
from hermes_queue.models import BranchLabel, Message

_SUB_AGENT_HINTS = (
    *("x-claude-code-agent-id", "x-claude-code-parent-agent-id"),
    *("x-parent-session-id", "x-parent-session-affinity"),
)
"""Headers that only sub-agents' calls have."""
_HINT_CHARS = 4096
_LEAST_TASK_CHARS = 8
"""A shorter text proves nothing by standing in an argument."""
_GIVEN_TEXTS = 256
"""Newest arguments in which the task of a sub-agent is looked for."""
_GIVEN_CHARS = 1 << 14
_BEFORE_TASK_CHARS = 1 << 18
"""Of what a program says before the task: reading on would hold up the event loop."""
_DEPTH = 4


@dataclass(slots=True, eq=False)
class Family:
    """Conversations with the same opening."""

    key: tuple[bytes, bool, bool]
    has_task: bool
    has_tools: bool
    sub_agent: bool
    order: int
    turns: int = 0
    longest: int = 0
    """Messages of the longest of them."""


@dataclass(frozen=True, slots=True)
class Story:
    """What the label of a branch follows from."""

    family: Family
    compacted: bool = False


class BranchLabels:
    """The labels of one trajectory's branches."""

    def __init__(self, task: str) -> None:
        self._task = _plain(task)
        self._read_chars = len(task) + _BEFORE_TASK_CHARS
        self._families: dict[tuple[bytes, bool, bool], Family] = {}
        self._by_setting: dict[bytes, Family] = {}
        """By tools and system text: the first conversation with them."""
        self._given: deque[str] = deque(maxlen=_GIVEN_TEXTS)
        self._main: Family | None = None

    def story(self, call: ModelCall, said: Sequence[Meant], setting: bytes) -> Story:
        """That of a call which begins a branch; `setting` is a key of tools and system text."""
        opening = _opening(said)
        family = self._family(call, opening)
        if family.turns:
            shortened = len(opening) < len(said) < family.longest
            return Story(family, compacted=shortened)
        if not family.has_task and not family.sub_agent:
            known = self._by_setting.get(setting)
            if known is not None:
                return Story(known, compacted=True)
        return Story(family)

    def label(self, story: Story) -> BranchLabel:
        """The label, as far as it is known by now."""
        family = story.family
        other = self._main is not None and family.key != self._main.key
        if family.sub_agent and (other or self._main is None):
            return "sub_agent"
        # A program that begins the task anew, in other words, still works on it.
        if other and not (family.has_task and family.has_tools):
            return "side"
        return "compaction" if story.compacted else "main"

    def rival_turns(self, story: Story) -> int | None:
        """Turns of a conversation that is the main one once it has most; None of any other."""
        family, main = story.family, self._main
        if main is None or family.key == main.key or _rank(family)[:3] < _rank(main)[:3]:
            return None
        return family.turns

    def add(self, story: Story, setting: bytes, messages: int, reply: Message) -> bool:
        """Count a turn of a conversation of `messages`; True if labels may have changed."""
        family = self._families.setdefault(story.family.key, story.family)
        family.turns += 1
        family.longest = max(family.longest, messages)
        if setting and not family.sub_agent and not story.compacted:
            self._by_setting.setdefault(setting, family)
        for call in reply.tool_calls:
            self._given.extend(_texts(arguments(call), _DEPTH))
        before = self._main
        if before is None or _rank(family) > _rank(before):
            self._main = family
        return self._main is not before

    def _family(self, call: ModelCall, opening: Sequence[Meant]) -> Family:
        """By the message with the task, or else the first one of the user."""
        users = [each for each in opening if each.message.role == "user"]
        with_task = next((each for each in users if self._has_task(each)), None)
        first = with_task or next(iter([*users, *opening]), None)
        hinted = _is_sub_agent(call.hints)
        key = (first.key if first else b"", bool(call.tools), hinted)
        if key in self._families:
            return self._families[key]
        has_task = with_task is not None
        # An agent may hand the whole task on; the conversation that was first had it from us.
        begun = any(family.has_task for family in self._families.values())
        sub_agent = hinted or ((begun or not has_task) and self._was_given(users))
        return Family(key, has_task, bool(call.tools), sub_agent, len(self._families))

    def _has_task(self, said: Meant) -> bool:
        text = said.message.content or ""
        return self._task in _plain(text[: self._read_chars])

    def _was_given(self, users: Sequence[Meant]) -> bool:
        """Whether the first user's text is (most of) an argument of an earlier call."""
        text = (users[0].message.content or "").strip() if users else ""
        if not _LEAST_TASK_CHARS <= len(text) <= _GIVEN_CHARS:
            return False
        return any(
            text in given or (2 * len(given) >= len(text) and given in text)
            for given in self._given
        )


def _rank(family: Family) -> tuple[bool, bool, bool, int, int]:
    """The main conversation has the highest one: the task, tools, most turns, the first call.

    A sub-agent's is the main one only if there is no other: some programs name a session above
    each of theirs.
    """
    own = not family.sub_agent
    return own, family.has_task, family.has_tools, family.turns, -family.order


def _opening(said: Sequence[Meant]) -> Sequence[Meant]:
    """The messages before the first reply."""
    replies = (at for at, each in enumerate(said) if each.message.role == "assistant")
    return said[: next(replies, len(said))]


def _is_sub_agent(hints: Mapping[str, str]) -> bool:
    lowered = {name.lower(): value for name, value in hints.items()}
    if any(lowered.get(name) for name in _SUB_AGENT_HINTS):
        return True
    metadata = lowered.get("x-codex-turn-metadata", "")
    try:
        found = json.loads(metadata) if 0 < len(metadata) <= _HINT_CHARS else {}
    except (ValueError, RecursionError):
        return False
    name = found.get("agent_name") if isinstance(found, dict) else None
    return isinstance(name, str) and name.strip("/") not in ("", "root")


def _texts(value: Any, depth: int) -> Iterator[str]:
    """The texts in a call's arguments that may be somebody's task."""
    if isinstance(value, str):
        text = value.strip()
        if _LEAST_TASK_CHARS <= len(text) <= _GIVEN_CHARS:
            yield text
    elif depth and isinstance(value, dict | list):
        inner: Iterable[Any] = value.values() if isinstance(value, dict) else value
        for each in inner:
            yield from _texts(each, depth - 1)


def _plain(text: str) -> str:
    """The text with single blanks."""
    return " ".join(text.split())
