"""Does the endpoint's chat template show `tools` to the model, or drop them?

Some templates drop them silently, and every trajectory would then fail because the agent has
never seen its tools. The probe counts the tokens of one prompt with and without a large tool: with
the server's tokenizer (servers of token mode), else from the usage of two completions of one token.

Each endpoint and model is probed once. The result is kept in the process and, if a worker has
set one (`share`), in a cache for all workers.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

from hermes_queue.agent.endpoint.facts import Ask, one_at_a_time
from hermes_queue.agent.endpoint.recent import Recent
from hermes_queue.agent.tokens.servers.base import TEMPLATE_FIELDS, Server
from hermes_queue.errors import ModelConfigError

logger = logging.getLogger(__name__)

ToolSupport = Literal["honoured", "dropped", "unknown"]

REQUEST_TIMEOUT_S = 30.0
RECHECK_S = 60.0
"""Lifetime of a verdict that a person is about to change, or that an outage caused."""

_MARGIN_TOKENS = 20
"""The tool and the control text are each several times as long in any tokenizer."""
_FILLER = "The first of these words says where the record is kept and the others say why. " * 4
_SHORT = [{"role": "user", "content": "Hello."}]
_LONG = [{"role": "user", "content": f"Hello. {_FILLER}"}]
_TOOL = {
    "type": "function",
    "function": {
        "name": "look_up_record",
        "description": _FILLER,
        "parameters": {"type": "object", "properties": {"record": {"type": "string"}}},
    },
}


class ProbeCache(Protocol):
    """Verdicts that workers share. May lose entries at any time; raises nothing."""

    async def load(self, endpoint: str, model: str) -> ToolSupport | None:
        """Another worker's verdict, if it is still valid."""

    async def save(self, endpoint: str, model: str, verdict: ToolSupport, ttl_s: float) -> None:
        """Share a verdict for `ttl_s` seconds."""


_shared: ProbeCache | None = None
_known: Recent[tuple[str, str], tuple[ToolSupport, float]] = Recent()


def share(cache: ProbeCache | None) -> None:
    """Share verdicts through `cache`; None ends sharing."""
    global _shared
    _shared = cache


def forget() -> None:
    """Drop this process's verdicts."""
    _known.clear()


class ToolProbe:
    """The probe of one endpoint and model."""

    def __init__(
        self, base_url: str, server: str, model: str, kinds: Mapping[str, Server], *, ttl_s: float
    ) -> None:
        """Prepare the probe of `model` at `base_url`; a verdict holds for `ttl_s`.

        `server` is the URL without credentials, for logs and caches; it is one of `kinds`, by name.
        """
        self.base_url = base_url.rstrip("/")
        self.model = model
        self.tokenizers = [kind.tokenizer_path for kind in kinds.values()]
        self._server = server.rstrip("/")
        self._ttl_s = ttl_s

    async def require_tools(
        self, send: Ask, sampling: Mapping[str, Any], *, deadline: float
    ) -> None:
        """Check that the template does not drop tools; asks the endpoint at most once.

        An endpoint that does not answer, or whose answers are inconclusive, passes. Of the job's
        `sampling`, the template fields and the name of its token cap are used; `deadline` is on the
        `time.monotonic()` clock.

        Raises:
            ModelConfigError: tools are dropped; the message names the remedies.
            TimeoutError: the deadline passed.
        """
        if await self.ask(send, sampling, deadline=deadline) == "dropped":
            raise ModelConfigError(
                f"tools_dropped: the chat template of {self.model} at {self._server} leaves "
                "`tools` out of the prompt, so that the agent would never see its tools. Put them "
                "into the conversation with --agent-param tools=prompted, or start the server "
                "with a template that renders them (vLLM, SGLang: --chat-template; llama.cpp: "
                "--jinja). --agent-param probe_tools=false skips this check."
            )

    async def ask(self, send: Ask, sampling: Mapping[str, Any], *, deadline: float) -> ToolSupport:
        """The verdict; arguments as in `require_tools`. Raises TimeoutError."""
        template = {key: sampling[key] for key in TEMPLATE_FIELDS if key in sampling}
        key = (self._server, self.model)
        if template:
            text = json.dumps(template, sort_keys=True, default=str)
            key = (key[0], f"{key[1]}#{hashlib.sha256(text.encode()).hexdigest()[:16]}")
        async with asyncio.timeout(deadline - time.monotonic()):
            async with one_at_a_time(key):
                return await self._verdict(key, _Asking(self, send, sampling, template))

    async def _verdict(self, key: tuple[str, str], asking: _Asking) -> ToolSupport:
        known, until = _known.get(key) or ("unknown", 0.0)
        if time.monotonic() < until:
            return known
        found = await _shared.load(*key) if _shared else None
        verdict: ToolSupport = found or await asking.verdict()
        outage = verdict == "unknown" and asking.failed
        ttl_s = self._ttl_s
        if outage or verdict == "dropped":
            ttl_s = min(ttl_s, RECHECK_S)
        _known.keep(key, (verdict, time.monotonic() + ttl_s))
        if found is None:
            if outage:
                return verdict  # the first completion will show the cause
            self._log(verdict)
            if _shared:
                await _shared.save(*key, verdict, ttl_s)
        return verdict

    def _log(self, verdict: ToolSupport) -> None:
        logger.log(
            logging.WARNING if verdict == "unknown" else logging.INFO,
            "whether the chat template of %s at %s shows tools to the model: %s",
            self.model,
            self._server,
            verdict,
            extra={"action": "tools_probe", "verdict": verdict},
        )


class _Asking:
    """Asks the endpoint in every known way until one is conclusive."""

    def __init__(
        self, probe: ToolProbe, send: Ask, sampling: Mapping[str, Any], template: dict[str, Any]
    ) -> None:
        self.failed = False
        """Whether an answer is missing that a later probe may get."""
        self._root = probe.base_url.removesuffix("/v1")
        self._tokenizers = probe.tokenizers
        self._body = {"model": probe.model, **template}
        self._send = send
        cap = "max_completion_tokens" if "max_completion_tokens" in sampling else "max_tokens"
        self._one_token = {cap: 1}

    async def verdict(self) -> ToolSupport:
        """The verdict. If a tokenizer says that tools are dropped, the usage has to confirm it.

        Servers may accept tools in completions and ignore them when they only count.
        """
        suspected = False
        for path in self._tokenizers:
            below = path.removeprefix("/v1")  # `_send` takes a path below /v1, or a URL
            place = self._root + path if below == path else below
            result = await self._compare(place, {}, _tokens)
            if result == "honoured":
                return result
            suspected = suspected or result == "dropped"
        result = await self._compare("/chat/completions", self._one_token, _prompt_tokens)
        return "dropped" if result == "unknown" and suspected else result

    async def _compare(
        self, path: str, more: Mapping[str, Any], count: Callable[[Any], int]
    ) -> ToolSupport:
        """Compare token counts with and without the tool; a longer message must have more."""

        async def counted(messages: list[dict[str, str]], **tools: Any) -> int:
            body = {**self._body, "messages": messages, **more, **tools}
            return await self._count(path, body, count)

        bare = await counted(_SHORT)
        given = await counted(_SHORT, tools=[_TOOL]) if bare else 0
        if not bare or not given:
            return "unknown"
        if given >= bare + _MARGIN_TOKENS:
            return "honoured"
        if given > bare:
            return "unknown"
        return "dropped" if await counted(_LONG) >= bare + _MARGIN_TOKENS else "unknown"

    async def _count(self, path: str, body: Mapping[str, Any], count: Callable[[Any], int]) -> int:
        """The server's token count; 0 = unknown."""
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                status, answer = await self._send(path, body)
        except TimeoutError:
            status, answer = 0, None
        # Unknown paths and rejected fields stay so; other failures may pass.
        self.failed |= status not in (200, 400, 404, 405, 422)
        if status != 200:
            return 0
        try:
            return max(0, count(answer))
        except (TypeError, ValueError, KeyError, AttributeError):
            return 0


def _tokens(answer: Any) -> int:
    tokens = answer.get("tokens")
    return len(tokens) if isinstance(tokens, list) else int(answer["count"])


def _prompt_tokens(answer: Any) -> int:
    return int(answer["usage"]["prompt_tokens"])
