"""What an endpoint's failures take of a trajectory's time is given back."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from chat_endpoint import ChatEndpoint, Raw, completion
from records import make_job

from hermes_queue.agent import AgentResult, AgentScript, make_chat, run_agent
from hermes_queue.agent.endpoint.limiter import Unlimited
from hermes_queue.models import AgentSpec, Limits, Message
from hermes_queue.settings import ModelSettings
from workers.calls.uncounted import NotCounting
from workers.draft import Draft

pytestmark = pytest.mark.xdist_group("openai")
"""One process imports the OpenAI SDK."""

TRY_S = 0.4


class Toolbox:
    """Takes no calls."""

    schemas = ()
    postponed_s = 0.0

    def postpone(self, seconds: float) -> None:
        self.postponed_s += seconds


async def gold() -> Any:
    raise AssertionError("only the oracle asks")


async def test_tries_that_failed_are_no_time_of_the_agents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hermes_queue.agent.endpoint.errors.BACKOFF_S", 0.001)
    answer = json.dumps(completion()[1]).encode()
    answers = [Raw(b"{}", status=500, wait_s=TRY_S)] * 2 + [Raw(answer, wait_s=TRY_S)]
    draft, toolbox, result = Draft(make_job(), 1, 1), Toolbox(), AgentResult()
    async with ChatEndpoint(lambda path, body: answers.pop(0)) as endpoint:
        script = AgentScript(gold, limiter=NotCounting(Unlimited(), draft.clock))
        spec = AgentSpec(kind="openai", model="m", base_url=endpoint.url)
        chat = make_chat(spec, script, ModelSettings(trusted_urls=endpoint.url))
        began = time.monotonic()
        draft.clock.deadline = before = began + 60
        async with draft.clock.stage("agent", limit_s=60):
            assert draft.clock._stage_timeout is not None
            end = draft.clock._stage_timeout.when()
            await run_agent(
                chat,
                toolbox,  # type: ignore[arg-type]
                [Message(role="user", content="hello")],
                limits=Limits(),
                sampling={},
                deadline=time.monotonic() + 60,
                into=result,
            )
            moved = draft.clock._stage_timeout.when()
        took_s = time.monotonic() - began
    assert result.stop_reason == "no_tool_call"
    assert end is not None
    assert moved is not None
    lost_s = [toolbox.postponed_s, result.waited_s, draft.clock.deadline - before, moved - end]
    assert min(lost_s) >= 0.99 * 2 * TRY_S
    assert max(lost_s) <= took_s - result.turns[0].latency_s + 0.001, "the answer is its own time"
