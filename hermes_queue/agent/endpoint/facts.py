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

from hermes_queue.agent.endpoint.values import clean
from hermes_queue.agent.tokens.servers.base import Server

logger = logging.getLogger(__name__)

RAW = "raw_logprobs"
"""Of the model's own distribution, whatever the sampling (vLLM's name)."""
PROCESSED = "processed_logprobs"
"""Of the distribution that was sampled from: after temperature and the like (vLLM's name)."""

ASK_TIMEOUT_S = 60.0
"""For all questions together."""
VERSION_CHARACTERS = 100
"""Of what a server says it is; it is repeated in each turn."""
FRESH_S = 600.0
"""A server may be started again, in another version."""

_APART = 0.5
"""Nats between the tokens that are compared; of equal likelihood, any temperature leaves them."""
_TEMPERATURE = 2.0
"""The highest that vLLM takes."""

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


async def server_facts(
    ask: Ask, server: str, model: str, kinds: Mapping[str, Server], *, logprobs: bool
) -> ServerFacts:
    """The facts, from this process's memory or from the server; never fails.

    Best asked after the server has answered something else: what it does not answer stays
    unknown only until the next call.

    Args:
        ask: reaches the server.
        server: the endpoint without credentials.
        model: its name there.
        kinds: the kinds of server that it may be of, by name.
        logprobs: whether to find out what logprobs mean, which takes two completions.
    """
    loop = asyncio.get_running_loop()
    key = (server, model, logprobs)
    async with _locks.setdefault(loop, {}).setdefault(key, asyncio.Lock()):
        known = _known.setdefault(loop, {})
        facts, until = known.get(key, (ServerFacts(), 0.0))
        if time.monotonic() < until:
            return facts
        asking = _Asking(ask, model, kinds)
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                found = await asking.facts(logprobs=logprobs)
        except TimeoutError:
            return facts
        if asking.failed:
            return facts
        known[key] = found, time.monotonic() + FRESH_S
    logger.info(
        "%s serves %s with %s, logprobs %s",
        server,
        model,
        found.version or "an unknown server",
        found.logprobs_mode or "not known",
        extra={"action": "server_facts"},
    )
    return found


class _Asking:
    """One round of questions."""

    def __init__(self, ask: Ask, model: str, kinds: Mapping[str, Server]) -> None:
        self.failed = False
        """Whether an answer is missing that might come another time."""
        self._ask = ask
        self._model = model
        self._kinds = kinds

    async def facts(self, *, logprobs: bool) -> ServerFacts:
        """What the server says."""
        version = await self._version()
        return ServerFacts(version, await self._logprobs_mode() if logprobs else None)

    async def _version(self) -> str | None:
        for name, kind in self._kinds.items():
            said = await self._said(kind.version_path, None)
            version = said.get("version") if isinstance(said, Mapping) else None
            if version and isinstance(version, str):
                return clean(f"{name} {version}"[:VERSION_CHARACTERS])
        return None

    async def _logprobs_mode(self) -> str | None:
        """Whether the temperature of a request changes its logprobs; None = undecided.

        No server tells it, so one token is sampled twice at different temperatures. How far the
        most likely tokens are apart is divided by the temperature, or it stays as it is; noise
        of low precision is far from either.
        """
        plain = await self._top_logprobs(1.0)
        heated = await self._top_logprobs(_TEMPERATURE)
        shared = sorted(plain.keys() & heated.keys(), key=plain.__getitem__)
        if not shared:
            return None
        low, high = shared[0], shared[-1]
        apart = plain[high] - plain[low]
        if apart < _APART:
            return None
        kept = (heated[high] - heated[low]) / apart
        return RAW if kept > 0.8 else PROCESSED if kept < 0.65 else None

    async def _top_logprobs(self, temperature: float) -> dict[str, float]:
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": "Hello."}],
            "max_tokens": 1,
            "temperature": temperature,
            "logprobs": True,
            "top_logprobs": 5,
        }
        said = await self._said("/v1/chat/completions", body)
        try:
            [token] = said["choices"][0]["logprobs"]["content"]
            return {str(top["token"]): float(top["logprob"]) for top in token["top_logprobs"]}
        except (TypeError, KeyError, ValueError, IndexError):
            return {}

    async def _said(self, path: str, body: Mapping[str, Any] | None) -> Any:
        status, said = await self._ask(path, body)
        # A path that is not there, or a field that is not taken, stays so.
        self.failed |= status not in (200, 400, 404, 405, 422)
        return said if status == 200 else None
