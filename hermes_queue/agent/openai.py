"""Chat completions of an OpenAI-compatible endpoint (OpenAI, vLLM, SGLang, proxies).

The SDK's own retries are off: the loop here knows the trajectory's deadline, and tells
what may be tried again from what a person must fix (`_classify`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from hermes_queue.agent.chat import Reply
from hermes_queue.agent.dialect import ToolDialect
from hermes_queue.agent.probe import ToolProbe
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
    them; {"logprobs_mode": text} is recorded with them; {"probe_tools": false} trusts
    the chat template to show tools (`ToolProbe`); those of `ToolDialect`.
    """

    def __init__(self, spec: AgentSpec, script: AgentScript, settings: ModelSettings) -> None:
        if not spec.model:
            raise ModelConfigError("agent openai: no model is named; use --model")
        self._model = spec.model
        self._wants_ids = bool(spec.params.get("token_ids"))
        self._dialect = ToolDialect(spec.params)
        self._logprobs_mode = spec.params.get("logprobs_mode")
        self._settings = settings
        self._base_url = spec.base_url or settings.base_url or os.environ.get("OPENAI_BASE_URL")
        key = settings.api_key.get_secret_value() if settings.api_key else None
        self._api_key = key or os.environ.get("OPENAI_API_KEY") or "none"
        if self._base_url is None and self._api_key == "none":
            raise ModelConfigError(
                "agent openai: neither an endpoint nor a key; use --base-url, or set "
                "HERMES_QUEUE_MODEL_BASE_URL or HERMES_QUEUE_MODEL_API_KEY"
            )
        self._probe = self._make_probe(spec)
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
        try that failed, that is a `ModelError`, never an outcome to score.
        """
        body, events = self._body(messages, tools, sampling)
        if self._probe and self._turn == 0 and "tools" in body:
            await self._probe.require_tools(self._ask, sampling, deadline=deadline)
        last: Exception | None = None
        for attempt in range(self._settings.max_retries + 1):
            left_s = deadline - time.monotonic()
            try:
                async with asyncio.timeout(left_s) as timer:
                    if last is not None:
                        await asyncio.sleep(_delay_s(last, attempt))
                    started = time.monotonic()
                    completion = await self._exchange(body, events)
                return self._reply(completion, body, tools, time.monotonic() - started, events)
            except TimeoutError as error:
                if last is None and timer.expired():
                    raise
                last = last if timer.expired() else error
                if timer.expired():
                    break
            except TrajectoryFailure:
                raise
            except Exception as error:
                failure = _classify(error, first_turn=self._turn == 0)
                if failure is not None:
                    raise failure from error
                last = error
                logger.warning(
                    "model call failed: %s",
                    _describe(error),
                    extra={"action": "model_retry", "attempt": attempt + 1},
                )
        raise ModelError(f"{self._server} failed, last: {_describe(last)}") from last

    def _body(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        sampling: Mapping[str, Any],
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        if reserved := sorted(_RESERVED & sampling.keys()):
            raise ModelConfigError(f"sampling must not set {', '.join(reserved)}")
        sent = self._dialect.outgoing(messages, tools)
        wire, rewritten = to_wire(sent, self._reasoning_field)
        body: dict[str, Any] = {"model": self._model, "messages": wire, **sampling}
        if tools and not self._dialect.prompted:
            body["tools"] = list(tools)
        if self._wants_ids:
            body.update(return_token_ids=True, logprobs=True)
        new = [call_id for call_id in rewritten if call_id not in self._rewritten]
        self._rewritten.update(new)
        return body, [{"event": "arguments_rewritten", "call": call_id} for call_id in new]

    async def _exchange(self, body: Mapping[str, Any], events: list[dict[str, Any]]) -> Completion:
        """Have `body` answered; what is done to it beyond that goes to `events`."""
        return parse(await self._post("/chat/completions", body), turn=self._turn)

    async def _post(self, path: str, body: Mapping[str, Any]) -> bytes:
        """One request, bounded as a whole: the SDK's timeout is per read from the socket."""
        import httpx2

        async with asyncio.timeout(self._settings.request_timeout_s):
            response = await self._client().post(path, body=dict(body), cast_to=httpx2.Response)
        return response.content

    async def _post_to_root(self, path: str, body: Mapping[str, Any]) -> bytes:
        """As `_post`, with a path below the server's root instead of the endpoint's `/v1`."""
        base = str(self._client().base_url).rstrip("/").removesuffix("/v1")
        return await self._post(base + path, body)

    async def _ask(self, path: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        """One request of the probe's: `probe.Send`."""
        import httpx2
        import openai

        try:
            response = await self._client().post(path, body=dict(body), cast_to=httpx2.Response)
            return response.status_code, json.loads(response.content)
        except openai.APIStatusError as error:
            return error.status_code, None
        except openai.APIConnectionError:
            return 0, None
        except (ValueError, RecursionError):
            return 200, None

    def _make_probe(self, spec: AgentSpec) -> ToolProbe | None:
        """OpenAI's own endpoint needs no probe."""
        if self._base_url is None or not spec.params.get("probe_tools", True):
            return None
        ttl_s = self._settings.probe_ttl_s
        return ToolProbe(self._base_url, self._server, self._model, ttl_s=ttl_s)

    def _reply(
        self,
        completion: Completion,
        body: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]],
        latency_s: float,
        events: list[dict[str, Any]],
    ) -> Reply:
        if self._wants_ids and (completion.completion_ids is None or completion.logprobs is None):
            raise ModelConfigError(
                f"{self._server} sends no token ids or logprobs, which this run asks for"
            )
        finish_reason = completion.finish_reason
        message, unreadable = self._dialect.incoming(
            completion.message, tools, turn=self._turn, finish_reason=finish_reason
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
            finish_reason=finish_reason,
            usage=completion.usage,
            latency_s=round(latency_s, 4),
        )
        return Reply(message, turn, (*events, *unreadable))

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


def _delay_s(error: Exception, attempt: int) -> float:
    """How long to wait before try `attempt` (from 1): what the server asks for, else ours."""
    import openai

    if isinstance(error, openai.APIStatusError):
        for name, unit_s in (
            ("retry-after-ms", 0.001),
            ("retry-after", 1.0),
            ("llm_provider-retry-after", 1.0),
        ):
            try:
                return max(0.0, float(error.response.headers[name]) * unit_s)
            except (KeyError, ValueError):
                continue
    backoff_s: float = min(BACKOFF_MAX_S, BACKOFF_S * 2 ** (attempt - 1))
    return backoff_s * random.uniform(0.75, 1.0)  # noqa: S311 - jitter, no secret


def _describe(error: Exception | None) -> str:
    text = str(error) or type(error).__name__
    return f"{type(error).__name__}: {text}"[:1000]
