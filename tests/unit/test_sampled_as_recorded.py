"""A turn is what the server sampled, for the prompt that the record shows, or there is none."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from chat_endpoint import ChatEndpoint, Raw, completion
from records import make_job, make_record
from token_stub import TokenStub

from hermes_queue.agent import AgentResult, AgentScript, make_chat, run_agent
from hermes_queue.agent.chat import Reply
from hermes_queue.agent.endpoint.connection import close_clients
from hermes_queue.agent.endpoint.dialect import ToolDialect
from hermes_queue.bodies.codec import decode_record, encode_record
from hermes_queue.errors import ModelConfigError, ModelError
from hermes_queue.models import AgentSpec, Limits, Message
from hermes_queue.settings import ModelSettings

pytestmark = pytest.mark.xdist_group("openai")
"""One process imports the OpenAI SDK."""

MODES: dict[str, dict[str, Any]] = {"tokens": {"mode": "tokens"}, "messages": {"token_ids": True}}
EVERY = [(kind, mode) for kind in ("vllm", "sglang") for mode in MODES]
USER = Message(role="user", content="hi")


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hermes_queue.agent.endpoint.errors.BACKOFF_S", 0.001)


async def gold() -> Any:
    raise AssertionError("only the oracle asks")


def chat_of(stub: TokenStub, mode: str, retries: int = 0, **params: Any) -> Any:
    params = {"server": stub.kind, **MODES[mode], "logprobs_mode": "raw_logprobs", **params}
    spec = AgentSpec(kind="openai", model="m", base_url=stub.url, params=params)
    # That aborted replies are continued is in test_continued_replies.py.
    settings = ModelSettings(max_retries=retries, trusted_urls=stub.url, max_continuations=0)
    return make_chat(spec, AgentScript(gold), settings)


async def ask(
    kind: str, mode: str, break_reply: Any, *, retries: int = 0, **sampling: Any
) -> tuple[Reply, TokenStub]:
    async with TokenStub(["hello"] * 3, kind=kind) as stub:
        stub.break_reply = break_reply
        chat = chat_of(stub, mode, retries)
        try:
            return await chat.complete([USER], [], sampling, time.monotonic() + 60), stub
        finally:
            await close_clients()


def once(change: Any) -> Any:
    """`change` for the first reply alone."""
    replies: list[Any] = []

    def break_reply(answer: Any) -> None:
        replies.append(answer)
        if len(replies) == 1:
            change(answer)

    return break_reply


def cut_short(why: str) -> Any:
    """The reply of a server that gave the request up: what there was of it, and that it did."""

    def change(answer: Any) -> None:
        if "meta_info" in answer:
            del answer["meta_info"]["output_token_logprobs"][2:]
            answer["meta_info"]["completion_tokens"] = 2
            answer["meta_info"]["finish_reason"] = {"type": why, "message": "Abort"}
            return
        choice = answer["choices"][0]
        choice["finish_reason"], choice["stop_reason"] = why, None
        for name in ("token_ids", "response_token_ids"):
            if name in choice:
                del choice[name][2:]
        logprobs = choice["logprobs"]
        del (logprobs.get("content") or logprobs["token_logprobs"])[2:]
        if "message" in choice:
            choice["message"]["content"] = "he"

    return change


@pytest.mark.parametrize(("kind", "mode"), EVERY)
@pytest.mark.parametrize("why", ["abort", "error"])
async def test_a_reply_that_the_server_gave_up_is_no_turn_but_tried_again(
    kind: str, mode: str, why: str
) -> None:
    reply, _ = await ask(kind, mode, once(cut_short(why)), retries=1)
    assert reply.message.content == "hello"
    assert len(reply.turn.completion_ids or ()) == len("hello") + 1
    assert why in reply.events[0]["reason"]


@pytest.mark.parametrize(("kind", "mode"), EVERY)
async def test_a_server_that_gives_all_replies_up_is_a_failure_not_an_outcome(
    kind: str, mode: str
) -> None:
    with pytest.raises(ModelError, match="abort"):
        await ask(kind, mode, cut_short("abort"))


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
async def test_a_reply_of_no_tokens_is_no_missing_feature_of_the_server(kind: str) -> None:
    def empty(answer: Any) -> None:
        choice = answer["choices"][0]
        choice["message"]["content"], choice["logprobs"] = "", None
        choice["token_ids" if kind == "vllm" else "response_token_ids"] = []

    reply, _ = await ask(kind, "messages", empty)
    assert (reply.turn.completion_ids, reply.turn.logprobs) == ((), ())


@pytest.mark.parametrize(("kind", "mode"), EVERY)
async def test_a_placeholder_for_a_logprob_is_refused(kind: str, mode: str) -> None:
    def fill(answer: Any) -> None:
        if "meta_info" in answer:
            answer["meta_info"]["output_token_logprobs"][1][0] = -9999.0
        elif mode == "messages":
            answer["choices"][0]["logprobs"]["content"][1]["logprob"] = -9999.0
        else:
            answer["choices"][0]["logprobs"]["token_logprobs"][1] = -9999.0

    with pytest.raises(ModelError, match="marks a missing one"):
        await ask(kind, mode, fill)


@pytest.mark.parametrize(("kind", "mode"), EVERY)
@pytest.mark.parametrize("token", [-1, 2**31])
async def test_an_id_that_no_record_can_hold_is_refused(kind: str, mode: str, token: int) -> None:
    def replace(answer: Any) -> None:
        if "meta_info" in answer:
            answer["meta_info"]["output_token_logprobs"][1][1] = token
            return
        choice = answer["choices"][0]
        choice["token_ids" if "token_ids" in choice else "response_token_ids"][1] = token

    with pytest.raises(ModelError, match="a token id is not within 0 and 2147483647"):
        await ask(kind, mode, replace)


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
async def test_a_server_that_shortens_the_prompt_is_refused_with_what_to_do(kind: str) -> None:
    def shorten(answer: Any) -> None:
        (answer.get("meta_info") or answer["usage"])["prompt_tokens"] -= 3

    with pytest.raises(
        ModelConfigError, match=r"after \d+ tokens of a prompt of \d+: it must not truncate"
    ):
        await ask(kind, "tokens", shorten)


async def test_sglang_that_has_fewer_logprobs_than_tokens_is_refused() -> None:
    def lose(answer: Any) -> None:
        answer["meta_info"]["output_token_logprobs"].pop()

    with pytest.raises(ModelError, match="6 tokens but 5 logprobs"):
        await ask("sglang", "tokens", lose)


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
@pytest.mark.parametrize(
    "decoded", [{}, {"text": None, "prompt": None}, {"text": [], "prompt": []}]
)
async def test_tokens_whose_text_does_not_come_are_no_empty_reply(kind: str, decoded: Any) -> None:
    async with TokenStub(["hello"], kind=kind) as stub:
        honest = stub._answer

        def answer(path: str, body: Any) -> dict[str, Any]:
            return dict(decoded) if path.endswith("/detokenize") else honest(path, body)

        stub._answer = answer  # type: ignore[method-assign]
        with pytest.raises(ModelError, match="no text"):
            await chat_of(stub, "tokens").complete([USER], [], {}, time.monotonic() + 60)
        await close_clients()


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
@pytest.mark.parametrize("path", ["tokenize", "sample"])
async def test_fields_of_the_wrong_type_are_a_fault_of_the_server(kind: str, path: str) -> None:
    def garble(answer: Any) -> None:
        if "meta_info" in answer:
            answer["meta_info"]["prompt_tokens"] = "many"
        else:
            answer["usage"] = ["many"]

    async with TokenStub(["hello"], kind=kind) as stub:
        if path == "tokenize":
            stub.max_model_tokens = "many"  # type: ignore[assignment]
        else:
            stub.break_reply = garble
        with pytest.raises(ModelError, match=r"many|list"):
            await chat_of(stub, "tokens").complete([USER], [], {}, time.monotonic() + 60)
        await close_clients()


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
async def test_json_too_deep_to_read_is_a_fault_of_the_server(kind: str) -> None:
    async with ChatEndpoint(lambda path, body: Raw(b"[" * 200_000)) as endpoint:
        spec = AgentSpec(
            kind="openai",
            model="m",
            base_url=endpoint.url,
            params={"mode": "tokens", "server": kind},
        )
        chat = make_chat(
            spec, AgentScript(gold), ModelSettings(max_retries=0, trusted_urls=endpoint.url)
        )
        with pytest.raises(ModelError, match="RecursionError"):
            await chat.complete([USER], [], {}, time.monotonic() + 60)


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
async def test_what_sampling_says_of_the_template_reaches_the_template(kind: str) -> None:
    kwargs = {"enable_thinking": False}
    reply, stub = await ask(
        kind, "tokens", lambda _: None, chat_template_kwargs=kwargs, temperature=0.7
    )
    rendered = [body for path, body in stub.requests if path.endswith("/tokenize")]
    sampled = next(body for path, body in stub.requests if path in ("/generate", "/v1/completions"))
    assert [body["chat_template_kwargs"] for body in rendered] == [kwargs] * len(rendered)
    assert "chat_template_kwargs" not in json.dumps(sampled)
    assert reply.turn.sampling["chat_template_kwargs"] == kwargs


@pytest.mark.parametrize("name", ["prompt", "input_ids", "echo", "best_of", "use_beam_search"])
async def test_sampling_must_not_change_what_a_turn_is(name: str) -> None:
    with pytest.raises(ModelConfigError, match=f"must not set {name}"):
        await ask("vllm", "tokens", lambda _: None, **{name: True})


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        ("hermes", r'<tool_call>{"name": "t\ud800", "arguments": {}}</tool_call>'),
        ("hermes", r'<tool_call>{"name": "t", "arguments": "{\"a\": \"\ud800\"}"}</tool_call>'),
        ("llama3_json", r'{"name": "t\ud800", "parameters": {}}'),
        ("mistral", r'[TOOL_CALLS][{"name": "t\ud800", "arguments": {}}]'),
        ("qwen3_coder", '<function=t><parameter=a>{"k": "\\ud800"}</parameter></function>'),
    ],
)
def test_a_call_with_half_a_character_can_be_published(parser: str, text: str) -> None:
    parameters = {"type": "object", "properties": {"a": {"type": "object"}}}
    tools = [{"type": "function", "function": {"name": "t", "parameters": parameters}}]
    message, _ = ToolDialect(parser=parser).incoming(
        Message(role="assistant", content=text), tools, turn=0, finish_reason="stop"
    )
    [call] = message.tool_calls
    assert call.function.name.startswith("t")
    record = make_record(make_job()).model_copy(update={"messages": (message,)})
    assert decode_record(encode_record(record)).messages == (message,)


async def test_the_version_of_a_turn_is_that_of_its_own_answer() -> None:
    answers = [
        Raw(json.dumps(completion()[1]).encode(), headers={"X-Policy-Version": "7"}),
        completion(),
    ]
    async with ChatEndpoint(lambda path, body: answers.pop(0)) as endpoint:
        spec = AgentSpec(kind="openai", model="m", base_url=endpoint.url)
        chat = make_chat(spec, AgentScript(gold), ModelSettings(trusted_urls=endpoint.url))
        turns = [
            (await chat.complete([USER], [], {}, time.monotonic() + 60)).turn for _ in range(2)
        ]
    assert [turn.policy_version for turn in turns] == ["7", None]


async def test_weights_that_change_after_the_sampling_are_not_those_of_the_turn() -> None:
    async with TokenStub(["hello"]) as stub:

        def answer(path: str, body: Any) -> Any:
            found = json.dumps(stub._answer(path, body)).encode()
            new = path.endswith("/detokenize")
            return Raw(found, headers={"X-Policy-Version": "8" if new else "7"})

        async with ChatEndpoint(answer) as gateway:
            params = {"mode": "tokens", "logprobs_mode": "raw_logprobs"}
            spec = AgentSpec(kind="openai", model="m", base_url=gateway.url, params=params)
            chat = make_chat(spec, AgentScript(gold), ModelSettings(trusted_urls=gateway.url))
            reply = await chat.complete([USER], [], {}, time.monotonic() + 60)
    assert reply.turn.policy_version == "7"


@pytest.mark.parametrize(
    ("room", "sampling", "reason"),
    [
        (30, {}, "context_length"),
        (30, {"max_tokens": 99}, "context_length"),
        (3000, {"max_tokens": 6}, "max_tokens"),
    ],
)
async def test_a_reply_that_the_context_cut_off_is_not_one_beyond_its_budget(
    room: int, sampling: dict[str, int], reason: str
) -> None:
    class Toolbox:
        schemas = ()

        def postpone(self, seconds: float) -> None:
            pass

    result = AgentResult()
    async with TokenStub(["and so on..."], max_model_tokens=room) as stub:
        await run_agent(
            chat_of(stub, "tokens"),
            Toolbox(),  # type: ignore[arg-type]
            [USER],
            limits=Limits(),
            sampling=sampling,
            deadline=time.monotonic() + 60,
            into=result,
        )
        await close_clients()
    assert (result.stop_reason, result.turns[0].finish_reason) == (reason, "length")
