"""A server of token ids, as vLLM and SGLang speak them: a token per character, and a template."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

PATHS = ("/tokenize", "/v1/tokenize", "/detokenize", "/v1/detokenize", "/generate")
PATHS += ("/v1/completions",)
END = 3
"""Ends a turn, written as <|end|>."""


def encode(text: str) -> list[int]:
    ids: list[int] = []
    for part in text.split("<|end|>"):
        ids += [END, *map(ord, part)] if ids or part != text.split("<|end|>")[0] else map(ord, part)
    return ids


def decode(ids: list[int]) -> str:
    return "".join("<|end|>" if i == END else chr(i) for i in ids)


def template(messages: list[dict[str, Any]], tools: Any, reply: bool) -> str:
    """ChatML of a kind; it writes the arguments of calls in its own way."""
    text = f"tools {json.dumps(tools)}<|end|>\n" if tools else ""
    for message in messages:
        body = message.get("content") or ""
        for call in message.get("tool_calls", ()):
            function = call["function"]
            arguments = json.dumps(json.loads(function["arguments"]))
            body += f'<tool_call>{{"name": "{function["name"]}", "arguments": {arguments}}}'
            body += "</tool_call>"
        text += f"{message['role']}:{body}<|end|>\n"
    return text + ("assistant:" if reply else "")


class TokenStub:
    """Plays `replies` (text, without the end of turn); a reply ending in `...` is cut off."""

    def __init__(self, replies: list[str], *, kind: str = "vllm", max_model_tokens: int = 4000):
        self.replies = replies
        self.kind = kind
        self.max_model_tokens = max_model_tokens
        self.template: Callable[..., str] = template
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.break_reply: Callable[[dict[str, Any]], None] = lambda _: None
        self.url = ""

    async def __aenter__(self) -> TokenStub:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
                length = next(int(h[15:]) for h in head if h.lower().startswith("content-length:"))
                body = json.loads(await reader.readexactly(length))
                path = head[0].split()[1]
                self.requests.append((path, body))
                answer = json.dumps(self._answer(path, body) if path in PATHS else {}).encode()
                status = b"200 OK" if path in PATHS else b"404 Not Found"
                kind = b"HTTP/1.1 " + status + b"\r\ncontent-type: application/json\r\n"
                writer.write(kind + b"content-length: %d\r\n\r\n" % len(answer) + answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _answer(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        match path:
            case "/tokenize" | "/v1/tokenize":
                text = self.template(
                    body["messages"], body.get("tools"), body.get("add_generation_prompt", True)
                )
                return {"tokens": encode(text), "max_model_len": self.max_model_tokens}
            case "/detokenize":
                return {"prompt": decode(body["tokens"])}
            case "/v1/detokenize":
                return {"text": decode(body["tokens"])}
        text = self.replies.pop(0)
        cut = text.endswith("...")
        ids = encode(text) + ([] if cut else [END])
        logprobs = [-0.25 - (i % 7) / 8 for i in range(len(ids))]
        if path == "/generate":
            meta = {
                "output_token_logprobs": [[p, i, None] for p, i in zip(logprobs, ids, strict=True)],
                "finish_reason": {"type": "length"} if cut else {"type": "stop", "matched": END},
                "weight_version": "7",
                "prompt_tokens": len(body["input_ids"]),
                "completion_tokens": len(ids),
            }
            answer: dict[str, Any] = {"text": text, "meta_info": meta}
        else:
            choice = {
                "text": text,
                "token_ids": ids,
                "logprobs": {"token_logprobs": logprobs},
                "finish_reason": "length" if cut else "stop",
                "stop_reason": None,
            }
            answer = {"choices": [choice], "usage": {"prompt_tokens": len(body["prompt"])}}
        self.break_reply(answer)
        return answer
