"""Checks that a model endpoint answers, knows the model, shows it tools and returns token ids."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from hermes_queue.agent.endpoint.choice import OwnEndpoints, split_urls
from hermes_queue.agent.endpoint.connection import Endpoint, close_clients
from hermes_queue.agent.endpoint.errors import describe
from hermes_queue.agent.endpoint.probe import ToolProbe, forget
from hermes_queue.agent.endpoint.reply import parse
from hermes_queue.agent.prices import read_prices
from hermes_queue.agent.tokens.servers import own_servers
from hermes_queue.agent.tokens.servers.base import MalformedReply
from hermes_queue.cli.doctor import Finding, error, ok, warning
from hermes_queue.errors import ConfigurationError
from hermes_queue.settings import ModelSettings

TIMEOUT_S = 30.0
PROBE_S = 60.0
_QUESTION = [{"role": "user", "content": "Say yes."}]


def price_findings() -> Iterator[Finding]:
    """Read the table of prices, if one is set: workers refuse to start with a wrong one."""
    if (path := ModelSettings().prices) is None:
        return
    try:
        yield ok("model.prices", f"{path} has the prices of {len(read_prices(path))} models")
    except ConfigurationError as problem:
        yield error("model.prices", str(problem), "correct it as docs/models.md says")


def endpoint_findings(
    *, model: str | None, base_url: str | None, token_ids: bool
) -> Iterator[Finding]:
    """Check every endpoint that is given or configured; without one, there are no findings."""
    section = ModelSettings()
    own = OwnEndpoints.of(section)
    urls = split_urls(base_url) or own.urls
    if not urls and (model or token_ids):
        remedy = "pass --base-url or set HERMES_QUEUE_MODEL_BASE_URL"
        yield error("model.endpoint", "no endpoint is given", remedy)
    for url in urls:
        endpoint = Endpoint(
            url, own.key, timeout_s=TIMEOUT_S, answer_max_bytes=section.answer_max_bytes
        )
        try:
            yield from asyncio.run(_findings(endpoint, model, token_ids))
        except ImportError as problem:
            yield error("model.endpoint", str(problem), "pip install 'hermes-queue[worker]'")


async def _findings(endpoint: Endpoint, model: str | None, token_ids: bool) -> list[Finding]:
    try:
        listed = await _models(endpoint)
        if isinstance(listed, Finding):
            return [listed]
        if model is None and not listed:
            text = f"{endpoint.name} answers but lists no models"
            return [warning("model.endpoint", text, "name one: hermes-queue doctor --model NAME")]
        queried = model or listed[0]
        answers = ok("model.endpoint", f"{endpoint.name} answers")
        answer = await _query(endpoint, queried, listed)
        if isinstance(answer, Finding):
            return [answers, answer]
        served = ok("model.name", f"{queried} is served")
        tools = await _tools(endpoint, queried)
        return [answers, served, tools, *_reply(endpoint, answer, token_ids)]
    finally:
        await close_clients()


async def _models(endpoint: Endpoint) -> Finding | list[str]:
    import openai

    try:
        return await endpoint.models()
    except (openai.AuthenticationError, openai.PermissionDeniedError) as problem:
        return _refused(endpoint, problem)
    except (openai.APIConnectionError, TimeoutError) as problem:
        return error(
            "model.endpoint",
            f"{endpoint.name} cannot be reached: {describe(problem)}",
            "start the server, or correct HERMES_QUEUE_MODEL_BASE_URL (it ends with /v1)",
        )
    except (openai.APIStatusError, ValueError):
        return []  # gateways need not list their models


async def _query(endpoint: Endpoint, model: str, listed: list[str]) -> Finding | bytes:
    """The answer to a short call with token ids, or without them if the server refuses them."""
    import openai

    body = {"model": model, "messages": _QUESTION, "max_tokens": 1}
    with_ids = {**body, "return_token_ids": True, "logprobs": True}
    problem: Exception | None = None
    for each in (with_ids, body):
        try:
            return await endpoint.post("/chat/completions", each)
        except (openai.AuthenticationError, openai.PermissionDeniedError) as refused:
            return _refused(endpoint, refused)
        except (openai.OpenAIError, TimeoutError, ValueError) as failed:
            problem = failed
    if isinstance(problem, openai.NotFoundError) or (listed and model not in listed):
        known = ", ".join(listed[:5]) or "it does not list its models"
        return error(
            "model.name",
            f"{endpoint.name} does not serve {model!r}: {describe(problem)}",
            f"served there: {known}",
        )
    return error("model.name", f"{model} does not answer: {describe(problem)}", "see its log")


def _refused(endpoint: Endpoint, problem: Exception) -> Finding:
    return error(
        "model.endpoint",
        f"{endpoint.name} refuses the key: {describe(problem)}",
        "set HERMES_QUEUE_MODEL_API_KEY (or OPENAI_API_KEY)",
    )


async def _tools(endpoint: Endpoint, model: str) -> Finding:
    forget()
    probe = ToolProbe(str(endpoint.base_url), endpoint.name, model, own_servers(), ttl_s=1.0)
    try:
        verdict: str = await probe.ask(endpoint.ask, {}, deadline=time.monotonic() + PROBE_S)
    except TimeoutError:
        verdict = "unknown"
    if verdict == "honoured":
        return ok("model.tools", "the chat template shows tools to the model")
    if verdict == "dropped":
        return error(
            "model.tools",
            f"the chat template of {model} omits `tools` from the prompt: agents would never "
            "see them",
            "run with --agent-param tools=prompted, or serve a template that renders them (vLLM, "
            "SGLang: --chat-template; llama.cpp: --jinja)",
        )
    return warning(
        "model.tools",
        "the token counts do not show whether the chat template shows tools to the model",
        "look at a transcript, or put tools into the prompt: --agent-param tools=prompted",
    )


def _reply(endpoint: Endpoint, answer: bytes, needed: bool) -> Iterator[Finding]:
    try:
        completion = parse(answer, turn=0)
    except MalformedReply as problem:
        yield error("model.reply", f"{endpoint.name} does not answer like OpenAI: {problem}")
        return
    if not (completion.usage.prompt_tokens and completion.usage.completion_tokens):
        yield warning(
            "model.usage",
            f"{endpoint.name} does not report the tokens of a completion",
            "limits on tokens and cost cannot hold: have the server or proxy send `usage`",
        )
    if completion.completion_ids is not None and completion.logprobs is not None:
        yield ok("model.token_ids", "token ids and logprobs come with completions")
        return
    text = f"{endpoint.name} sends no token ids or logprobs"
    remedy = "RL needs them: serve with vLLM or SGLang, see docs/tokens.md"
    level = error if needed else warning
    yield level("model.token_ids", text, remedy)
