"""A server of token ids, as vLLM and SGLang speak them: a token per character, and a template."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

PATHS = ("/tokenize", "/v1/tokenize", "/detokenize", "/v1/detokenize", "/generate")
PATHS += ("/v1/completions", "/v1/chat/completions")
CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
END = 3
"""Ends a turn, written as <|end|>."""
OTHER_END = 4
"""Ends a reply too, and no template writes it: as <|endoftext|> with Qwen's models."""


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


def logprob(position: int) -> float:
    """Logprob of the token at `position`; the value is not a float32."""
    return -0.1 - (position % 7) / 10


class TokenStub:
    """Plays `replies` (text, without the end of turn).

    A reply that ends in `...` is cut off, one that ends in `OTHER_END` is ended by that.
    """

    def __init__(self, replies: list[str], *, kind: str = "vllm", max_model_tokens: int = 4000):
        self.replies = replies
        self.kind = kind
        self.max_model_tokens = max_model_tokens
        self.template: Callable[..., str] = template
        self.processed = False
        """Return logprobs as after temperature."""
        self.version: str | None = "9.9"
        self.unwell: set[str] = set()
        """Paths that are answered with 503."""
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.break_reply: Callable[[dict[str, Any]], None] = lambda _: None
        self.gate: Callable[[str], Awaitable[object]] | None = None
        """Awaited with the path before an answer."""
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
                lengths = [int(h[15:]) for h in head if h.lower().startswith("content-length:")]
                data = await reader.readexactly(lengths[0]) if lengths else b"{}"
                path, body = head[0].split()[1], json.loads(data)
                self.requests.append((path, body))
                if self.gate:
                    await self.gate(path)
                known = path in PATHS or path == self._version_path
                answer = json.dumps(self._answer(path, body) if known else {}).encode()
                status = b"200 OK" if known else b"404 Not Found"
                status = b"400 Bad Request" if body.get("temperature", 0) > 2 else status
                status = b"503 Unwell" if path in self.unwell else status
                kind = b"HTTP/1.1 " + status + b"\r\ncontent-type: application/json\r\n"
                writer.write(kind + b"content-length: %d\r\n\r\n" % len(answer) + answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    @property
    def _version_path(self) -> str | None:
        paths = {"vllm": "/version", "sglang": "/get_server_info"}
        return paths[self.kind] if self.version else None

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
            case "/version" | "/get_server_info":
                return {"version": self.version}
            case "/v1/chat/completions":
                return self._top(body) if "top_logprobs" in body else self._chat(body)
        prompt = body.get("prompt") or body["input_ids"]
        if "prompt_logprobs" in body or "logprob_start_len" in body:
            return self._score(path, prompt)
        text = self.replies.pop(0)
        cut, other = text.endswith("..."), text.endswith(chr(OTHER_END))
        ids = encode(text) + ([] if cut or other else [END])
        logprobs = [logprob(len(prompt) + i) for i in range(len(ids))]
        if path == "/generate":
            meta = {
                "output_token_logprobs": [[p, i, None] for p, i in zip(logprobs, ids, strict=True)],
                "finish_reason": {"type": "length"}
                if cut
                else {"type": "stop", "matched": ids[-1]},
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
                "stop_reason": OTHER_END if other else None,
            }
            answer = {"choices": [choice], "usage": {"prompt_tokens": len(body["prompt"])}}
        self.break_reply(answer)
        return answer

    def _score(self, path: str, ids: list[int]) -> dict[str, Any]:
        scores = [None, *map(logprob, range(1, len(ids)))]
        pairs = list(zip(scores, ids, strict=True))
        answer: dict[str, Any]
        if path == "/generate":
            answer = {"meta_info": {"input_token_logprobs": [[p, i, None] for p, i in pairs]}}
        else:
            found = [p if p is None else {str(i): {"logprob": p, "rank": 1}} for p, i in pairs]
            answer = {"choices": [{"text": "x", "prompt_logprobs": found}]}
        self.break_reply(answer)
        return answer

    def _top(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """One token of three; what a temperature does to their logprobs is for real."""
        scores = {"a": 4.0, "b": 2.0, "c": 1.0}
        heat = body["temperature"] if self.processed else 1.0
        total = math.log(sum(math.exp(score / heat) for score in scores.values()))
        tops = [{"token": t, "logprob": score / heat - total} for t, score in scores.items()]
        choice = {"message": {"content": "a"}, "logprobs": {"content": [{"top_logprobs": tops}]}}
        return {"choices": [choice]}

    def _chat(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Calls parsed as servers do it: what was sampled is not what comes back."""
        prompt = encode(self.template(body["messages"], body.get("tools"), True))
        text = self.replies.pop(0)
        cut = text.endswith("...")
        ids = encode(text) + ([] if cut else [END])
        calls, content = [], text
        for number, raw in enumerate([] if cut else CALL.findall(text)):
            try:
                call = json.loads(raw)
                function = {"name": call["name"], "arguments": json.dumps(call["arguments"])}
            except (ValueError, KeyError, TypeError):
                continue
            call_id = f"c{len(prompt)}-{number}"
            calls.append({"id": call_id, "type": "function", "function": function})
            content = text.partition("<tool_call>")[0].strip()
        message = {"role": "assistant", "content": content or None, "tool_calls": calls}
        logprobs = [{"logprob": logprob(len(prompt) + i)} for i in range(len(ids))]
        choice: dict[str, Any] = {"message": message, "logprobs": {"content": logprobs}}
        choice["finish_reason"] = "length" if cut else "stop"
        answer: dict[str, Any] = {"choices": [choice], "usage": {"prompt_tokens": len(prompt)}}
        if self.kind == "vllm":
            answer["prompt_token_ids"], choice["token_ids"] = prompt, ids
        else:
            choice |= {"prompt_token_ids": prompt, "response_token_ids": ids}
            answer["metadata"] = {"weight_version": "7"}
        self.break_reply(answer)
        return answer
