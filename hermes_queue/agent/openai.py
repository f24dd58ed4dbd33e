"""Chat completions of an OpenAI-compatible endpoint (OpenAI, vLLM, SGLang, proxies).

The SDK's own retries are off: the loop here knows the trajectory's deadline, and tells
what may be tried again from what a person must fix (`_classify`).
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import random
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from hermes_queue.agent.chat import Reply
from hermes_queue.agent.endpoints import choose_endpoint, split_urls
from hermes_queue.agent.limiter import Permit
from hermes_queue.agent.registry import AgentScript
from hermes_queue.agent.reply import Completion, MalformedReply, parse, to_wire
from hermes_queue.errors import (
    ContextLengthExceeded,
    ModelConfigError,
    ModelError,
    TrajectoryFailure,
)
from hermes_queue.models import AgentSpec, Message, Turn
from hermes_queue.settings import ModelSettings

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 5.0
BACKOFF_S = 0.5
"""Before the second try; doubles, at most `BACKOFF_MAX_S`, minus up to a quarter of jitter."""
BACKOFF_MAX_S = 8.0
PAUSE_S = 1.0
"""Between two tries at an endpoint that is paused and does not say for how long."""

PAUSE_HEADERS = ("x-agl-paused",)
"""With 429 or 503: no request is served for now, e.g. while weights are updated. The name is
agent-lightning's (its proxy)."""
SESSION_HEADER = "X-Session-ID"
"""Routers of several servers keep a session's requests at one of them (SkyRL's convention)."""
ESTIMATED_COMPLETION_TOKENS = 512
"""Of a call whose `max_tokens` says nothing."""

_RESERVED = frozenset({"model", "messages", "tools", "stream", "n"})
_CONTEXT_PHRASES = (
    "maximum context length",  # OpenAI, vLLM
    "model's context length",  # SGLang
    "context_length_exceeded",
    "exceeds the available context",  # llama.cpp
    "prompt is too long",
)
_TRANSIENT = frozenset({408, 409, 425, 429})

_clients: WeakKeyDictionary[
    asyncio.AbstractEventLoop, dict[tuple[int, str | None, str, float], AsyncOpenAI]
] = WeakKeyDictionary()
"""A client is bound to its loop and must not cross a fork, hence also the pid in the key."""


class OpenAIChat:
    """One trajectory's view of an endpoint; connections are shared by all of them.

    Agent params: {"token_ids": true} asks for token ids and logprobs and fails without
    them; {"logprobs_mode": text} is recorded with them.
    """

    def __init__(self, spec: AgentSpec, script: AgentScript, settings: ModelSettings) -> None:
        if not spec.model:
            raise ModelConfigError("agent openai: no model is named; use --model")
        self._model = spec.model
        self._wants_ids = bool(spec.params.get("token_ids"))
        self._logprobs_mode = spec.params.get("logprobs_mode")
        self._settings = settings
        urls = split_urls(spec.base_url or settings.base_url or os.environ.get("OPENAI_BASE_URL"))
        self._base_url = (
            choose_endpoint(urls, script.group_id, script.endpoint_failures) if urls else None
        )
        self._limiter = script.limiter
        self._trajectory_id = script.trajectory_id
        key = settings.api_key.get_secret_value() if settings.api_key else None
        self._api_key = key or os.environ.get("OPENAI_API_KEY") or "none"
        if self._base_url is None and self._api_key == "none":
            raise ModelConfigError(
                "agent openai: neither an endpoint nor a key; use --base-url, or set "
                "HERMES_QUEUE_MODEL_BASE_URL or HERMES_QUEUE_MODEL_API_KEY"
            )
        self._reasoning_field: str | None = None
        self._rewritten: set[str] = set()
        self._turn = 0

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        sampling: Mapping[str, Any],
        deadline: float,
    ) -> Reply:
        """See `ChatClient.complete`.

        The deadline is the agent's only while the endpoint works: when it passes after a
        try that failed, that is a `ModelError`, never an outcome to score. Waiting, for leave
        or before another try, is not counted; but a failing endpoint that wants a longer wait
        than the agent has time left is given up, which frees the slot. One that says it is
        paused is waited for.
        """
        body, events = self._body(messages, tools, sampling)
        tokens = _estimate_tokens(body)
        last: Exception | None = None
        waited_s = delay_s = 0.0
        failures = 0
        while True:
            async with self._limiter.slot(
                self._server, self._model, estimate_tokens=tokens, delay_s=delay_s
            ) as permit:
                waited_s += permit.waited_s
                started = time.monotonic()
                try:
                    outcome = await self._try(body, deadline + waited_s - started, permit)
                except TimeoutError:
                    if last is None:
                        raise
                    break
            if isinstance(outcome, Completion):
                latency_s = time.monotonic() - started
                return self._reply(outcome, body, latency_s, events, waited_s)
            if _is_pause(outcome):
                delay_s = _retry_after_s(outcome) or PAUSE_S
                patience_s = self._settings.pause_max_s - waited_s
            else:
                last, failures = outcome, failures + 1
                delay_s = _delay_s(outcome, failures)
                patience_s = deadline + waited_s - time.monotonic()
            if failures > self._settings.max_retries or delay_s > patience_s:
                last = outcome
                break
        raise ModelError(f"{self._server} failed, last: {_describe(last)}") from last

    async def _try(
        self, body: Mapping[str, Any], left_s: float, permit: Permit
    ) -> Completion | Exception:
        """One request; returns what was wrong if it may be made again.

        Raises:
            TimeoutError: `left_s` is over.
            TrajectoryFailure: it would be in vain to repeat it.
        """
        try:
            async with asyncio.timeout(left_s) as timer:
                completion = await self._post(body)
        except TimeoutError as error:
            if timer.expired():
                raise
            return error
        except Exception as error:
            failure = _classify(error, first_turn=self._turn == 0)
            if failure is not None:
                raise failure from error
            logger.warning(
                "model call failed: %s", _describe(error), extra={"action": "model_retry"}
            )
            if _is_pause(error) or _status(error) == 429:
                permit.refused(_retry_after_s(error), paused=_is_pause(error))
            return error
        permit.settle(completion.usage)
        return completion

    def _body(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        sampling: Mapping[str, Any],
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        if reserved := sorted(_RESERVED & sampling.keys()):
            raise ModelConfigError(f"sampling must not set {', '.join(reserved)}")
        wire, rewritten = to_wire(messages, self._reasoning_field)
        body: dict[str, Any] = {"model": self._model, "messages": wire, **sampling}
        if tools:
            body["tools"] = list(tools)
        if self._wants_ids:
            body.update(return_token_ids=True, logprobs=True)
        new = [call_id for call_id in rewritten if call_id not in self._rewritten]
        self._rewritten.update(new)
        return body, [{"event": "arguments_rewritten", "call": call_id} for call_id in new]

    async def _post(self, body: Mapping[str, Any]) -> Completion:
        """One request, bounded as a whole: the SDK's timeout is per read from the socket."""
        import httpx2

        headers = {SESSION_HEADER: self._trajectory_id} if self._trajectory_id else {}
        async with asyncio.timeout(self._settings.request_timeout_s):
            response = await self._client().post(
                "/chat/completions",
                body=dict(body),
                cast_to=httpx2.Response,
                options={"headers": headers},
            )
        return parse(response.content, turn=self._turn)

    def _reply(
        self,
        completion: Completion,
        body: Mapping[str, Any],
        latency_s: float,
        events: list[dict[str, Any]],
        waited_s: float,
    ) -> Reply:
        if self._wants_ids and (completion.completion_ids is None or completion.logprobs is None):
            raise ModelConfigError(
                f"{self._server} sends no token ids or logprobs, which this run asks for"
            )
        self._turn += 1
        self._reasoning_field = completion.reasoning_field or self._reasoning_field
        turn = Turn(
            prompt_ids=completion.prompt_ids,
            completion_ids=completion.completion_ids,
            logprobs=completion.logprobs,
            logprobs_mode=self._logprobs_mode,
            sampling={k: v for k, v in body.items() if k not in ("messages", "tools")},
            server=self._server,
            policy_version=completion.policy_version,
            finish_reason=completion.finish_reason,
            usage=completion.usage,
            latency_s=round(latency_s, 4),
        )
        return Reply(completion.message, turn, tuple(events), waited_s)

    def _client(self) -> AsyncOpenAI:
        import openai

        clients = _clients.setdefault(asyncio.get_running_loop(), {})
        timeout_s = self._settings.request_timeout_s
        key = (os.getpid(), self._base_url, self._api_key, timeout_s)
        if key not in clients:
            clients[key] = openai.AsyncOpenAI(
                base_url=self._base_url,
                api_key=self._api_key,
                max_retries=0,
                timeout=openai.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S),
            )
        return clients[key]

    @property
    def _server(self) -> str:
        """The endpoint without credentials in its URL."""
        url = self._base_url or "https://api.openai.com/v1"
        scheme, _, rest = url.rpartition("://")
        return f"{scheme}://{rest.rpartition('@')[2]}"


async def close_clients() -> None:
    """Close the running loop's connections. Later calls open new ones."""
    for client in _clients.pop(asyncio.get_running_loop(), {}).values():
        await client.close()


def _classify(error: Exception, *, first_turn: bool) -> TrajectoryFailure | None:
    """The failure that `error` means; None = try again."""
    import openai

    if isinstance(error, openai.APIConnectionError | MalformedReply):
        return None
    if not isinstance(error, openai.APIStatusError):
        raise error
    if _is_overflow(error, first_turn=first_turn):
        return ContextLengthExceeded(_describe(error))
    if error.status_code == 429 and error.code == "insufficient_quota":
        return ModelConfigError(_describe(error))
    if error.status_code in _TRANSIENT or error.status_code >= 500:
        return None
    return ModelConfigError(_describe(error))


def _is_overflow(error: APIStatusError, *, first_turn: bool) -> bool:
    """Whether the conversation is too long; there is no common code for it.

    A `max_tokens` that never fitted is a mistake in the job. One that fitted at first is
    a conversation that has grown.
    """
    if error.status_code not in (400, 413):
        return error.code == "context_length_exceeded"
    text = f"{error.message} {error.body}".lower()
    about_max_tokens = getattr(error, "param", None) in ("max_tokens", "max_completion_tokens")
    if about_max_tokens and first_turn:
        return False
    return error.status_code == 413 or any(phrase in text for phrase in _CONTEXT_PHRASES)


def _delay_s(error: Exception, failures: int) -> float:
    """How long to wait after so many failures: what the server asks for, else our backoff."""
    asked_s = _retry_after_s(error)
    if asked_s is not None:
        return asked_s
    backoff_s: float = min(BACKOFF_MAX_S, BACKOFF_S * 2 ** (failures - 1))
    return backoff_s * random.uniform(0.75, 1.0)  # noqa: S311 - jitter, no secret


def _retry_after_s(error: Exception) -> float | None:
    """What the server asks for; a date is not understood, since clocks differ."""
    for name, unit_s in (
        ("retry-after-ms", 0.001),
        ("retry-after", 1.0),
        ("llm_provider-retry-after", 1.0),
    ):
        try:
            asked_s = float(_headers(error)[name]) * unit_s
        except (KeyError, ValueError):
            continue
        if math.isfinite(asked_s):
            return max(0.0, asked_s)
    return None


def _is_pause(error: Exception) -> bool:
    """Whether the endpoint serves nobody for now, rather than refusing or failing this call."""
    return _status(error) in (429, 503) and any(name in _headers(error) for name in PAUSE_HEADERS)


def _status(error: Exception) -> int | None:
    import openai

    return error.status_code if isinstance(error, openai.APIStatusError) else None


def _headers(error: Exception) -> Mapping[str, str]:
    import openai

    return error.response.headers if isinstance(error, openai.APIStatusError) else {}


def _estimate_tokens(body: Mapping[str, Any]) -> int:
    """Roughly what a call will use: four characters a token, and the whole completion."""
    characters = sum(
        len(text)
        for message in body["messages"]
        for text in (
            message.get("content") or "",
            *(call["function"]["arguments"] for call in message.get("tool_calls", ())),
        )
    )
    cap = body.get("max_completion_tokens") or body.get("max_tokens")
    return characters // 4 + (cap or ESTIMATED_COMPLETION_TOKENS)


def _describe(error: Exception | None) -> str:
    text = str(error) or type(error).__name__
    return f"{type(error).__name__}: {text}"[:1000]
