"""The number of tokens of a conversation, as the model's own server counts them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hermes_queue.agent.endpoint.facts import Ask
from hermes_queue.agent.tokens.servers.base import Server

TIMEOUT_S = 30.0


async def count_tokens(
    ask: Ask,
    kinds: Iterable[Server],
    model: str,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
) -> int | None:
    """Tokens of the prompt; None if the server, one of `kinds`, does not say.

    `ask` takes paths below the server's root.
    """
    body: dict[str, Any] = {"model": model, "messages": list(messages)}
    if tools:
        body["tools"] = list(tools)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            for kind in kinds:
                status, answer = await ask(kind.tokenizer_path, body)
                if status == 200 and (found := _count(answer)):
                    return found
    except TimeoutError:
        return None
    return None


def _count(answer: Any) -> int:
    try:
        tokens = answer.get("tokens")
        return len(tokens) if isinstance(tokens, list) else max(0, int(answer["count"]))
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError):
        return 0
