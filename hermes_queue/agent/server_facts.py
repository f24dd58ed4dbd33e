"""What a model server is: its version, and of which distribution its logprobs are.

Asked once per endpoint, model and process; logprobs cannot be interpreted without it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

logger = logging.getLogger(__name__)

RAW = "raw_logprobs"
"""Of the model's own distribution, whatever the sampling (vLLM's name)."""
PROCESSED = "processed_logprobs"
"""Of the distribution that was sampled from: after temperature and the like (vLLM's name)."""

ASK_TIMEOUT_S = 60.0
"""For all questions together; what is not known by then stays unknown for `RETRY_S`."""
RETRY_S = 60.0
FRESH_S = 600.0
"""A server may be started again, in another version."""

_SAME = 0.02
"""Differences that two runs of one prompt may have on a GPU."""
_TEMPERATURE = 3.0

Ask = Callable[[str, Mapping[str, Any] | None], Awaitable[tuple[int, Any]]]
"""Path below the server's root and body (None: a GET) to (HTTP status, decoded JSON); status 0 or
None when there is no usable answer. Raises nothing but cancellation and TimeoutError."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Of one server and model; None = it does not say."""

    version: str | None = None
    """Name and version, e.g. `vllm 0.32.0`."""
    logprobs_mode: str | None = None
    """`RAW` or `PROCESSED`."""


_known: WeakKeyDictionary[
    asyncio.AbstractEventLoop, dict[tuple[str, str, bool], tuple[ServerFacts, float]]
] = WeakKeyDictionary()
_locks: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, str, bool], asyncio.Lock]] = (
    WeakKeyDictionary()
)


async def server_facts(ask: Ask, server: str, model: str, *, logprobs: bool) -> ServerFacts:
    """The facts, from this process's memory or from the server; never fails.

    Args:
        ask: reaches the server.
        server: the endpoint without credentials.
        model: its name there.
        logprobs: whether to find out what logprobs mean, which takes two completions.
    """
    loop = asyncio.get_running_loop()
    key = (server, model, logprobs)
    async with _locks.setdefault(loop, {}).setdefault(key, asyncio.Lock()):
        known = _known.setdefault(loop, {})
        facts, until = known.get(key, (ServerFacts(), 0.0))
        if time.monotonic() < until:
            return facts
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                facts = await _asked(ask, model, logprobs=logprobs)
        except TimeoutError:
            facts = ServerFacts()
        complete = facts.version and (facts.logprobs_mode or not logprobs)
        known[key] = facts, time.monotonic() + (FRESH_S if complete else RETRY_S)
    logger.info(
        "%s serves %s with %s, logprobs %s",
        server,
        model,
        facts.version or "an unknown server",
        facts.logprobs_mode or "not known",
        extra={"action": "server_facts"},
    )
    return facts


async def _asked(ask: Ask, model: str, *, logprobs: bool) -> ServerFacts:
    version = None
    _, said = await ask("/version", None)
    if isinstance(said, Mapping) and said.get("version"):
        version = f"vllm {said['version']}"
    else:
        _, said = await ask("/get_server_info", None)
        if isinstance(said, Mapping) and said.get("version"):
            version = f"sglang {said['version']}"
    mode = await _logprobs_mode(ask, model) if logprobs else None
    return ServerFacts(version, mode)


async def _logprobs_mode(ask: Ask, model: str) -> str | None:
    """Whether the temperature of a request changes its logprobs; None = undecided.

    No server tells it, so one token is sampled twice at different temperatures: the most likely
    tokens are the same, and their logprobs differ only where the temperature is applied to them.
    """
    plain = await _top_logprobs(ask, model, 1.0)
    heated = await _top_logprobs(ask, model, _TEMPERATURE)
    shared = plain.keys() & heated.keys()
    # Of equal likelihood, any temperature leaves all as they are.
    if not shared or max(plain.values()) - min(plain.values()) < 10 * _SAME:
        return None
    moved = max(abs(plain[token] - heated[token]) for token in shared)
    if moved <= _SAME:
        return RAW
    return PROCESSED if moved > 5 * _SAME else None


async def _top_logprobs(ask: Ask, model: str, temperature: float) -> dict[str, float]:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Hello."}],
        "max_tokens": 1,
        "temperature": temperature,
        "logprobs": True,
        "top_logprobs": 5,
    }
    _, said = await ask("/v1/chat/completions", body)
    try:
        [token] = said["choices"][0]["logprobs"]["content"]
        return {str(top["token"]): float(top["logprob"]) for top in token["top_logprobs"]}
    except (TypeError, KeyError, ValueError, IndexError):
        return {}

