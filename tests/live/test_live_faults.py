"""What a real server says when something is wrong, and what becomes of it."""

from __future__ import annotations

import time

import pytest
from worker_process import wait_until

from hermes_queue.agent import AgentScript, make_chat
from hermes_queue.agent.endpoint.connection import close_clients
from hermes_queue.agent.tokens.invariants import token_violations
from hermes_queue.errors import ContextLengthExceeded, ModelConfigError
from hermes_queue.models import AgentSpec, Message
from hermes_queue.settings import ModelSettings
from hermes_queue.tools import load_tool

TOOLS = [load_tool("terminal").schema()]
CONTEXT_TOKENS = 4096
IDS = {"messages": {"token_ids": True}, "tokens": {"mode": "tokens"}}


async def gold():
    raise AssertionError("only the oracle asks")


async def ask(server, mode, *, text="Hello.", model="tiny", key="none", **sampling):
    """One reply to one user message."""
    spec = AgentSpec(
        kind="openai",
        model=model,
        base_url=server.url,
        params={"server": server.kind, **IDS[mode]},
    )
    settings = ModelSettings(max_retries=0, api_key=key, trusted_urls=server.url)
    chat = make_chat(spec, AgentScript(gold), settings)
    sampling = {"max_tokens": 8, **sampling}
    try:
        messages = [Message(role="user", content=text)]
        return await chat.complete(messages, TOOLS, sampling, time.monotonic() + 120)
    finally:
        await close_clients()


@pytest.mark.parametrize("mode", IDS)
async def test_a_conversation_that_is_too_long_is_an_outcome(server, mode):
    with pytest.raises(ContextLengthExceeded, match="context length"):
        await ask(server, mode, text="apple birch " * CONTEXT_TOKENS)


@pytest.mark.parametrize("mode", IDS)
async def test_a_reply_that_the_token_limit_cuts_off_keeps_its_ids(server, mode):
    turn = (await ask(server, mode, max_tokens=2)).turn
    assert (turn.finish_reason, len(turn.completion_ids), len(turn.logprobs)) == ("length", 2, 2)


async def test_a_model_that_is_not_there_is_a_wrong_setting(server):
    if server.kind == "sglang":  # it serves the model it has under any name
        assert (await ask(server, "messages", model="another")).turn.completion_ids
        return
    with pytest.raises(ModelConfigError, match="does not exist"):
        await ask(server, "messages", model="another")


async def test_a_parameter_that_makes_no_sense_is_a_wrong_setting(server):
    with pytest.raises(ModelConfigError, match="400"):
        await ask(server, "messages", temperature=-1.0)


@pytest.mark.timeout(900)
async def test_a_wrong_key_is_a_wrong_setting_and_the_right_one_is_sent_everywhere(live):
    locked = live.server("--api-key", "right")
    try:
        locked.start()
        for mode in IDS:
            with pytest.raises(ModelConfigError, match="401"):
                await ask(locked, mode, key="wrong")
            turn = (await ask(locked, mode, key="right")).turn
            assert turn.completion_ids
            assert turn.logprobs_mode == "raw_logprobs"
    finally:
        locked.kill9()


@pytest.mark.timeout(900)
def test_processed_logprobs_are_recorded_as_such_and_not_compared(
    live, run, start_worker, rescored
):
    start_worker()
    processed = live.processed()
    try:
        processed.start()
        for mode in IDS:
            run.enqueue(processed.url, live.kind, mode, 3, run_id=mode, temperature=1.4)
            records = run.records(mode)
            assert {t.logprobs_mode for r in records for t in r.turns} == {"processed_logprobs"}
            result = rescored(records)
            assert result.returncode == 1
            assert "3 records not compared: its logprobs were taken after" in result.stdout
    finally:
        processed.kill9()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", IDS)
def test_trajectories_outlast_a_server_that_is_killed_and_started_again(
    live, run, start_worker, mode
):
    start_worker(HERMES_QUEUE_MODEL_MAX_RETRIES="1000")
    mortal = live.server()
    try:
        mortal.start()
        run.enqueue(mortal.url, live.kind, mode, 40, run_id="r", temperature=1.0)
        wait_until("some done", lambda: run.ledger.run_status("r").finished >= 3)
        mortal.kill9()
        assert not run.ledger.run_status("r").done, "the server died too late"
        mortal.start()
        records = run.records("r")
    finally:
        mortal.kill9()
    assert [(r.status, r.attempt, r.failure) for r in records] == [("completed", 1, None)] * 40
    assert [v for r in records for v in token_violations(r)] == []
    assert sum(r.score == 1.0 for r in records) > 20
