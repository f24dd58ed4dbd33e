"""How the chat client asks for leave, and what it tells of each request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from benchmarks.capped_endpoint import CappedEndpoint
from hermes_queue.agent import AgentResult, AgentScript, ChatClient, Permit, make_chat, run_agent
from hermes_queue.agent.endpoint.connection import close_clients
from hermes_queue.errors import ModelConfigError, ModelError
from hermes_queue.models import AgentSpec, Limits, Message, ToolCall, Usage
from hermes_queue.settings import ModelSettings
from hermes_queue.tools import load_tool

pytestmark = pytest.mark.xdist_group("openai")
"""One process imports the OpenAI SDK."""

USER = Message(role="user", content="hello")


@dataclass
class Diary:
    """A limiter that makes everybody wait a little and writes down what it is told."""

    wait_s: float = 0.0
    sleeps: bool = True
    """False only says that it has waited, so that hours cost nothing."""
    waited_s: float = 0.0
    open: int = 0
    reported: list[Any] = field(default_factory=list)
    asked: list[tuple[str, str, int]] = field(default_factory=list)

    @asynccontextmanager
    async def slot(
        self, endpoint: str, model: str, *, estimate_tokens: int = 0, delay_s: float = 0.0
    ) -> AsyncIterator[Permit]:
        assert self.open == 0, "leave is given back before it is asked for again"
        self.asked.append((endpoint, model, estimate_tokens))
        await asyncio.sleep(delay_s if self.sleeps else 0)
        self.waited_s = self.wait_s + delay_s
        self.open += 1
        try:
            yield self
        finally:
            self.open -= 1

    def settle(self, usage: Usage) -> None:
        self.reported.append(usage.prompt_tokens + usage.completion_tokens)

    def refused(self, retry_after_s: float | None, *, paused: bool = False) -> None:
        self.reported.append((retry_after_s, paused))


@pytest.fixture
async def endpoint() -> AsyncIterator[CappedEndpoint]:
    async with CappedEndpoint(cap=1, service_s=(0.0, 0.0)) as server:
        yield server
        await close_clients()


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hermes_queue.agent.endpoint.errors.BACKOFF_S", 0.001)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def chat(endpoint: CappedEndpoint, diary: Diary, **settings: Any) -> ChatClient:
    url = endpoint.url.replace("//", "//u:secret@")
    spec = AgentSpec(kind="openai", model="m", base_url=url, params={"probe_tools": False})
    script = AgentScript(oracle=no_gold, limiter=diary, trajectory_id="run.item.3")
    return make_chat(spec, script, ModelSettings(trusted_urls=endpoint.url, **settings))


async def no_gold() -> tuple[list[ToolCall], str]:
    raise AssertionError("a model must not see the gold answer")


async def ask(client: ChatClient, seconds: float = 30.0, **sampling: Any) -> Any:
    return await client.complete([USER], [], sampling, time.monotonic() + seconds)


async def test_each_request_has_permission_and_reports_its_real_usage(
    endpoint: CappedEndpoint,
) -> None:
    diary = Diary()
    client = chat(endpoint, diary)
    await ask(client, max_tokens=100)
    await ask(client)
    assert diary.reported == [120, 120]
    [(url, model, tokens), (_, _, unbounded)] = diary.asked
    assert (url, model, tokens) == (endpoint.url, "m", 101)
    assert unbounded > tokens


async def test_a_refusal_is_reported_with_the_delay_that_the_server_asks_for(
    endpoint: CappedEndpoint,
) -> None:
    endpoint.cap, endpoint.retry_after_s = 0, 0.01
    diary = Diary()
    with pytest.raises(ModelError, match="429"):
        await ask(chat(endpoint, diary, max_retries=2))
    assert diary.reported == [(0.01, False)] * 3
    assert diary.open == 0


@pytest.mark.parametrize("status", [429, 503])
async def test_a_pause_is_waited_out_and_is_no_failure(
    endpoint: CappedEndpoint, status: int
) -> None:
    endpoint.paused, endpoint.pause_status = True, status
    diary = Diary()
    asking = asyncio.create_task(ask(chat(endpoint, diary, max_retries=0)))
    while endpoint.turned_away < 2:
        await asyncio.sleep(0.01)
    endpoint.paused = False
    reply = await asking
    assert reply.message.content == "7"
    assert diary.reported[:2] == [(0.2, True)] * 2
    assert diary.reported[-1] == 120
    assert reply.waited_s >= 0.4
    [event] = reply.events
    assert (event["event"], event["tries"]) == ("model_paused", len(diary.reported) - 1)
    assert 0.4 <= event["waited_s"] <= reply.waited_s


async def test_a_pause_longer_than_the_agents_time_is_waited_out(endpoint: CappedEndpoint) -> None:
    endpoint.paused, endpoint.pause_s = True, 100.0
    diary = Diary(sleeps=False)
    asking = asyncio.create_task(ask(chat(endpoint, diary, max_retries=0), seconds=60))
    while endpoint.turned_away < 2:
        await asyncio.sleep(0.01)
    endpoint.paused = False
    reply = await asking
    assert reply.message.content == "7"
    assert reply.waited_s >= 200


async def test_there_is_an_end_to_waiting_for_a_paused_endpoint(endpoint: CappedEndpoint) -> None:
    endpoint.paused = True
    with pytest.raises(ModelError, match="429"):
        await ask(chat(endpoint, Diary(), pause_max_s=0.3))


async def test_waiting_in_line_is_no_part_of_the_patience_with_a_pause(
    endpoint: CappedEndpoint,
) -> None:
    endpoint.paused, endpoint.pause_s, endpoint.pause_answers = True, 0.01, 2
    diary = Diary(wait_s=1000.0, sleeps=False)
    reply = await ask(chat(endpoint, diary, pause_max_s=1500.0))
    assert reply.message.content == "7"


async def test_a_server_that_is_unwell_for_so_long_is_left_alone_by_the_fleet(
    endpoint: CappedEndpoint,
) -> None:
    endpoint.status, endpoint.retry_after_s = 503, 0.01
    diary = Diary()
    with pytest.raises(ModelError, match="503") as raised:
        await ask(chat(endpoint, diary, max_retries=1))
    assert diary.reported == [(0.01, True)] * 2
    assert [event["event"] for event in raised.value.events] == ["model_retry"] * 2


async def test_other_failures_tell_the_limiter_nothing(endpoint: CappedEndpoint) -> None:
    diary = Diary()
    endpoint.status = 503
    with pytest.raises(ModelError, match="503"):
        await ask(chat(endpoint, diary, max_retries=1))
    assert (diary.reported, len(diary.asked)) == ([], 2)
    endpoint.status = 401
    with pytest.raises(ModelConfigError):
        await ask(chat(endpoint, diary))
    assert diary.reported == []
    assert diary.open == 0


async def test_every_request_names_its_trajectory(endpoint: CappedEndpoint) -> None:
    client = chat(endpoint, Diary())
    await ask(client)
    await ask(client)
    assert endpoint.sessions == {"run.item.3": 2}


async def test_waiting_for_leave_is_not_the_agents_time(endpoint: CappedEndpoint) -> None:
    diary = Diary(wait_s=1000.0)
    reply = await ask(chat(endpoint, diary), seconds=5.0)
    assert reply.waited_s == 1000.0


async def test_the_loop_moves_its_deadline_by_what_was_waited(endpoint: CappedEndpoint) -> None:
    class Toolbox:
        schemas = (load_tool("calculator").schema(),)
        postponed_s = 0.0

        def postpone(self, seconds: float) -> None:
            self.postponed_s += seconds

    toolbox, result = Toolbox(), AgentResult()
    await run_agent(
        chat(endpoint, Diary(wait_s=1000.0)),
        toolbox,  # type: ignore[arg-type]
        [USER],
        limits=Limits(),
        sampling={},
        deadline=time.monotonic() + 5,
        into=result,
    )
    assert result.stop_reason == "no_tool_call"
    assert result.waited_s == toolbox.postponed_s == 1000.0
