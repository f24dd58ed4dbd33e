"""An OpenAI-compatible HTTP server in a thread, as healthy or broken as a test wants it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from json_server import json_server


class OpenAIStub:
    """State and behaviour of the server; tests change the attributes."""

    def __init__(self) -> None:
        self.models = ["small"]
        self.key: str | None = None
        self.shows_tools = True
        self.token_ids = True
        self.reply: Any = None
        """In place of a completion."""

    def completion(self, body: dict[str, Any]) -> Any:
        if self.reply is not None:
            return self.reply
        text = json.dumps(body["messages"])
        if self.shows_tools:
            text += json.dumps(body.get("tools", ""))
        choice: dict[str, Any] = {
            "index": 0,
            "message": {"role": "assistant", "content": "yes"},
            "finish_reason": "length",
        }
        answer = {
            "choices": [choice],
            "usage": {"prompt_tokens": len(text), "completion_tokens": 1},
        }
        if self.token_ids:
            answer["prompt_token_ids"] = [1, 2, 3]
            choice["token_ids"] = [4]
            choice["logprobs"] = {"content": [{"logprob": -0.5}]}
        return answer

    def respond(self, path: str, body: dict[str, Any], key: str) -> tuple[int, Any]:
        if self.key is not None and key != f"Bearer {self.key}":
            return 401, {"error": {"message": "wrong key"}}
        if path == "/v1/models":
            return 200, {"object": "list", "data": [{"id": name} for name in self.models]}
        if path != "/v1/chat/completions":
            return 404, {"error": {"message": "no such path"}}
        if body["model"] not in self.models:
            return 404, {"error": {"message": f"no model {body['model']}"}}
        return 200, self.completion(body)


@contextmanager
def openai_stub() -> Iterator[tuple[OpenAIStub, str]]:
    """The stub and its base URL."""
    stub = OpenAIStub()
    # Looked up in each call: tests replace it.
    with json_server(lambda *call: stub.respond(*call)) as url:
        yield stub, f"{url}/v1"
