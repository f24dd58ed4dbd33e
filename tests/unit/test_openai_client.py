"""The chat client against a real HTTP server that misbehaves on purpose."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from hermes_queue.agent import AgentScript, Reply, make_chat
from hermes_queue.agent.endpoint import connection, trouble
from hermes_queue.agent.endpoint.chat import OpenAIChat
from hermes_queue.agent.endpoint.connection import close_clients
from hermes_queue.agent.endpoint.recent import KEPT
from hermes_queue.agent.tokens.merge import merge_with_breaks
from hermes_queue.errors import ContextLengthExceeded, ModelConfigError, ModelError
from hermes_queue.models import AgentSpec, FunctionCall, Message, ToolCall
from hermes_queue.settings import ModelSettings
from hermes_queue.telemetry import logs
from hermes_queue.tools import load_tool, make_call

pytestmark = pytest.mark.xdist_group("openai")
"""One process imports the OpenAI SDK."""

USER = Message(role="user", content="hello")
TOOLS = [load_tool("terminal").schema()]


@dataclass
class Answer:
    """One HTTP response. `hang` never answers, `drop` closes the connection."""

    body: bytes | dict[str, Any] = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    hang: bool = False
    drop: bool = False
    after: asyncio.Event | None = None

    def encode(self) -> bytes:
        body = self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()
        head = {
            "content-type": "application/json",
            **self.headers,
            "content-length": str(len(body)),
        }
        lines = [f"HTTP/1.1 {self.status} X", *(f"{k}: {v}" for k, v in head.items()), "", ""]
        return "\r\n".join(lines).encode() + body


class Endpoint:
    """Plays answers in order, the last one for ever, and keeps the requests."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.requests: list[dict[str, Any]] = []
        self.headers: list[str] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Endpoint:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        await close_clients()
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while await self._answer(reader, writer):
                pass
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
        except asyncio.IncompleteReadError:
            return False
        length = next(
            int(line.split(":")[1])
            for line in head.splitlines()
            if line.lower().startswith("content-length:")
        )
        self.headers.append(head)
        self.requests.append(json.loads(await reader.readexactly(length)))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer.hang:
            await asyncio.Event().wait()
        if answer.after:
            await answer.after.wait()
        if answer.drop:
            return False
        writer.write(answer.encode())
        await writer.drain()
        return True


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    async with Endpoint() as server:
        yield server


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hermes_queue.agent.endpoint.errors.BACKOFF_S", 0.001)
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


def ok(content: str | None = "hi", **choice: Any) -> Answer:
    message = {"role": "assistant", "content": content, **choice.pop("message", {})}
    top = choice.pop("top", {})
    usage = {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": None}
    choices = [{"index": 0, "message": message, "finish_reason": "stop", **choice}]
    return Answer({"id": "x", "choices": choices, "usage": usage, **top})


def error(status: int, message: str = "no", **fields: Any) -> Answer:
    return Answer({"error": {"message": message, **fields}}, status)


async def no_gold() -> tuple[list[ToolCall], str]:
    raise AssertionError("a model must not see the gold answer")


def chat(
    endpoint: Endpoint, *, retries: int = 2, timeout_s: float = 30.0, **spec: Any
) -> OpenAIChat:
    params = {"probe_tools": False, **spec.pop("params", {})}
    made = make_chat(
        AgentSpec(kind="openai", model="m", base_url=endpoint.url, params=params, **spec),
        AgentScript(oracle=no_gold),
        ModelSettings(max_retries=retries, request_timeout_s=timeout_s, trusted_urls=endpoint.url),
    )
    assert isinstance(made, OpenAIChat)
    return made


async def ask(
    client: OpenAIChat, *messages: Message, seconds: float = 30.0, **sampling: Any
) -> Reply:
    return await client.complete(
        messages or (USER,), TOOLS, sampling, deadline=time.monotonic() + seconds
    )


# --- what goes over the wire ------------------------------------------------------------


async def test_the_request_holds_messages_tools_and_sampling_as_they_are(
    endpoint: Endpoint,
) -> None:
    endpoint.answers = [ok()]
    reply = await ask(chat(endpoint), temperature=0.5, top_k=3, max_tokens=9)
    assert endpoint.requests == [
        {
            "model": "m",
            "messages": [{"role": "user", "content": "hello"}],
            "tools": TOOLS,
            "temperature": 0.5,
            "top_k": 3,
            "max_tokens": 9,
        }
    ]
    assert reply.message == Message(role="assistant", content="hi")
    assert reply.turn.usage.prompt_tokens == 7
    assert reply.turn.finish_reason == "stop"
    assert reply.turn.server == endpoint.url
    assert reply.turn.sampling == {"model": "m", "temperature": 0.5, "top_k": 3, "max_tokens": 9}


async def test_sampling_must_not_replace_the_conversation(endpoint: Endpoint) -> None:
    with pytest.raises(ModelConfigError, match="messages, stream"):
        await ask(chat(endpoint), stream=True, messages=[])


async def test_tool_calls_are_kept_as_the_model_wrote_them(endpoint: Endpoint) -> None:
    calls = [
        {"id": "a", "type": "function", "function": {"name": "terminal", "arguments": "{broken"}},
        {"function": {"name": "terminal", "arguments": {"command": "ls"}}, "index": 1},
        {"id": "c", "type": "custom", "custom": {"name": "free", "input": "text"}},
    ]
    endpoint.answers = [ok(None, message={"tool_calls": calls})]
    reply = await ask(chat(endpoint))
    assert [(c.id, c.function.name, c.function.arguments) for c in reply.message.tool_calls] == [
        ("a", "terminal", "{broken"),
        ("call_0_1", "terminal", '{"command": "ls"}'),
        ("c", "free", "text"),
    ]


async def test_tool_calls_with_equal_ids_get_ids_of_their_own(endpoint: Endpoint) -> None:
    call = {"id": "a", "function": {"name": "terminal", "arguments": "{}"}}
    endpoint.answers = [ok(None, message={"tool_calls": [call, call]})]
    reply = await ask(chat(endpoint))
    assert [c.id for c in reply.message.tool_calls] == ["call_0_0", "call_0_1"]


async def test_arguments_that_are_not_a_json_object_are_rewritten_for_the_server_with_an_event(
    endpoint: Endpoint,
) -> None:
    endpoint.answers = [ok()]
    bad = ToolCall(id="b", function=FunctionCall(name="terminal", arguments="{broken"))
    history = (
        USER,
        Message(role="assistant", tool_calls=(bad,)),
        Message(role="tool", content="invalid", tool_call_id="b"),
    )
    client = chat(endpoint)
    first, second = await ask(client, *history), await ask(client, *history)
    sent = endpoint.requests[0]["messages"][1]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(sent) == {"invalid_arguments": "{broken"}
    assert first.events == ({"event": "arguments_rewritten", "call": "b"},)
    assert second.events == ()


async def test_calls_that_lack_ids_get_different_ones_in_calls_at_the_same_time(
    endpoint: Endpoint,
) -> None:
    call = {"function": {"name": "terminal", "arguments": "{}"}}
    endpoint.answers = [ok(None, message={"tool_calls": [call, call]})]
    client = chat(endpoint)
    earlier = Message(role="assistant", tool_calls=(make_call("call_6_0", "terminal"),))
    replies = await asyncio.gather(*(ask(client, USER, earlier) for _ in range(3)))
    ids = [call.id for reply in replies for call in reply.message.tool_calls]
    assert sorted(ids) == [f"call_{number}_{i}" for number in (7, 8, 9) for i in (0, 1)]


async def test_a_name_that_servers_refuse_is_rewritten_for_the_server_and_kept_on_the_record(
    endpoint: Endpoint,
) -> None:
    names = ["run shell!", "", "x" * 65, "terminal", "of.ours"]
    endpoint.answers = [
        ok(None, message={"tool_calls": [{"id": n, "function": {"name": n}} for n in names]}),
        ok(),
    ]
    client = chat(endpoint)
    reply = await ask(client)
    assert [call.function.name for call in reply.message.tool_calls] == names
    tools = [{"type": "function", "function": {"name": "of.ours", "parameters": {}}}]
    calls = [
        call.model_copy(update={"function": FunctionCall(name=name, arguments="{}")})
        for name, call in zip(names, reply.message.tool_calls, strict=True)
    ]
    history = [USER, Message(role="assistant", tool_calls=tuple(calls))]
    second = await client.complete(history, tools, {}, time.monotonic() + 60)
    sent = endpoint.requests[1]["messages"][1]["tool_calls"]
    assert [call["function"]["name"] for call in sent] == [
        *("run_shell_", "unnamed", "x" * 64, "terminal", "of.ours")
    ]
    rewritten = [
        event["call"] for event in second.events if event["event"] == "arguments_rewritten"
    ]
    assert rewritten == [call.id for call in calls[:3]]


@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        (error(400, "Invalid 'messages[3].tool_calls[0].function.name'"), ModelError),
        (error(422, "bad", loc=["body", "messages", 3, "content"]), ModelError),
        (error(400, "temperature must be positive"), ModelConfigError),
    ],
)
async def test_a_history_that_is_refused_after_a_turn_is_no_mistake_of_the_job(
    endpoint: Endpoint, answer: Answer, failure: type[Exception]
) -> None:
    endpoint.answers = [ok(), answer]
    client = chat(endpoint)
    await ask(client)
    with pytest.raises(failure) as caught:
        await ask(client)
    assert type(caught.value) is failure
    assert len(endpoint.requests) == 2
    with pytest.raises(ModelConfigError):  # what is refused from the first is one
        await ask(chat(endpoint))


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
async def test_reasoning_is_kept_and_goes_back_under_the_servers_name(
    endpoint: Endpoint, name: str
) -> None:
    endpoint.answers = [ok("a", message={name: "because"})]
    client = chat(endpoint)
    reply = await ask(client)
    assert reply.message.reasoning == "because"
    await ask(client, USER, reply.message)
    assert endpoint.requests[1]["messages"][1] == {
        "role": "assistant",
        "content": "a",
        name: "because",
    }


async def test_text_that_utf8_cannot_hold_is_replaced(endpoint: Endpoint) -> None:
    endpoint.answers = [ok("a\ud800b")]
    assert (await ask(chat(endpoint))).message.content == "a?b"


# --- tokens -----------------------------------------------------------------------------

LOGPROBS = {"content": [{"token": "a", "logprob": -0.1}, {"token": "b", "logprob": -2.5}]}
VLLM = ok(token_ids=[3, 4], logprobs=LOGPROBS, top={"prompt_token_ids": [1, 2]})
SGLANG = ok(prompt_token_ids=[1, 2], response_token_ids=[3, 4], logprobs=LOGPROBS)


@pytest.mark.parametrize("answer", [VLLM, SGLANG], ids=["vllm", "sglang"])
async def test_token_ids_and_logprobs_are_captured(endpoint: Endpoint, answer: Answer) -> None:
    endpoint.answers = [answer]
    reply = await ask(chat(endpoint, params={"token_ids": True, "logprobs_mode": "raw_logprobs"}))
    assert endpoint.requests[0]["return_token_ids"] is True
    assert endpoint.requests[0]["logprobs"] is True
    assert (reply.turn.prompt_ids, reply.turn.completion_ids) == ((1, 2), (3, 4))
    assert reply.turn.logprobs == (pytest.approx(-0.1), -2.5)
    assert reply.turn.logprobs != (-0.1, -2.5), "rounded to float32"
    assert reply.turn.logprobs_mode == "raw_logprobs"
    (sequence,), _ = merge_with_breaks([reply.turn])
    assert sequence.loss_mask == (0, 0, 1, 1)


async def test_ids_are_not_asked_for_unless_wanted_and_never_invented(endpoint: Endpoint) -> None:
    endpoint.answers = [ok()]
    reply = await ask(chat(endpoint))
    assert "return_token_ids" not in endpoint.requests[0]
    assert reply.turn.completion_ids is None
    with pytest.raises(ModelConfigError, match="no ids of the completion"):
        await ask(chat(endpoint, params={"token_ids": True}))


async def test_ids_and_logprobs_that_do_not_match_are_malformed(endpoint: Endpoint) -> None:
    endpoint.answers = [ok(token_ids=[3], logprobs=LOGPROBS)]
    with pytest.raises(ModelError, match="1 token ids but 2 logprobs"):
        await ask(chat(endpoint))


# --- faults that pass -------------------------------------------------------------------

TRANSIENT = {
    "429": error(429),
    "500": error(500),
    "503 html": Answer(b"<html>", 503),
    "408": error(408),
    "409": error(409),
    "html with 200": Answer(b"<html>ok</html>", headers={"content-type": "text/html"}),
    "broken json": Answer(b'{"choices": ['),
    "not utf-8": Answer(b'{"choices": "\xff"}'),
    "no body": Answer(b""),
    "a list": Answer(b"[]"),
    "choices empty": Answer({"choices": []}),
    "choices null": Answer({"choices": None, "error": {"message": "overloaded"}}),
    "choices of nonsense": Answer({"choices": "nonsense"}),
    "choice without message": Answer({"choices": [{}]}),
    "message is text": Answer({"choices": [{"message": "x"}]}),
    "calls of nonsense": ok(message={"tool_calls": ["x"]}),
    "content of nonsense": ok(message={"content": {"a": 1}}),
    "usage of nonsense": ok(top={"usage": {"prompt_tokens": "many"}}),
    "ids of nonsense": ok(token_ids=["a"]),
    "nan logprob": ok(token_ids=[1], logprobs={"content": [{"logprob": float("nan")}]}),
    "nested too deeply": Answer(b"[" * 100_000),
    "dropped": Answer(drop=True),
}


@pytest.mark.parametrize("fault", TRANSIENT.values(), ids=TRANSIENT.keys())
async def test_a_fault_that_passes_is_tried_again(endpoint: Endpoint, fault: Answer) -> None:
    endpoint.answers = [fault, fault, ok("fine")]
    assert (await ask(chat(endpoint))).message.content == "fine"
    assert len(endpoint.requests) == 3


@pytest.mark.parametrize("fault", TRANSIENT.values(), ids=TRANSIENT.keys())
async def test_a_fault_that_stays_is_a_model_error(endpoint: Endpoint, fault: Answer) -> None:
    endpoint.answers = [fault]
    with pytest.raises(ModelError, match=r"http://127\.0\.0\.1"):
        await ask(chat(endpoint, retries=1))
    assert len(endpoint.requests) == 2


@pytest.mark.parametrize(
    "headers",
    [{"retry-after": "0.3"}, {"retry-after-ms": "300"}, {"llm_provider-retry-after": "0.3"}],
)
async def test_the_server_says_how_long_to_wait(
    endpoint: Endpoint, headers: dict[str, str]
) -> None:
    endpoint.answers = [Answer({"error": {}}, 429, headers), ok()]
    began = time.monotonic()
    await ask(chat(endpoint))
    assert time.monotonic() - began >= 0.3


async def test_what_calls_of_a_run_fail_of_is_known_until_one_succeeds(endpoint: Endpoint) -> None:
    late = Answer({"error": {}}, 503, {"retry-after": "3600"})
    endpoint.answers = [error(429, "slow down"), late]
    with logs.about("r.group.0"):
        with pytest.raises(ModelError):
            await ask(chat(endpoint), seconds=60)
        assert trouble.by_run()["r"].startswith(endpoint.url)
        assert "503, " in trouble.by_run()["r"]
        endpoint.answers = [ok()]
        await ask(chat(endpoint))
    assert "r" not in trouble.by_run()


async def test_a_wait_beyond_the_deadline_is_the_endpoints_fault_not_an_outcome(
    endpoint: Endpoint,
) -> None:
    endpoint.answers = [Answer({"error": {}}, 429, {"retry-after": "3600"})]
    with pytest.raises(ModelError, match="no time is left"):
        await ask(chat(endpoint), seconds=60)
    assert len(endpoint.requests) == 1


async def test_a_hanging_server_is_left_at_the_deadline(endpoint: Endpoint) -> None:
    endpoint.answers = [Answer(hang=True)]
    with pytest.raises(TimeoutError):
        await ask(chat(endpoint), seconds=0.3)


async def test_a_request_that_hangs_is_tried_again(endpoint: Endpoint) -> None:
    endpoint.answers = [Answer(hang=True), ok("fine")]
    client = chat(endpoint, timeout_s=1.0, retries=8)
    assert (await ask(client)).message.content == "fine"


async def test_a_server_that_is_not_there_is_a_model_error(endpoint: Endpoint) -> None:
    client = chat(endpoint, retries=1)
    endpoint._server.close()
    await endpoint._server.wait_closed()
    with pytest.raises(ModelError, match=r"ConnectionRefusedError: .*Connect call failed"):
        await ask(client)


async def test_cancellation_passes_through(endpoint: Endpoint) -> None:
    endpoint.answers = [Answer(hang=True)]
    task = asyncio.create_task(ask(chat(endpoint)))
    while not endpoint.requests:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# --- faults that stay -------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        error(400, "bad temperature"),
        error(401, "wrong key"),
        error(402, "no credit"),
        error(403),
        error(404, "no such model"),
        error(422),
        error(429, code="insufficient_quota"),
        error(400, "max_tokens is too large: maximum context length is 9", param="max_tokens"),
        error(
            400,
            "'max_tokens' or 'max_completion_tokens' is too large: 99999. This model's maximum "
            "context length is 8192 tokens and your request has 20 input tokens",
        ),
        Answer(b"<html>not found</html>", 404),
    ],
    ids=lambda answer: str(answer.status),
)
async def test_what_a_person_must_fix_is_not_tried_again(
    endpoint: Endpoint, answer: Answer
) -> None:
    endpoint.answers = [answer]
    with pytest.raises(ModelConfigError):
        await ask(chat(endpoint))
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize(
    "answer",
    [
        error(400, "This model's maximum context length is 4096 tokens", param="input_tokens"),
        error(400, "too long", code="context_length_exceeded"),
        Answer(
            {
                "object": "error",
                "message": "The input (9) is longer than the model's context length",
            },
            400,
        ),
        error(413, "too large"),
    ],
    ids=["vllm", "openai", "sglang", "413"],
)
async def test_an_overlong_conversation_is_recognised(endpoint: Endpoint, answer: Answer) -> None:
    endpoint.answers = [answer]
    with pytest.raises(ContextLengthExceeded):
        await ask(chat(endpoint))
    assert len(endpoint.requests) == 1


async def test_a_cap_that_fitted_at_first_means_the_conversation_has_grown(
    endpoint: Endpoint,
) -> None:
    text = "max_tokens is too large: maximum context length is 9"
    endpoint.answers = [ok(), error(400, text, param="max_tokens")]
    client = chat(endpoint)
    await ask(client)
    with pytest.raises(ContextLengthExceeded):
        await ask(client)


# --- configuration ----------------------------------------------------------------------


def build(**spec: Any) -> Callable[[], object]:
    settings = ModelSettings()
    return lambda: make_chat(
        AgentSpec(kind="openai", **spec), AgentScript(oracle=no_gold), settings
    )


def test_an_endpoint_and_a_model_are_needed() -> None:
    with pytest.raises(ModelConfigError, match="--model"):
        build(base_url="http://127.0.0.1:1/v1")()
    with pytest.raises(ModelConfigError, match="--base-url"):
        build(model="m")()


async def test_the_key_comes_from_the_settings(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERMES_QUEUE_MODEL_API_KEY", "sesame")
    endpoint.answers = [ok()]
    await ask(chat(endpoint))
    assert "authorization: bearer sesame" in endpoint.headers[0].lower()


async def test_trajectories_share_connections(endpoint: Endpoint) -> None:
    endpoint.answers = [ok()]
    for _ in range(3):
        await ask(chat(endpoint))
    assert len(endpoint._tasks) == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_cookies_of_an_endpoint_are_neither_kept_nor_sent(
    endpoint: Endpoint, host: str
) -> None:
    endpoint.answers = [Answer(ok().body, headers={"set-cookie": "route=replica-1"})]
    endpoint.url = endpoint.url.replace("127.0.0.1", host)
    for _ in range(2):
        await ask(chat(endpoint))
    assert [head for head in endpoint.headers if "cookie" in head.lower()] == []


async def test_of_ever_new_endpoints_a_few_clients_are_kept_and_none_in_use_is_closed(
    endpoint: Endpoint,
) -> None:
    go = asyncio.Event()
    endpoint.answers = [ok(), ok("late")]
    endpoint.answers[1].after = go
    await ask(chat(endpoint))
    asked = asyncio.create_task(ask(chat(endpoint)))
    while len(endpoint.requests) < 2:
        await asyncio.sleep(0)
    for number in range(2 * KEPT):
        await connection.Endpoint(f"{endpoint.url}/{number}", "key", timeout_s=30.0)._client()
    assert len(connection._connections[asyncio.get_running_loop()].clients) == KEPT
    go.set()
    assert (await asked).message.content == "late"


async def test_credentials_in_the_url_are_sent_and_not_recorded(endpoint: Endpoint) -> None:
    endpoint.answers = [ok()]
    url = endpoint.url
    endpoint.url = url.replace("http://", "http://user:se%40cret@")
    reply = await ask(chat(endpoint))
    assert reply.turn.server == url
    token = base64.b64encode(b"user:se@cret").decode()
    assert f"authorization: basic {token}".lower() in endpoint.headers[0].lower()
