"""What a real engine says of its pressure, and what it samples after it has aborted a reply."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request

from hermes_queue.agent import AgentScript, make_chat
from hermes_queue.agent.endpoint.connection import Endpoint, close_clients
from hermes_queue.agent.tokens.servers import connect
from hermes_queue.models import AgentSpec, Message
from hermes_queue.settings import ModelSettings
from workers.calls.pressure import read_metrics

LENGTH = 3000
ABORTS = {
    "vllm": [("/pause?mode=abort", {}), ("/resume", {})],
    "sglang": [("/abort_request", {"rid": "", "abort_all": True})],
}
"""Requests with which a trainer stops what is sampled."""


async def gold():
    raise AssertionError("only the oracle asks")


async def test_the_metrics_of_a_real_engine_are_read(server):
    status, page = await Endpoint(server.url, "none", timeout_s=30).page("/metrics")
    await close_clients()
    found = read_metrics(page)
    assert status == 200
    assert found.kv_tokens >= 16_384
    assert (found.running, found.waiting, found.usage) == (0, 0, 0.0)


def abort(server):
    for path, body in ABORTS[server.kind]:
        request = urllib.request.Request(
            server.root + path, json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()


async def running(server):
    """Return once the engine samples."""
    endpoint = Endpoint(server.url, "none", timeout_s=30)
    while (read_metrics((await endpoint.page("/metrics"))[1]).generated or 0) == 0:
        await asyncio.sleep(0.1)


async def test_a_reply_that_a_real_engine_aborts_is_continued_with_exact_logprobs(server):
    params = {"mode": "tokens", "server": server.kind, "parser": "hermes", "probe_tools": False}
    spec = AgentSpec(kind="openai", model="tiny", base_url=server.url, params=params)
    chat = make_chat(spec, AgentScript(gold), ModelSettings(trusted_urls=server.url))
    sampling = {"max_tokens": LENGTH, "ignore_eos": True, "temperature": 1.0}
    user = Message(role="user", content="list the files of src")
    # The first call of all compiles; then a reply takes as long as it will.
    await chat.complete([user], [], {**sampling, "max_tokens": 8}, time.monotonic() + 600)
    await running(server)
    for _ in range(10):
        call = asyncio.create_task(chat.complete([user], [], sampling, time.monotonic() + 600))
        await asyncio.sleep(0.7)
        await asyncio.to_thread(abort, server)
        reply = await call
        if any(event["event"] == "reply_continued" for event in reply.events):
            break
    turn = reply.turn
    assert [e["event"] for e in reply.events] == ["reply_aborted", "reply_continued"]
    assert (len(turn.completion_ids), turn.finish_reason) == (LENGTH, "length")
    endpoint = Endpoint(server.url, "none", timeout_s=300)
    tokens = connect(server.kind, endpoint.post_to_root, "tiny")
    scores = await tokens.score([*turn.prompt_ids, *turn.completion_ids])
    await close_clients()
    pairs = zip(scores[len(turn.prompt_ids) :], turn.logprobs, strict=True)
    assert max(abs(score - own) for score, own in pairs) < 1e-3
