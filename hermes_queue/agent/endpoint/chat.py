"""Chat completions of an OpenAI-compatible endpoint (OpenAI, vLLM, SGLang, proxies).

The SDK's own retries are off: the loop here knows the trajectory's deadline, and distinguishes
errors worth retrying from those that a person must fix (`endpoint_errors`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from hermes_queue.agent.chat import Reply
from hermes_queue.agent.endpoint import errors as endpoint_errors
from hermes_queue.agent.endpoint import trouble
from hermes_queue.agent.endpoint.choice import NO_KEY, OwnEndpoints, choose_endpoint
from hermes_queue.agent.endpoint.connection import Endpoint
from hermes_queue.agent.endpoint.counting import count_tokens
from hermes_queue.agent.endpoint.dialect import ToolDialect
from hermes_queue.agent.endpoint.facts import ServerFacts, server_facts
from hermes_queue.agent.endpoint.limiter import Permit
from hermes_queue.agent.endpoint.probe import ToolProbe
from hermes_queue.agent.endpoint.reply import Completion, parse, to_wire
from hermes_queue.agent.endpoint.request import ChatRequest, check_sampling, first_number
from hermes_queue.agent.endpoint.tries import Tries
from hermes_queue.agent.parameters import OpenAIParams
from hermes_queue.agent.registry import AgentScript
from hermes_queue.agent.tokens.anchor import Anchor
from hermes_queue.agent.tokens.servers import own_servers
from hermes_queue.agent.tokens.servers.base import Server, read
from hermes_queue.errors import ModelConfigError, ModelError, TrajectoryFailure
from hermes_queue.extensions import known
from hermes_queue.models import AgentSpec, Message, Turn
from hermes_queue.settings import ModelSettings

logger = logging.getLogger(__name__)

PROBE_TIMEOUT_S = 60.0
LONG_REPLY_CHARS = 10_000
"""A longer reply is searched for tool calls in a thread, off the event loop."""
ESTIMATED_COMPLETION_TOKENS = 512
"""Estimate for a call without `max_tokens`."""


class OpenAIChat:
    """The chat client of one trajectory; connections are shared by all trajectories."""

    default_parser: str | None = None

    def __init__(
        self, spec: AgentSpec, params: OpenAIParams, script: AgentScript, settings: ModelSettings
    ) -> None:
        if not spec.model:
            raise ModelConfigError("agent openai: no model given; use --model")
        self._model = spec.model
        self._params = params
        self._wants_ids = params.token_ids
        parser = params.parser or self.default_parser
        self._dialect = ToolDialect(prompted=params.tools == "prompted", parser=parser)
        self._servers = self.servers_of(params)
        self._versioned_by_server = params.policy_version == "server"
        self._requested_version = script.policy_version
        self._settings = settings
        self._limiter = script.limiter
        self._endpoint = _endpoint(spec, script, settings)
        self._server = self._endpoint.name
        self._facts = ServerFacts()
        self._reasoning_field: str | None = None
        self._rewritten: set[str] = set()
        self._other_versions: set[str] = set()
        self._next_number: int | None = None
        """Number of the next call; None before the first one."""
        self._answered_once = False

    @staticmethod
    def servers_of(params: OpenAIParams) -> Mapping[str, Server]:
        """The kinds of server that the endpoint may be of."""
        return own_servers()

    def state(self) -> dict[str, Any]:
        """See `Resumable`."""
        return {
            "number": self._next_number,
            "reasoning_field": self._reasoning_field,
            "rewritten": sorted(self._rewritten),
            "versions": sorted(self._other_versions),
            "written": self._dialect.newly_written(),
        }

    def resume(self, state: Mapping[str, Any], turns: int) -> None:
        """See `Resumable`."""
        self._answered_once = turns > 0
        number, field = state.get("number"), state.get("reasoning_field")
        self._next_number = number if isinstance(number, int) else None
        self._reasoning_field = field if isinstance(field, str) else None
        self._rewritten.update(map(str, state.get("rewritten") or ()))
        self._other_versions.update(map(str, state.get("versions") or ()))
        self._dialect.remember(state.get("written") or ())

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        sampling: Mapping[str, Any],
        deadline: float,
        *,
        anchor: Anchor | None = None,
    ) -> Reply:
        """See `ChatClient.complete`. Several calls may be open at once.

        The deadline applies only while the endpoint works: if it passes after a failed try, the
        call raises `ModelError`, and the agent gets no outcome. Waiting for permission or before
        another try is not counted, and once there is an answer, failed tries are not counted
        either. If a failing endpoint asks for a longer wait than the agent has left, the call
        gives up, which frees the slot. A paused endpoint is waited for.
        """
        request = self._request(messages, tools, sampling, anchor)
        waited_s = await self._probed(request, sampling)
        tries = Tries(self._settings.max_retries, self._settings.pause_max_s)
        try:
            completion, latency_s, waited_s = await self._answered(
                request, tries, deadline, waited_s
            )
        except TrajectoryFailure as failure:
            failure.events = tries.events()
            raise
        if self._wants_ids:
            self._require_tokens(completion)
            waited_s += await self._learn_facts()
        return await self._reply(request, completion, tries.events(), latency_s, waited_s)

    async def count_tokens(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
    ) -> int | None:
        """Tokens of a prompt, by the server's own tokenizer; None if it does not say."""
        wire, _ = to_wire(self._dialect.outgoing(messages, tools), self._reasoning_field, tools)
        offered = () if self._dialect.prompted else tools
        kinds = self._servers.values()
        return await count_tokens(self._endpoint.ask_root, kinds, self._model, wire, offered)

    async def _answered(
        self, request: ChatRequest, tries: Tries, deadline: float, waited_s: float
    ) -> tuple[Completion, float, float]:
        """The completion, the seconds of its try, and those that do not count as the agent's."""
        tokens = _estimate_tokens(request.body)
        delay_s: float | None = 0.0
        lost_s = 0.0
        while delay_s is not None:
            async with self._limiter.slot(
                self._server, self._model, estimate_tokens=tokens, delay_s=delay_s
            ) as permit:
                waited_s += permit.waited_s
                tries.waited(permit.waited_s)
                started = time.monotonic()
                try:
                    outcome = await self._try(request, deadline + waited_s - started, permit)
                except TimeoutError as error:
                    if not tries.out_of_time(error):
                        raise
                    break
            now = time.monotonic()
            if isinstance(outcome, Completion):
                trouble.forget()
                return outcome, now - started, waited_s + lost_s
            lost_s += now - started
            delay_s = tries.delay_s(outcome, took_s=now - started, left_s=deadline + waited_s - now)
            trouble.note(self._server, endpoint_errors.describe(outcome), delay_s)
        raise ModelError(f"{self._server}: {tries}") from tries.last

    async def _try(
        self, request: ChatRequest, left_s: float, permit: Permit
    ) -> Completion | Exception:
        """Send one request. Returns the error if it may be retried; TimeoutError if time is up."""
        try:
            async with asyncio.timeout(left_s) as timer:
                completion = await self._exchange(request)
        except TimeoutError as error:
            if timer.expired():
                raise
            return error
        except Exception as error:
            first = request.first and not self._answered_once
            if failure := endpoint_errors.classify(error, self._servers, first_turn=first):
                raise failure from error
            logger.warning(
                "model call failed: %s",
                endpoint_errors.describe(error),
                extra={"action": "model_retry"},
            )
            endpoint_errors.report(error, permit)
            return error
        permit.settle(completion.usage)
        return completion

    async def _exchange(self, request: ChatRequest) -> Completion:
        """Send the request and read the answer; differences in what is sent are added to it."""
        answer = await self._endpoint.post("/chat/completions", request.body)
        completion = await read(parse, answer, turn=request.number)
        version = self._version_of(completion.policy_version, completion.model)
        spans = completion.policy_spans if self._versioned_by_server else ()
        return replace(completion, policy_version=version, policy_spans=spans)

    def _version_of(self, version: str | None, model: str | None) -> str | None:
        """The version that has sampled an answer with these names; to be asked right after it."""
        if not self._versioned_by_server:
            return model
        return version or self._endpoint.policy_version

    def _request(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        sampling: Mapping[str, Any],
        anchor: Anchor | None,
    ) -> ChatRequest:
        check_sampling(sampling)
        sent = self._dialect.outgoing(messages, tools)
        wire, rewritten = to_wire(sent, self._reasoning_field, tools)
        body: dict[str, Any] = {"model": self._model, "messages": wire, **sampling}
        if tools and not self._dialect.prompted:
            body["tools"] = list(tools)
        if self._wants_ids:
            body.update(return_token_ids=True, logprobs=True)
        new = [call_id for call_id in rewritten if call_id not in self._rewritten]
        self._rewritten.update(new)
        number = first_number(messages) if self._next_number is None else self._next_number
        self._next_number = number + 1
        events = [{"event": "arguments_rewritten", "call": call_id} for call_id in new]
        first = not self._answered_once and anchor is None
        return ChatRequest(tuple(messages), tools, anchor, body, number, first, events=events)

    async def _probed(self, request: ChatRequest, sampling: Mapping[str, Any]) -> float:
        """Check once that the model sees its tools; returns the seconds that this took."""
        base_url = self._endpoint.base_url  # None: OpenAI's own endpoint needs no probe
        needless = "tools" not in request.body or not request.first
        if needless or base_url is None or not self._params.probe_tools:
            return 0.0
        started, ttl_s = time.monotonic(), self._settings.probe_ttl_s
        probe = ToolProbe(base_url, self._server, self._model, self._servers, ttl_s=ttl_s)
        with suppress(TimeoutError):  # the next trajectory asks again
            deadline = started + PROBE_TIMEOUT_S
            await probe.require_tools(self._endpoint.ask, sampling, deadline=deadline)
        return time.monotonic() - started

    async def _learn_facts(self) -> float:
        """Find out the server's version and logprobs mode; returns the seconds it took."""
        started = time.monotonic()
        unknown = self._params.logprobs_mode is None
        self._facts = await server_facts(
            self._endpoint.ask_root, self._server, self._model, self._servers, logprobs=unknown
        )
        return time.monotonic() - started

    async def _reply(
        self,
        request: ChatRequest,
        completion: Completion,
        failed_tries: Sequence[Mapping[str, Any]],
        latency_s: float,
        waited_s: float,
    ) -> Reply:
        incoming = partial(
            self._dialect.incoming,
            completion.message,
            request.tools,
            turn=request.number,
            finish_reason=completion.finish_reason,
        )
        long = len(completion.message.content or "") > LONG_REPLY_CHARS
        message, unreadable = await asyncio.to_thread(incoming) if long else incoming()
        events = [*failed_tries, *request.events]
        version = self._served_version(completion, events)
        if lost := _lost_tokens(completion, message):
            events.append({"event": "reply_lost", "tokens": lost})
        self._answered_once = True
        self._reasoning_field = completion.reasoning_field or self._reasoning_field
        turn = Turn(
            prompt_ids=completion.prompt_ids,
            completion_ids=completion.completion_ids,
            logprobs=completion.logprobs,
            logprobs_mode=self._params.logprobs_mode or self._facts.logprobs_mode,
            sampling={k: v for k, v in request.body.items() if k not in ("messages", "tools")},
            server=self._server,
            server_version=self._facts.version,
            policy_version=version,
            policy_spans=completion.policy_spans,
            finish_reason=completion.finish_reason,
            usage=completion.usage,
            latency_s=round(latency_s, 4),
        )
        return Reply(
            message,
            turn,
            (*events, *unreadable),
            waited_s,
            context_bound=completion.context_bound,
            anchor=_anchor(request, completion, turn, message),
        )

    def _served_version(
        self, completion: Completion, events: list[Mapping[str, Any]]
    ) -> str | None:
        """The version that served the turn; every unrequested version is recorded once."""
        served, requested = completion.policy_version, self._requested_version
        if requested is not None and served not in (None, requested, *self._other_versions):
            self._other_versions.add(str(served))
            events.append({"event": "policy_mismatch", "wanted": requested, "served": served})
        return served

    def _require_tokens(self, completion: Completion) -> None:
        found = {
            "ids of the prompt": completion.prompt_ids,
            "ids of the completion": completion.completion_ids,
            "logprobs": completion.logprobs,
        }
        if missing := [name for name, value in found.items() if value is None]:
            raise ModelConfigError(
                f"{self._server} sends no {', no '.join(missing)}, which this run requests with "
                '"return_token_ids": true, "logprobs": true. vLLM from 0.10.2 on and SGLang '
                "support that without a server flag; a proxy in between may drop it. Servers with "
                "another API need --agent-param mode=tokens --agent-param server=NAME, registered "
                f"are {', '.join(known('token_server'))}. Without --agent-param token_ids=true "
                "the run continues with records that hold no tokens"
            )


def _endpoint(spec: AgentSpec, script: AgentScript, settings: ModelSettings) -> Endpoint:
    """The endpoint of one trajectory, chosen from those that its job or the worker names."""
    own = OwnEndpoints.of(settings)
    urls = own.allowed(spec.base_url)
    base_url = choose_endpoint(urls, script.group_id, script.endpoint_failures) if urls else None
    key = own.key_for(base_url)
    if base_url is None and key == NO_KEY:
        raise ModelConfigError(
            "agent openai: neither an endpoint nor a key is configured; use --base-url, or set "
            "HERMES_QUEUE_MODEL_BASE_URL or HERMES_QUEUE_MODEL_API_KEY"
        )
    return Endpoint(
        base_url,
        key,
        timeout_s=settings.request_timeout_s,
        session=script.trajectory_id,
        policy_version=script.policy_version,
        answer_max_bytes=settings.answer_max_bytes,
    )


def _anchor(
    request: ChatRequest, completion: Completion, turn: Turn, message: Message
) -> Anchor | None:
    """What continues this reply, if it was sampled by ids."""
    ended_by_token = completion.ended_by_token
    if ended_by_token is None:
        return None
    return Anchor.of(turn, [*request.messages, message], ended_by_token=ended_by_token)


def _lost_tokens(completion: Completion, message: Message) -> int:
    """Tokens that were sampled for an empty reply: SGLang's parsers drop unreadable calls."""
    sampled = len(completion.completion_ids or ())
    empty = not (message.content or message.reasoning or message.tool_calls)
    return sampled if empty and sampled > 1 else 0  # a single token is the end of turn


def _estimate_tokens(body: Mapping[str, Any]) -> int:
    """Rough estimate of a call's tokens: four characters per token, plus the whole completion."""
    characters = sum(
        len(text)
        for message in body["messages"]
        for text in (
            message.get("content") or "",
            *(call["function"]["arguments"] for call in message.get("tool_calls", ())),
        )
    )
    cap = body.get("max_completion_tokens") or body.get("max_tokens")
    if not isinstance(cap, int) or not 0 < cap < 2**31:  # the server will refuse it
        cap = ESTIMATED_COMPLETION_TOKENS
    return characters // 4 + cap
