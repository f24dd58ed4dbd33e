"""What a model endpoint can do to us, one server on loopback per test (docs/endpoint-faults.md)."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from chat_endpoint import Answer, ChatEndpoint, Raw, completion

from hermes_queue.agent import AgentResult, AgentScript, ChatClient, make_chat, run_agent
from hermes_queue.agent.endpoint.connection import close_clients
from hermes_queue.agent.loop import MAX_CALLS_PER_TURN
from hermes_queue.errors import ContextLengthExceeded, ModelConfigError, ModelError
from hermes_queue.models import AgentSpec, Limits, Message, ToolCall
from hermes_queue.sandbox.context import SlotContext
from hermes_queue.settings import ModelSettings
from hermes_queue.tools import Toolbox, ToolContext

pytestmark = pytest.mark.xdist_group("openai")
"""One process imports the OpenAI SDK."""

USER = Message(role="user", content="hello")


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hermes_queue.agent.endpoint.errors.BACKOFF_S", 0.001)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


@pytest.fixture
async def endpoint() -> AsyncIterator[ChatEndpoint]:
    async with ChatEndpoint(lambda path, body: completion()) as server:
        yield server


def in_turn(*answers: Answer) -> Any:
    """A handler that gives the answers one after the other, the last one for ever."""
    left = list(answers)
    return lambda path, body: left.pop(0) if len(left) > 1 else left[0]


def chat(url: str, *, retries: int = 2, timeout_s: float = 60.0, **params: Any) -> ChatClient:
    spec = AgentSpec(
        kind="openai", model="m", base_url=url, params={"probe_tools": False, **params}
    )
    settings = ModelSettings(max_retries=retries, request_timeout_s=timeout_s, trusted_urls=url)
    return make_chat(spec, AgentScript(oracle=no_gold, trajectory_id="run.item.0"), settings)


async def no_gold() -> tuple[list[ToolCall], str]:
    raise AssertionError("a model must not see the gold answer")


async def ask(client: ChatClient, *messages: Message, seconds: float = 60.0) -> Any:
    return await client.complete(messages or (USER,), [], {}, time.monotonic() + seconds)


def toolbox() -> Toolbox:
    """Of a tool that runs in the worker and needs no slot."""
    slot = cast(SlotContext, SimpleNamespace(deadline=0.0, remaining_s=lambda: 60.0))
    return Toolbox(["calculator"], ToolContext(slot, 60.0, 4096))


async def run(client: ChatClient, **limits: Any) -> AgentResult:
    into = AgentResult()
    deadline = time.monotonic() + 60
    await run_agent(
        client,
        toolbox(),
        [USER],
        limits=Limits(**limits),
        sampling={},
        deadline=deadline,
        into=into,
    )
    return into


def tool_calls(*calls: tuple[str, str]) -> Answer:
    made = [
        {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for n, (name, arguments) in enumerate(calls)
    ]
    return completion(None, message={"tool_calls": made}, finish_reason="tool_calls")


def answers_to_calls(body: dict[str, Any]) -> list[str]:
    return [m["content"] for m in body["messages"] if m["role"] == "tool"]


# --- tries are recorded -----------------------------------------------------------------


async def test_tries_that_failed_are_on_the_record_with_reason_and_wait(
    endpoint: ChatEndpoint,
) -> None:
    endpoint.handler = in_turn(
        (503, {"error": {"message": "overloaded"}}),
        Raw(b"<html>", headers={"retry-after": "9"}),
        completion("fine"),
    )
    result = await run(chat(endpoint.url))
    first, second, stop = result.events
    assert (first["event"], first["try"], second["try"]) == ("model_retry", 1, 2)
    assert first["reason"].startswith("InternalServerError: ")
    assert "overloaded" in first["reason"]
    assert "MalformedReply" in second["reason"]
    assert first["waited_s"] > 0
    assert first["took_s"] > 0
    assert stop["reason"] == "no_tool_call"
    assert len(result.turns) == 1, "a try that failed is no turn"


async def test_tries_of_a_call_that_failed_for_good_are_on_the_record_too(
    endpoint: ChatEndpoint,
) -> None:
    endpoint.handler = in_turn((500, {"error": {"message": "broken"}}))
    into = AgentResult()
    with pytest.raises(ModelError, match="3 tries failed, last: InternalServerError"):
        await run_agent(
            chat(endpoint.url),
            toolbox(),
            [USER],
            limits=Limits(),
            sampling={},
            deadline=time.monotonic() + 60,
            into=into,
        )
    assert [event["try"] for event in into.events] == [1, 2, 3]
    assert [event.get("gave_up") for event in into.events] == [None, None, "retries"]


async def test_a_failed_call_before_an_outcome_is_on_the_record(endpoint: ChatEndpoint) -> None:
    overflow = (400, {"error": {"message": "maximum context length is 9"}})
    endpoint.handler = in_turn((500, {}), overflow)
    result = await run(chat(endpoint.url))
    assert [event["event"] for event in result.events] == [
        "model_retry",
        "context_length",
        "stop",
    ]


async def test_a_server_that_asks_not_to_be_tried_again_is_left_alone(
    endpoint: ChatEndpoint,
) -> None:
    endpoint.handler = in_turn(Raw(b"{}", 503, {"x-should-retry": "false"}), completion())
    with pytest.raises(ModelError, match="asked not to be called again"):
        await ask(chat(endpoint.url))
    assert len(endpoint.requests) == 1


# --- time -------------------------------------------------------------------------------


async def test_an_answer_that_drips_for_ever_ends_at_the_deadline(endpoint: ChatEndpoint) -> None:
    endpoint.handler = in_turn(Raw(b" " * 10_000, drip_s=0.05))
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        await ask(chat(endpoint.url), seconds=0.6)
    assert time.monotonic() - began < 60, "10,000 bytes would take 500 s"


async def test_an_answer_that_drips_is_left_at_the_timeout_of_a_request(
    endpoint: ChatEndpoint,
) -> None:
    endpoint.handler = in_turn(Raw(b" " * 10_000, drip_s=0.05), completion("fine"))
    reply = await ask(chat(endpoint.url, timeout_s=3.0, retries=9))
    assert reply.message.content == "fine"
    assert "TimeoutError" in reply.events[0]["reason"]


async def test_a_deadline_after_a_failed_try_is_the_endpoints_fault(
    endpoint: ChatEndpoint,
) -> None:
    endpoint.handler = in_turn((500, {}), Raw(hang=True))
    with pytest.raises(ModelError, match="1 try failed; no time is left"):
        await ask(chat(endpoint.url), seconds=3.0)


# --- servers that go and come -----------------------------------------------------------


async def test_a_server_that_restarts_between_two_turns_costs_a_retry_at_most(
    endpoint: ChatEndpoint,
) -> None:
    client = chat(endpoint.url, retries=3)
    await ask(client)
    await endpoint.stop()
    await endpoint.start()
    assert (await ask(client)).message.content == "hi"


async def test_a_server_that_dies_during_a_call_and_comes_back_is_asked_again(
    endpoint: ChatEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hermes_queue.agent.endpoint.errors.BACKOFF_S", 0.2)
    endpoint.handler = in_turn(Raw(hang=True), completion("fine"))
    asking = asyncio.create_task(ask(chat(endpoint.url, retries=9)))
    while not endpoint.requests:
        await asyncio.sleep(0.01)
    await endpoint.stop()
    await endpoint.start()
    reply = await asking
    assert reply.message.content == "fine"
    assert "Disconnected" in reply.events[0]["reason"]


async def test_a_refused_connection_is_not_called_a_timeout(endpoint: ChatEndpoint) -> None:
    client = chat(endpoint.url, retries=0)
    await endpoint.stop()
    with pytest.raises(ModelError, match="ConnectionRefusedError"):
        await ask(client)
    await endpoint.start()


@pytest.mark.parametrize(
    "answer",
    [Raw(drop=True), Raw(b"no http at all", headers={"content-length": "99999"})],
    ids=["before the answer", "in the middle of the answer"],
)
async def test_a_connection_that_breaks_is_tried_again(endpoint: ChatEndpoint, answer: Raw) -> None:
    def handler(path: str, body: dict[str, Any]) -> Answer:
        if len(endpoint.requests) == 1:
            asyncio.get_running_loop().call_later(0.2, endpoint.hang_up)
            return answer
        return completion("fine")

    endpoint.handler = handler
    assert (await ask(chat(endpoint.url))).message.content == "fine"


# --- answers that are odd ---------------------------------------------------------------


@pytest.mark.parametrize(
    "body", [{"error": {"message": "queue full"}}, {"object": "error", "message": "queue full"}]
)
async def test_an_error_with_status_200_is_retried_and_recorded(
    endpoint: ChatEndpoint, body: dict[str, Any]
) -> None:
    endpoint.handler = in_turn((200, body))
    with pytest.raises(ModelError, match="queue full"):
        await ask(chat(endpoint.url))
    assert len(endpoint.requests) == 3


async def test_unknown_fields_are_passed_over_and_never_sent_back(endpoint: ChatEndpoint) -> None:
    call = {
        "id": "c0",
        "index": 0,
        "type": "function",
        "function": {"name": "calculator", "arguments": '{"expression": "1+1"}', "parsed": {}},
    }
    message = {"refusal": None, "annotations": [], "audio": None, "tool_calls": [call]}
    endpoint.handler = in_turn(
        completion(None, message=message, finish_reason="eos", top={"system_fingerprint": "x"}),
        completion("2"),
    )
    result = await run(chat(endpoint.url))
    assert result.turns[0].finish_reason == "eos"
    assert endpoint.bodies()[1]["messages"][1] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "c0",
                "type": "function",
                "function": {"name": "calculator", "arguments": '{"expression": "1+1"}'},
            }
        ],
    }


@pytest.mark.parametrize("content", ["", None])
async def test_an_empty_reply_ends_the_trajectory_as_the_agents_own_doing(
    endpoint: ChatEndpoint, content: str | None
) -> None:
    endpoint.handler = in_turn(completion(content))
    result = await run(chat(endpoint.url))
    assert result.stop_reason == "no_tool_call"
    assert result.messages[-1].content == content


async def test_fifty_calls_in_one_reply_are_all_answered_in_order(endpoint: ChatEndpoint) -> None:
    calls = [("calculator", json.dumps({"expression": f"{n} + 1"})) for n in range(50)]
    endpoint.handler = in_turn(tool_calls(*calls), completion("done"))
    result = await run(chat(endpoint.url))
    answers = answers_to_calls(endpoint.bodies()[1])
    assert len(answers) == 50
    assert [text.strip() for text in answers[:MAX_CALLS_PER_TURN]] == [
        str(n + 1) for n in range(MAX_CALLS_PER_TURN)
    ]
    assert all("at most 32 calls" in text for text in answers[MAX_CALLS_PER_TURN:])
    assert result.tool_calls.attempted == 50


async def test_calls_that_cannot_be_run_are_answered_with_what_is_wrong(
    endpoint: ChatEndpoint,
) -> None:
    endpoint.handler = in_turn(
        tool_calls(("calculator", '{"expression": '), ("teleport", "{}"), ("", "")),
        completion("sorry"),
    )
    result = await run(chat(endpoint.url))
    broken, unknown, nameless = answers_to_calls(endpoint.bodies()[1])
    assert "JSON" in broken
    assert "calculator" in unknown, "the names there are"
    assert "calculator" in nameless
    assert (result.tool_calls.attempted, result.tool_calls.schema_valid) == (3, 0)
    assert result.stop_reason == "no_tool_call"


async def test_replies_that_are_never_right_end_as_format_errors(endpoint: ChatEndpoint) -> None:
    endpoint.handler = in_turn(tool_calls(("calculator", "[1]")))
    result = await run(chat(endpoint.url), max_format_errors=3)
    assert (result.stop_reason, len(result.turns)) == ("format_errors", 3)


# --- what a person must mend ------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "error", "says"),
    [
        (401, {"message": "Incorrect API key provided"}, "Incorrect API key"),
        (403, {"message": "no access to model m"}, "no access"),
        (404, {"message": "The model `m` does not exist."}, "does not exist"),
        (422, {"message": "Unexpected field top_k"}, "top_k"),
    ],
)
async def test_a_wrong_key_model_or_parameter_is_told_in_the_servers_words(
    endpoint: ChatEndpoint, status: int, error: dict[str, str], says: str
) -> None:
    endpoint.handler = in_turn((status, {"error": error}))
    with pytest.raises(ModelConfigError, match=says):
        await ask(chat(endpoint.url))
    assert len(endpoint.requests) == 1


OVERFLOWS = {
    "vllm": {
        "error": {
            "message": "This model's maximum context length is 2048 tokens. However, you requested "
            "0 output tokens and your prompt contains at least 2049 input tokens, for a total of "
            "at least 2049 tokens. Please reduce the length of the input prompt.",
            "type": "BadRequestError",
            "param": "input_tokens",
            "code": 400,
        }
    },
    "sglang": {
        "object": "error",
        "message": "The input (2061 tokens) is longer than the model's context length (2048).",
        "type": "BadRequestError",
        "param": None,
        "code": 400,
    },
    "vllm's engine": {
        "error": {
            "message": "The decoder prompt (length 2061) is longer than the maximum model length "
            "of 2048. Make sure that `max_model_len` is no smaller than the number of text tokens.",
            "type": "BadRequestError",
            "param": None,
            "code": 400,
        }
    },
    "sglang's scheduler": {
        "object": "error",
        "message": "Input length (2061 tokens) exceeds the maximum allowed length (2042 tokens). "
        "Use a shorter input or enable --allow-auto-truncate.",
        "type": "BadRequestError",
        "param": None,
        "code": 400,
    },
    "llama.cpp": {
        "error": {
            "code": 400,
            "message": "the request exceeds the available context size (2048 tokens)",
            "type": "exceed_context_size_error",
        }
    },
    "llama-cpp-python": {
        "error": {
            "message": "This model's maximum context length is 2048 tokens, however you requested "
            "2061 tokens (2061 in your prompt; 0 for the completion).",
            "code": "context_length_exceeded",
        }
    },
}


@pytest.mark.parametrize("body", OVERFLOWS.values(), ids=OVERFLOWS.keys())
async def test_a_conversation_that_is_too_long_is_known_in_each_servers_words(
    endpoint: ChatEndpoint, body: dict[str, Any]
) -> None:
    endpoint.handler = in_turn((400, body))
    with pytest.raises(ContextLengthExceeded):
        await ask(chat(endpoint.url))


# --- tokens that cannot be trusted ------------------------------------------------------


def ids(completion_ids: Sequence[int], logprobs: Sequence[float], **more: Any) -> Answer:
    content = [{"token": "t", "logprob": value} for value in logprobs]
    top = {"prompt_token_ids": [1, 2]} if more.pop("prompt", True) else {}
    return completion(token_ids=list(completion_ids), logprobs={"content": content}, top=top)


async def test_fewer_logprobs_than_tokens_are_refused_not_filled_up(
    endpoint: ChatEndpoint,
) -> None:
    endpoint.handler = in_turn(ids([3, 4, 5], [-0.1, -0.2]))
    with pytest.raises(ModelError, match="3 token ids but 2 logprobs"):
        await ask(chat(endpoint.url, token_ids=True))


@pytest.mark.parametrize(
    ("answer", "missing"),
    [
        (completion(), "ids of the prompt, no ids of the completion, no logprobs"),
        (completion(token_ids=[3], top={"prompt_token_ids": [1]}), "logprobs"),
        (ids([3], [-0.1], prompt=False), "ids of the prompt"),
    ],
)
async def test_a_server_without_ids_is_refused_with_what_to_do(
    endpoint: ChatEndpoint, answer: Answer, missing: str
) -> None:
    endpoint.handler = in_turn(answer)
    with pytest.raises(ModelConfigError, match=f"sends no {missing}.*--agent-param") as caught:
        await ask(chat(endpoint.url, token_ids=True))
    assert "vLLM" in str(caught.value)
    assert len(endpoint.requests) == 1


# --- connections ------------------------------------------------------------------------


async def test_three_hundred_calls_at_once_get_their_own_answers(endpoint: ChatEndpoint) -> None:
    endpoint.handler = lambda path, body: completion(body["messages"][0]["content"])
    client = chat(endpoint.url)
    questions = [Message(role="user", content=f"question {n}") for n in range(300)]
    replies = await asyncio.gather(*(ask(client, question) for question in questions))
    assert [reply.message.content for reply in replies] == [q.content for q in questions]


def answer_in_a_new_loop(url: str) -> str:
    async def once() -> str:
        try:
            return str((await ask(chat(url, retries=0))).message.content)
        finally:
            await close_clients()

    return asyncio.run(once())


async def test_each_loop_has_connections_of_its_own(endpoint: ChatEndpoint) -> None:
    await ask(chat(endpoint.url))
    for _ in range(2):
        assert await asyncio.to_thread(answer_in_a_new_loop, endpoint.url) == "hi"
    assert len(endpoint.connections) == 3


ASK_FORK_AND_ASK = """
import asyncio, os, sys
from tests.unit.test_model_faults import answer_in_a_new_loop, ask, chat, close_clients

url = sys.argv[1]
with asyncio.Runner() as runner:
    runner.run(ask(chat(url)))
    if not (child := os.fork()):
        print(answer_in_a_new_loop(url), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    print(runner.run(ask(chat(url))).message.content)
    runner.run(close_clients())
"""


async def test_a_forked_child_does_not_use_its_parents_connections(endpoint: ChatEndpoint) -> None:
    # A process of its own: a fork copies locks that the threads of earlier tests may hold.
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", ASK_FORK_AND_ASK, endpoint.url),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert output == b"hi\nhi\n"
    assert len(endpoint.connections) == 2, "the parent's own is still good"


async def test_connections_are_closed_without_a_warning(endpoint: ChatEndpoint) -> None:
    unhandled: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    for key in ("one", "two"):
        spec = AgentSpec(kind="openai", model="m", base_url=endpoint.url)
        os.environ["OPENAI_API_KEY"] = key
        settings = ModelSettings(trusted_urls=endpoint.url)
        await ask(make_chat(spec, AgentScript(oracle=no_gold), settings))
    del os.environ["OPENAI_API_KEY"]
    await close_clients()
    await close_clients()
    gc.collect()
    await asyncio.sleep(0)
    assert unhandled == []
    assert (await ask(chat(endpoint.url))).message.content == "hi", "later calls open new ones"


async def test_a_trajectory_whose_endpoint_fails_does_not_go_on_at_another_one(
    endpoint: ChatEndpoint,
) -> None:
    async with ChatEndpoint(lambda path, body: completion("other")) as other:
        client = chat(f"{endpoint.url},{other.url}")
        first, second = endpoint, other
        await ask(client)
        if other.requests:
            first, second = other, endpoint
        first.handler = in_turn((500, {}))
        with pytest.raises(ModelError):
            await ask(client)
        assert (len(first.requests), len(second.requests)) == (4, 0)


async def test_every_request_of_a_trajectory_carries_its_session(endpoint: ChatEndpoint) -> None:
    client = chat(endpoint.url)
    await ask(client)
    await ask(client)
    assert all("x-session-id: run.item.0" in head for head in endpoint.heads)


# --- the page ---------------------------------------------------------------------------


def test_every_row_of_the_page_names_a_test_that_exists() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs" / "endpoint-faults.md").read_text("utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ")][1:]
    tests = "".join(path.read_text("utf-8") for path in (root / "tests").rglob("test_*.py"))
    assert len(rows) >= 25
    for row in rows:
        names = re.findall(r"`(\w+)`", row.rstrip("| ").rpartition("|")[2])
        assert names, row
        assert [name for name in names if f"def test_{name}(" not in tests] == [], row
