"""A model server in a thread whose replies follow from the conversation that it is shown."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from json_server import json_server

Body = dict[str, Any]


@dataclass(frozen=True)
class Say:
    """A reply of the model."""

    text: str | None = None
    call: str | None = None
    arguments: dict[str, Any] | None = None
    prompt_tokens: int = 100
    completion_tokens: int = 10


@dataclass(frozen=True)
class Fail:
    """An answer of a server that fails."""

    status: int
    message: str = "the server is broken"


def replies_before(body: Body) -> int:
    """Number of the model's replies in the conversation."""
    return sum(message["role"] == "assistant" for message in body["messages"])


def steps(*replies: Say | Fail) -> Callable[[Body], Say | Fail]:
    """One reply after the other, the last one for ever."""
    return lambda body: replies[min(replies_before(body), len(replies) - 1)]


class ScriptedModel:
    """Answers Chat Completions by `play`, which tests may replace."""

    def __init__(self, play: Callable[[Body], Say | Fail]) -> None:
        self.play = play
        self.bodies: list[Body] = []
        self.wait_s = 0.0
        self.url = ""
        self._lock = threading.Lock()

    def respond(self, path: str, body: Body) -> tuple[int, Any]:
        if path == "/v1/models":
            return 200, {"object": "list", "data": [{"id": "policy"}]}
        if path != "/v1/chat/completions":
            return 404, {"error": {"message": "no such path"}}
        with self._lock:
            number = len(self.bodies)
            self.bodies.append(body)
        time.sleep(self.wait_s)
        reply = self.play(body)
        if isinstance(reply, Fail):
            return reply.status, {"error": {"message": reply.message}}
        message: dict[str, Any] = {"role": "assistant", "content": reply.text}
        if reply.call:
            function = {"name": reply.call, "arguments": json.dumps(reply.arguments)}
            call = {"id": f"call_{number}", "type": "function", "function": function}
            message["tool_calls"] = [call]
        choice = {
            "index": 0,
            "message": message,
            "finish_reason": "tool_calls" if reply.call else "stop",
        }
        usage = {
            "prompt_tokens": reply.prompt_tokens,
            "completion_tokens": reply.completion_tokens,
            "total_tokens": reply.prompt_tokens + reply.completion_tokens,
        }
        return 200, {
            "id": f"chatcmpl-{number}",
            "object": "chat.completion",
            "created": 1,
            "model": "policy",
            "choices": [choice],
            "usage": usage,
        }


@contextmanager
def scripted_model(play: Callable[[Body], Say | Fail]) -> Iterator[ScriptedModel]:
    """The model, listening at its `url`."""
    model = ScriptedModel(play)
    with json_server(lambda path, body, _: model.respond(path, body)) as url:
        model.url = f"{url}/v1"
        yield model
