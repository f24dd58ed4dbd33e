"""Whether tools reach the model: asked of a real HTTP server of each kind."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from chat_endpoint import Answer, ChatEndpoint, completion, no_such_path

from hermes_queue.agent import AgentScript, Reply, make_chat
from hermes_queue.agent.endpoint import probe
from hermes_queue.agent.endpoint.probe import ToolSupport
from hermes_queue.agent.tokens.servers import own_servers
from hermes_queue.errors import ModelConfigError
from hermes_queue.models import AgentSpec, Message, ToolCall
from hermes_queue.settings import ModelSettings
from hermes_queue.tools import load_tool

pytestmark = pytest.mark.xdist_group("openai")
"""One process imports the OpenAI SDK."""

TOOLS = [load_tool("terminal").schema()]
USER = [Message(role="user", content="hello")]


class Server:
    """A server whose template shows tools or drops them.

    `tokenizer` is where it counts, if it does; `usage` whether completions say real counts.
    """

    def __init__(self, *, shows: bool, tokenizer: str = "", usage: bool = True) -> None:
        self.shows = shows
        self.tokenizer = tokenizer
        self.usage = usage
        self.counts_tools = shows
        self.down = 0

    def __call__(self, path: str, body: dict[str, Any]) -> Answer:
        if self.down:
            self.down -= 1
            return 503, {"error": {"message": "starting"}}
        if path == self.tokenizer:
            tokens = self.count(body, self.counts_tools)
            return 200, {"tokens": list(range(tokens)), "count": tokens, "max_model_len": 4096}
        if path != "/v1/chat/completions":
            return no_such_path()
        return completion(prompt_tokens=self.count(body, self.shows) if self.usage else 7)

    def count(self, body: dict[str, Any], tools: bool) -> int:
        text = json.dumps(body["messages"])
        if tools:
            text += json.dumps(body.get("tools", ""))
        return len(text) // 4


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    probe.forget()
    yield
    probe.forget()
    probe.share(None)


@pytest.fixture
async def endpoint() -> AsyncIterator[ChatEndpoint]:
    async with ChatEndpoint(Server(shows=True)) as server:
        yield server


async def no_gold() -> tuple[list[ToolCall], str]:
    raise AssertionError("a model must not see the gold answer")


async def ask(
    endpoint: ChatEndpoint, sampling: dict[str, Any] | None = None, **params: Any
) -> Reply:
    spec = AgentSpec(kind="openai", model="m", base_url=endpoint.url, params=params)
    client = make_chat(
        spec, AgentScript(oracle=no_gold), ModelSettings(max_retries=0, trusted_urls=endpoint.url)
    )
    return await client.complete(USER, TOOLS, sampling or {}, deadline=time.monotonic() + 120)


def probes(endpoint: ChatEndpoint) -> list[str]:
    """Paths that the probe asked; real completions carry no token cap here."""
    return [path for path, body in endpoint.requests if not is_real(path, body)]


def is_real(path: str, body: dict[str, Any]) -> bool:
    capped = "max_tokens" in body or "max_completion_tokens" in body
    return path.endswith("/chat/completions") and not capped


# --- what servers answer ----------------------------------------------------------------


@pytest.mark.parametrize("tokenizer", ["/tokenize", "/v1/tokenize"], ids=["vllm", "sglang"])
async def test_a_tokenizer_that_counts_tools_settles_it(
    endpoint: ChatEndpoint, tokenizer: str
) -> None:
    endpoint.handler = Server(shows=True, tokenizer=tokenizer)
    await ask(endpoint)
    assert "/v1/chat/completions" not in probes(endpoint)
    assert [bool(body.get("tools")) for body in endpoint.bodies(tokenizer)] == [False, True]


async def test_without_a_tokenizer_the_usage_of_two_completions_settles_it(
    endpoint: ChatEndpoint,
) -> None:
    await ask(endpoint)
    asked = [body for path, body in endpoint.requests if path.endswith("completions")][:2]
    assert [body["max_tokens"] for body in asked] == [1, 1]
    assert ["tools" in body for body in asked] == [False, True]


@pytest.mark.parametrize("tokenizer", ["/tokenize", "/v1/tokenize", ""])
async def test_dropped_tools_are_refused_with_the_remedies(
    endpoint: ChatEndpoint, tokenizer: str
) -> None:
    endpoint.handler = Server(shows=False, tokenizer=tokenizer)
    with pytest.raises(ModelConfigError, match=r"^tools_dropped: .*tools=prompted.*--chat-templ"):
        await ask(endpoint)
    assert not any(is_real(path, body) for path, body in endpoint.requests)


async def test_a_tokenizer_that_ignores_tools_is_not_believed_against_the_usage(
    endpoint: ChatEndpoint,
) -> None:
    server = Server(shows=True, tokenizer="/tokenize")
    server.counts_tools = False
    endpoint.handler = server
    assert (await ask(endpoint)).message.content == "hi"


async def test_a_tokenizer_is_believed_where_the_usage_says_nothing(
    endpoint: ChatEndpoint,
) -> None:
    endpoint.handler = Server(shows=False, tokenizer="/tokenize", usage=False)
    with pytest.raises(ModelConfigError, match="tools_dropped"):
        await ask(endpoint)


async def test_counts_that_never_change_decide_nothing_and_are_recorded_once(
    endpoint: ChatEndpoint, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint.handler = Server(shows=False, usage=False)
    with caplog.at_level(logging.WARNING, logger="hermes_queue.agent.endpoint.probe"):
        await ask(endpoint)
        await ask(endpoint)
    assert [record.action for record in caplog.records] == ["tools_probe"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "answer",
    [
        (200, {"usage": None, "choices": []}),
        (200, {"usage": {"prompt_tokens": "many"}}),
        (200, {"usage": {"prompt_tokens": -5}}),
        (200, []),
        (400, {"error": {"message": "max_tokens is not supported"}}),
        (401, {}),
        (500, {}),
    ],
    ids=str,
)
async def test_an_answer_of_no_use_passes(endpoint: ChatEndpoint, answer: Any) -> None:
    endpoint.handler = lambda path, body: completion() if is_real(path, body) else answer
    assert (await ask(endpoint)).message.content == "hi"


# --- how often it is asked --------------------------------------------------------------


async def test_a_process_asks_once_also_when_many_begin_together(endpoint: ChatEndpoint) -> None:
    await asyncio.gather(*(ask(endpoint) for _ in range(8)))
    await ask(endpoint)
    assert probes(endpoint).count("/v1/chat/completions") == 2


async def test_another_template_is_another_question(endpoint: ChatEndpoint) -> None:
    await ask(endpoint)
    before = len(probes(endpoint))
    await ask(endpoint, {"chat_template_kwargs": {"tools_in_user_message": False}})
    assert len(probes(endpoint)) == 2 * before
    assert endpoint.requests[-2][1]["chat_template_kwargs"] == {"tools_in_user_message": False}


async def test_an_outage_is_no_verdict(
    endpoint: ChatEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "RECHECK_S", 0.0)
    server = Server(shows=False)
    server.down = 3  # both tokenizers and the first completion of the probe
    endpoint.handler = server
    await ask(endpoint)
    with pytest.raises(ModelConfigError, match="tools_dropped"):
        await ask(endpoint)


async def test_a_template_that_was_mended_is_noticed(
    endpoint: ChatEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "RECHECK_S", 0.0)
    endpoint.handler = Server(shows=False)
    with pytest.raises(ModelConfigError):
        await ask(endpoint)
    endpoint.handler = Server(shows=True)
    await ask(endpoint)


@pytest.mark.parametrize("params", [{"probe_tools": False}, {"tools": "prompted"}])
async def test_it_is_not_asked_where_the_answer_does_not_matter(
    endpoint: ChatEndpoint, params: dict[str, Any]
) -> None:
    endpoint.handler = Server(shows=False)
    await ask(endpoint, **params)
    assert probes(endpoint) == []


async def test_the_deadline_holds(endpoint: ChatEndpoint) -> None:
    release = asyncio.Event()

    async def silent(path: str, body: object) -> tuple[int, Any]:
        await release.wait()
        return 0, None

    asking = probe.ToolProbe(endpoint.url, endpoint.url, "m", own_servers(), ttl_s=60)
    with pytest.raises(TimeoutError):
        await asking.require_tools(silent, {}, deadline=time.monotonic() + 0.05)


# --- the shared cache -------------------------------------------------------------------


class Shared:
    def __init__(self) -> None:
        self.held: dict[tuple[str, str], ToolSupport] = {}

    async def load(self, endpoint: str, model: str) -> ToolSupport | None:
        return self.held.get((endpoint, model))

    async def save(self, endpoint: str, model: str, verdict: ToolSupport, ttl_s: float) -> None:
        self.held[endpoint, model] = verdict


async def test_verdicts_are_shared_with_other_processes(endpoint: ChatEndpoint) -> None:
    probe.share(shared := Shared())
    await ask(endpoint)
    assert shared.held == {(endpoint.url, "m"): "honoured"}
    asked = len(probes(endpoint))
    probe.forget()  # another process
    await ask(endpoint)
    assert len(probes(endpoint)) == asked


async def test_a_shared_verdict_against_tools_is_obeyed(endpoint: ChatEndpoint) -> None:
    probe.share(shared := Shared())
    shared.held[endpoint.url, "m"] = "dropped"
    with pytest.raises(ModelConfigError, match="tools_dropped"):
        await ask(endpoint)
    assert endpoint.requests == []
