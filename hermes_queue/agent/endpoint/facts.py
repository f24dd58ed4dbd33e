"""Facts about a model server: its version, and the distribution of its logprobs.

Asked once per endpoint, model and process. Without the distribution, logprobs cannot be
interpreted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from hermes_queue.agent.endpoint.recent import Recent
from hermes_queue.agent.tokens.servers.base import Server, clean

logger = logging.getLogger(__name__)

RAW = "raw_logprobs"
"""Logprobs of the model's own distribution, independent of sampling parameters (vLLM's name)."""
PROCESSED = "processed_logprobs"
"""Logprobs of the distribution sampled from: after temperature and the like (vLLM's name)."""

ASK_TIMEOUT_S = 60.0
"""Limit of all questions together."""
VERSION_CHARACTERS = 100
"""Longest version text; it is repeated in each turn."""
FRESH_S = 600.0
"""Age after which the facts are asked for again: a restarted server may have another version."""

_APART = 0.5
"""Least difference in nats between the compared tokens; equal ones show no temperature."""
_TEMPERATURE = 2.0
"""Highest temperature that vLLM accepts."""

Ask = Callable[[str, Mapping[str, Any] | None], Awaitable[tuple[int, Any]]]
"""(path below the server's root or its `/v1`, or URL; body or None for a GET) -> (HTTP status,
decoded JSON). Status 0 or None: no usable answer. Raises only CancelledError and TimeoutError."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Facts about one server and model; None = unknown."""

    version: str | None = None
    """Name and version, e.g. `vllm 0.32.0`."""
    logprobs_mode: str | None = None
    """`RAW` or `PROCESSED`."""


_Key = tuple[str, str, bool]
_Loop = asyncio.AbstractEventLoop
_known: WeakKeyDictionary[_Loop, Recent[_Key, tuple[ServerFacts, float]]] = WeakKeyDictionary()
_locks: WeakKeyDictionary[_Loop, WeakValueDictionary[Hashable, asyncio.Lock]] = WeakKeyDictionary()
"""A lock is there for as long as anybody holds it or waits for it."""


def one_at_a_time(key: Hashable) -> asyncio.Lock:
    """The running loop's lock for questions about `key`."""
    locks = _locks.setdefault(asyncio.get_running_loop(), WeakValueDictionary())
    return locks.setdefault(key, asyncio.Lock())


async def server_facts(
    ask: Ask, server: str, model: str, kinds: Mapping[str, Server], *, logprobs: bool
) -> ServerFacts:
    """The facts, from this process's cache or from the server, one of `kinds`; never fails.

    Ask after the server, the endpoint's URL without credentials, has answered something else: what
    it does not answer stays unknown only until the next call. Finding out the mode of its
    `logprobs` takes two completions.
    """
    key = (server, model, logprobs)
    async with one_at_a_time(key):
        known = _known.setdefault(asyncio.get_running_loop(), Recent())
        facts, until = known.get(key) or (ServerFacts(), 0.0)
        if time.monotonic() < until:
            return facts
        asking = _Asking(ask, model, kinds)
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                version = await asking.version()
                found = ServerFacts(version, await asking.logprobs_mode() if logprobs else None)
        except TimeoutError:
            return facts
        if asking.failed:
            return facts
        known.keep(key, (found, time.monotonic() + FRESH_S))
    logger.info(
        "%s serves %s with %s, logprobs %s",
        server,
        model,
        found.version or "an unknown server",
        found.logprobs_mode or "of unknown mode",
        extra={"action": "server_facts"},
    )
    return found


class _Asking:
    """One round of questions."""

    def __init__(self, ask: Ask, model: str, kinds: Mapping[str, Server]) -> None:
        self.failed = False
        """Whether an answer is missing that a later round may get."""
        self._ask = ask
        self._model = model
        self._kinds = kinds

    async def version(self) -> str | None:
        for name, kind in self._kinds.items():
            answer = await self._answer(kind.version_path, None)
            version = answer.get("version") if isinstance(answer, Mapping) else None
            if version and isinstance(version, str):
                return clean(f"{name} {version}"[:VERSION_CHARACTERS])
        return None

    async def logprobs_mode(self) -> str | None:
        """Find out whether the temperature of a request changes its logprobs; None = undecided.

        No server reports it, so one token is sampled twice at different temperatures. The
        difference between the most likely tokens is either divided by the temperature or
        unchanged; noise of low precision is too small to confuse the two.
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
        answer = await self._answer("/v1/chat/completions", body)
        try:
            [token] = answer["choices"][0]["logprobs"]["content"]
            return {str(top["token"]): float(top["logprob"]) for top in token["top_logprobs"]}
        except (TypeError, KeyError, ValueError, IndexError):
            return {}

    async def _answer(self, path: str, body: Mapping[str, Any] | None) -> Any:
        status, answer = await self._ask(path, body)
        # Unknown paths and rejected fields stay so; other failures may pass.
        self.failed |= status not in (200, 400, 404, 405, 422)
        return answer if status == 200 else None
