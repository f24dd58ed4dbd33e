"""An agent that says what it should not: `--agent leaky_agent:leaky`, params {"how": ...}."""

from __future__ import annotations

import json
import logging
import os

from hermes_queue.agent.chat import Reply
from hermes_queue.errors import ModelError
from hermes_queue.models import FunctionCall, Message, ToolCall, Turn

logger = logging.getLogger(__name__)

URL = "https://bot:pa55-of-a-url@example.invalid/x"
KEY = "sk-proj-Abc123def456Ghi789jkl012"


def secret_text() -> str:
    return f"key {os.environ['SEEDED_TOKEN']}, {KEY} and {URL}"


class _Leaky:
    def __init__(self, how: str, first: bool) -> None:
        self._how = how
        self._first = first
        self._turn = 0

    async def complete(self, messages, tools, sampling, deadline):
        if self._how == "bug":
            try:
                raise RuntimeError(secret_text())
            except RuntimeError:
                logger.exception("about to say %s", secret_text())
                raise
        if self._how == "retry" and self._first:
            raise ModelError(secret_text())
        self._turn += 1
        turn = Turn(finish_reason="stop")
        if self._turn == 1:
            arguments = json.dumps({"expression": secret_text()})
            call = ToolCall(id="c", function=FunctionCall(name="calculator", arguments=arguments))
            message = Message(role="assistant", reasoning=secret_text(), tool_calls=(call,))
            return Reply(message, turn, ({"event": "odd", "detail": secret_text()},))
        return Reply(Message(role="assistant", content=f"{secret_text()}\n#### 24"), turn)


def leaky(spec, script, settings):
    return _Leaky(spec.params["how"], script.endpoint_failures == 0)
