"""Plain prompts without a verifier: trajectories as data, without scores.

Rows may have one of the public forms of prompts, which are read as `prompt` or `messages`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from producers.base import Producer, main

PromptRow = Mapping[str, Any]

_EXAMPLES = """\
plain prompts:
  every prompt of a file, 2 samples each, written as a dataset when they are done:
    python -m producers.prompts --dataset prompts.jsonl --items all --group-size 2 \\
        --agent openai --model MODEL --base-url http://127.0.0.1:8000/v1 --out trajectories.jsonl
  a row has `prompt` (and perhaps `system`), or `messages`:
    {"prompt": "Write a haiku about queues into haiku.txt"}
    {"messages": [{"role": "user", "content": "What does `find . -newer x` print?"}]}
  or one of these forms: `prompt` as messages (TRL, verl, verifiers), `input` and `target`
  (Inspect), `conversations` (ShareGPT), `instruction` (Alpaca), `body` (OpenAI batch)

"""

_ROLES = {"human": "user", "gpt": "assistant", "developer": "system"}
"""Names of roles in other forms -> ours."""


def _conversation(messages: Any) -> dict[str, Any]:
    """`messages`, and as `response` the answer in which they end."""
    if not isinstance(messages, list) or not all(isinstance(each, Mapping) for each in messages):
        return {"messages": messages}
    read = [_message(each) for each in messages]
    response = read.pop()["content"] if read and read[-1]["role"] == "assistant" else ""
    return {"messages": read, **({"response": response} if isinstance(response, str) else {})}


def _message(message: PromptRow) -> dict[str, Any]:
    role = message.get("role", message.get("from"))
    content = message.get("content", message.get("value"))
    if isinstance(content, list) and all(
        isinstance(part, Mapping) and part.get("type") == "text" for part in content
    ):
        content = "".join(str(part.get("text")) for part in content)
    return {"role": _ROLES.get(str(role), role), "content": content}


def _alpaca(row: PromptRow) -> dict[str, Any]:
    parts = [text for text in (row["instruction"], row.get("input")) if text]
    whole = "\n\n".join(map(str, parts))
    return {"prompt": whole, "response": str(row.get("output") or "")}


def _inspect(row: PromptRow) -> dict[str, Any]:
    read = _asked(row["input"])
    target = row.get("target")
    answer = {"response": target} if isinstance(target, str) else {}
    return {**answer, **read, **({"instance_id": str(row["id"])} if row.get("id") else {})}


def _asked(prompt: Any) -> dict[str, Any]:
    return {"prompt": prompt} if isinstance(prompt, str) else _conversation(prompt)


def _batch(row: PromptRow) -> dict[str, Any]:
    read = _conversation(row["body"].get("messages"))
    return {**read, **({"instance_id": row["custom_id"]} if row.get("custom_id") else {})}


_FORMS: tuple[tuple[Callable[[PromptRow], bool], Callable[[PromptRow], dict[str, Any]]], ...] = (
    (lambda row: isinstance(row.get("prompt"), list), lambda row: _conversation(row["prompt"])),
    (lambda row: bool(row.get("prompt") or row.get("messages")), lambda _: {}),
    (lambda row: isinstance(row.get("body"), Mapping), _batch),
    (lambda row: bool(row.get("conversations")), lambda row: _conversation(row["conversations"])),
    (lambda row: isinstance(row.get("instruction"), str), _alpaca),
    (lambda row: bool(row.get("input")), _inspect),
)
"""Whether a row has a form, and what is read of it; the first one counts."""


def _prepare(row: dict[str, Any], _: object) -> dict[str, Any]:
    read = next((read(row) for fits, read in _FORMS if fits(row)), {})
    if "messages" in read:
        row = {key: value for key, value in row.items() if key != "prompt"}
    return {**read, **row, **{key: read[key] for key in ("messages", "prompt") if key in read}}


PRODUCER = Producer(
    name="prompts",
    env="prompts",
    description="Plain prompts as trajectory jobs, without a verifier and so without scores.",
    prepare=_prepare,
    examples=_EXAMPLES,
)

if __name__ == "__main__":
    sys.exit(main(PRODUCER))
