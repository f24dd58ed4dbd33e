"""What an agent does, shown while it does it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hermes_plugins.play.screen import Display
from hermes_queue.agent.loop import AgentResult
from hermes_queue.models import Message, Turn
from workers.draft import Draft

_EVENT_CHARS = 300


class LiveTranscript:
    """Shows what an agent's result gains: its watcher, see `AgentResult.watch`.

    Of our own loop these are messages; of a program the nodes of all its conversations, of which
    `messages` repeats the main one at the end.
    """

    def __init__(self, display: Display, draft: Draft, *, typed: bool) -> None:
        """`typed`: the agent's messages are on the screen already, since a person types them."""
        self._display = display
        self._draft = draft
        self._typed = typed
        self._messages = self._nodes = self._replies = self._events = 0

    def __call__(self, result: AgentResult) -> None:
        """Show what is new."""
        events, self._events = result.events[self._events :], len(result.events)
        for event in events:
            self._event(event)
        nodes, self._nodes = result.nodes[self._nodes :], len(result.nodes)
        for node in nodes:
            self._message(node.message, result, node.turn)
        new, self._messages = result.messages[self._messages :], len(result.messages)
        for message in () if result.nodes else new:
            turn = None
            if message.role == "assistant":
                turn, self._replies = self._replies, self._replies + 1
            self._message(message, result, turn)

    def _message(self, message: Message, result: AgentResult, turn: int | None) -> None:
        limit = self._draft.job.limits.observation_bytes
        if turn is not None and self._typed:
            return
        if turn is not None and turn < len(result.turns):
            self._turn(result, turn)
        if message.role == "assistant":
            self._display.assistant(message, limit)
        elif message.role == "tool":
            self._display.observation(message, limit)
        else:
            self._display.task([message])

    def _turn(self, result: AgentResult, number: int) -> None:
        turn = result.turns[number]
        branch = ""
        if turn.branch is not None and turn.branch < len(result.branches):
            label = result.branches[turn.branch].label
            branch = "" if label == "main" else f" ({label})"
        cost = self._draft.cost_usd(result.usage)
        spent = f", ${cost:.4f} so far" if cost else ""
        self._display.note(f"turn {number + 1}{branch}{_facts(turn)}{spent}")

    def _event(self, event: Mapping[str, Any]) -> None:
        if event.get("event") != "stop":
            self._display.note(f"event {json.dumps(event, default=str)[:_EVENT_CHARS]}")


def _facts(turn: Turn) -> str:
    usage = turn.usage
    facts = []
    if usage.prompt_tokens or usage.completion_tokens:
        facts.append(f"{usage.prompt_tokens} + {usage.completion_tokens} tokens")
    if turn.latency_s:
        facts.append(f"{turn.latency_s:.1f} s")
    if turn.finish_reason == "length":
        facts.append("cut off")
    return f": {', '.join(facts)}" if facts else ""
