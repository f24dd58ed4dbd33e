"""Programs in real slots, with a scripted model behind their endpoint."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Sequence

import pytest
from chat_endpoint import Raw, completion
from program_bench import ROW, attempted, calling, program, scripted_model
from slot_bench import local_backend
from token_stub import TokenStub, decode

from hermes_queue.agent.endpoint.connection import close_clients
from hermes_queue.agent.tokens.invariants import token_violations
from hermes_queue.errors import (
    EnvBug,
    ModelConfigError,
    ModelError,
    SandboxError,
    SlotKilled,
    SlotLost,
)
from hermes_queue.models import AttemptRecord, Failure
from hermes_queue.sandbox.base import ExecutionRequest, ExecutionResult
from hermes_queue.sandbox.local.backend import LocalBackend
from hermes_queue.settings import LocalSandboxSettings
from workers.program import process
from workers.record import encoded, record_of

pytestmark = pytest.mark.xdist_group("openai")
"""One process imports the OpenAI SDK."""

BOXED = completion(r"They are \boxed{24}.")


@pytest.fixture
async def slots() -> AsyncIterator[LocalBackend]:
    async with local_backend() as backend:
        yield backend


async def test_an_unchanged_program_is_scored_by_what_its_model_said(slots: LocalBackend) -> None:
    code = """
    print(work())
    open(os.environ["HOME"] + "/own.json", "w").write("mine " + KEY)
    print("the key is " + KEY, file=sys.stderr)
    urllib.request.urlopen("http://" + HOST + "/v1/models").read() if 0 else None
    try:
        post("/v1/embeddings", {})
    except urllib.error.HTTPError as error:
        print(error.code)
    sys.exit(3)
    """
    definition = program(code, keep=["{home}/own.json", "{home}/absent"])
    async with scripted_model(calling("echo $((2*12))"), BOXED) as model:
        draft, failure = await attempted(slots, model, definition)
    assert failure is None
    record, _ = encoded(record_of(draft, owner="o", host="h"), 1 << 20)
    assert (record.score, record.stop_reason) == (1.0, "exited")
    assert [m.role for m in record.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert record.messages[3].content == "24\n"
    assert [turn.call.status for turn in record.turns if turn.call] == ["delivered"] * 2
    assert [tool["function"]["name"] for tool in record.tools] == ["sh"]
    assert (record.tool_calls.attempted, record.tool_calls.schema_valid) == (1, 1)
    run = record.program
    assert run is not None
    assert (run.name, run.version, run.exit_code) == ("tiny", "1", 3)
    assert (run.stdout, run.stderr) == ("They are \\boxed{24}.\n404\n", "the key is ***\n")
    assert list(run.kept.values()) == ["mine ***"]
    assert list(run.other_requests) == ["POST /v1/embeddings 404"]
    assert "hq-" not in record.model_dump_json().replace("hermes-queue", "")
    [first, _] = model.bodies()
    assert (first["model"], first["tools"][0]["function"]["name"]) == ("policy", "sh")


async def test_a_program_that_rewrites_its_replies_continues_the_very_tokens_of_the_model(
    slots: LocalBackend,
) -> None:
    code = """
    messages = [user(TASK)]
    for _ in range(3):
        said = ask(messages)
        for call in said.get("tool_calls") or ():
            call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]),
                                                       separators=(",", ":"))
        messages.append(dict(said, provider_specific_fields=dict(refusal=None)))
        for call in said.get("tool_calls") or ():
            messages.append(dict(role="tool", tool_call_id=call["id"], content="24", name="sh"))
    """
    replies = [
        '<tool_call>{"name":  "sh", "arguments": {"command" : "echo 12"}}</tool_call>',
        'So: <tool_call>{"arguments": {"command" :"echo 24"}, "name": "sh"}</tool_call>',
        "\\boxed{24}",
    ]
    tokens = {"mode": "tokens", "server": "vllm"}
    async with TokenStub(replies) as model:
        draft, failure = await attempted(slots, model, program(code), params=tokens)
        await close_clients()
    assert failure is None
    record = record_of(draft, owner="o", host="h")
    assert (record.score, token_violations(record)) == (1.0, [])
    assert record.sequences is not None
    [sequence] = record.sequences
    assert [r for r in replies if r not in decode([*sequence.ids])] == []
    sampled = [i for i, mask in zip(sequence.ids, sequence.loss_mask, strict=True) if mask]
    assert len(sampled) == sum(len(turn.completion_ids or ()) for turn in record.turns)


async def test_nothing_of_a_program_is_left_for_the_verifier(slots: LocalBackend) -> None:
    code = """
    ask([user(TASK)])
    for _ in range(3):
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(1000)
        os._exit(0)
    open("/tmp/port", "w").write(HOST.partition(":")[2])
    """
    async with scripted_model(BOXED) as model:
        draft, failure = await attempted(slots, model, program(code), env="watching_env:ENV")
    assert failure is None
    assert draft.verdict is not None
    assert draft.verdict.report == {"processes": ["bash", "python3"], "endpoint": "refused"}


async def test_the_key_is_on_no_command_line_where_neighbours_could_see_it(
    slots: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[ExecutionRequest] = []
    execute = slots.execute_batch

    async def watched(
        requests: Sequence[ExecutionRequest],
    ) -> list[ExecutionResult | SandboxError]:
        sent.extend(requests)
        return await execute(requests)

    monkeypatch.setattr(slots, "execute_batch", watched)
    code = """
    left = os.listdir(os.environ["HOME"])
    print(ask([user(TASK)])["content"], os.environ["ODD"], left, os.environ["PATH"])
    """
    definition = program(code)
    odd = "it's $HOME `id` \n\\ \""
    definition["env"] |= {"ODD": odd, "PATH": "/nothing"}
    definition["run"] = definition["run"].replace("exec python3", "exec /opt/python/bin/python3")
    definition["run"] = "PATH=/usr/bin:/bin\n" + definition["run"]
    async with scripted_model(BOXED) as model:
        draft, failure = await attempted(slots, model, definition)
    assert failure is None
    run = draft.agent.program
    assert run is not None
    assert run.stdout == (f"They are \\boxed{{24}}. {odd} ['task.txt', 'tiny.py'] /usr/bin:/bin\n")
    assert "hq-" not in "".join(run.argv)
    seen = [*(each.command for each in sent), *(f"{each.env}" for each in sent)]
    assert [each for each in seen if "hq-" in each.replace(".hq-", "")] == []


async def test_a_program_that_goes_on_after_a_limit_is_killed_and_scored(
    slots: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "LEAVE_S", 0.5)
    code = """
    print("begun", flush=True)
    for number in range(10**6):
        try:
            ask([user(TASK), dict(role="assistant", content=str(number)), user("on")])
        except urllib.error.HTTPError as error:
            assert error.code == 401
            time.sleep(0.05)
    """
    async with scripted_model(BOXED) as model:
        draft, failure = await attempted(slots, model, program(code), limits={"max_turns": 2})
    assert failure is None
    assert (draft.agent.stop_reason, len(model.requests)) == ("max_turns", 2)
    run = draft.agent.program
    assert run is not None
    assert (run.exit_code, run.stdout) == (None, "begun\n")
    assert run.refused["stopped"] > 1


@pytest.mark.fleet
async def test_time_is_up_for_a_program_that_goes_on_to_hammer_its_endpoint(
    slots: LocalBackend,
) -> None:
    code = """
    import threading
    ask([user(TASK)])
    def hammer():
        while True:
            try:
                post("/v1/nothing", dict())
            except Exception:
                time.sleep(0.03)
    for _ in range(4):
        threading.Thread(target=hammer).start()
    """
    limits = {"agent_timeout_s": 6.0}  # by then it has begun, on a busy machine too
    async with scripted_model(BOXED) as model:
        draft, failure = await attempted(slots, model, program(code), limits=limits)
    assert (failure, draft.agent.stop_reason) == (None, "time_limit")
    assert draft.verdict is not None
    assert draft.verdict.score == 1.0
    run = draft.agent.program
    assert run is not None
    assert list(run.other_requests) == ["POST /v1/nothing 404"]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("time.sleep(1000)", "without a single model call; it printed nothing"),
        ("print('no network'); sys.exit(1)", "ended with exit code 1 without a single model call"),
        (
            "post('/v1/chat/completions', dict(model='m', messages=[user(TASK)]), 'hq-aaa')",
            "POST /v1/chat/completions 401",
        ),
        ("ask([dict(role='user', content=7)])", "400"),
    ],
)
async def test_a_program_that_never_had_a_reply_is_no_zero(
    slots: LocalBackend, code: str, words: str
) -> None:
    limits = {"agent_timeout_s": 1.5 if "sleep" in code else 60.0}
    async with scripted_model(BOXED) as model:
        draft, failure = await attempted(slots, model, program(code), limits=limits)
    assert isinstance(failure, ModelConfigError)
    assert words in str(failure)
    assert (failure.stage, draft.verdict, model.requests) == ("agent", None, [])


async def test_a_program_that_is_not_there_is_no_zero(slots: LocalBackend) -> None:
    run = "/opt/assets/agent/bin/tiny {task} {url} {key}"
    async with scripted_model(BOXED) as model:
        _, failure = await attempted(slots, model, {"name": "tiny", "run": run})
    assert isinstance(failure, ModelConfigError)
    assert "could not be started" in str(failure)


async def test_a_task_that_fits_no_command_line_is_a_fault_of_the_row_and_of_no_setting(
    slots: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ROW, "question", "egg " * 40_000)
    definition = {"name": "tiny", "run": '/bin/true "$(cat {task})" {url} {key}'}
    async with scripted_model(BOXED) as model:
        _, failure = await attempted(slots, model, definition)
    assert type(failure) is EnvBug
    assert "the program tiny is given it as a word" in str(failure)


async def test_a_model_that_fails_for_good_is_not_the_programs_fault(
    slots: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hermes_queue.agent.endpoint.errors.BACKOFF_S", 0.001)
    code = """
    first = ask([user(TASK)])
    try:
        ask([user(TASK), first, user("on")])
    except urllib.error.HTTPError as error:
        print(error.code)
        time.sleep(1000)
    """
    down = (500, {"error": {"message": "out of order"}})
    async with scripted_model(BOXED, down) as model:
        draft, failure = await attempted(slots, model, program(code))
    assert isinstance(failure, ModelError)
    assert (len(model.requests), draft.verdict) == (5, None), "two tries each of two calls"
    assert [m.content for m in draft.agent.messages if m.role == "assistant"] == [
        "They are \\boxed{24}."
    ]


GIVES_UP = """
import threading
def give_up(*messages):
    threading.Thread(target=ask, args=([user(TASK), *messages],), daemon=True).start()
    time.sleep(0.6)
    os._exit(0)
"""


async def test_a_program_that_gave_up_on_its_first_call_is_no_zero_and_no_wrong_setting(
    slots: LocalBackend,
) -> None:
    async with scripted_model(Raw(hang=True)) as model:
        draft, failure = await attempted(slots, model, program(GIVES_UP + "give_up()"))
    assert (type(failure), draft.verdict, len(model.requests)) == (ModelError, None, 1)


async def test_a_program_that_gave_up_on_a_model_that_was_away_for_long_is_no_zero(
    slots: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hermes_queue.agent.endpoint.errors.BACKOFF_S", 30.0)
    monkeypatch.setattr("hermes_queue.agent.endpoint.errors.BACKOFF_MAX_S", 30.0)
    monkeypatch.setattr("workers.program.run.GAVE_UP_S", 0.2)
    code = GIVES_UP + "give_up(ask([user(TASK)]), user('on'))"
    down = (500, {"error": {"message": "out of order"}})
    async with scripted_model(BOXED, down) as model:
        draft, failure = await attempted(slots, model, program(code))
    assert (type(failure), draft.verdict, len(model.requests)) == (ModelError, None, 2)


async def test_a_reply_whose_client_hung_up_is_given_to_the_next_equal_call(
    slots: LocalBackend,
) -> None:
    code = """
    body = json.dumps(dict(model="policy", messages=[user(TASK)]))
    host, port = HOST.split(":")
    for _ in range(3):
        gone = socket.create_connection((host, int(port)))
        head = "POST /v1/chat/completions HTTP/1.1\\r\\nhost: x\\r\\nauthorization: Bearer " + KEY
        gone.sendall((head + "\\r\\ncontent-length: %d\\r\\n\\r\\n" % len(body) + body).encode())
        time.sleep(0.05)
        gone.close()
    print(post("/v1/chat/completions", json.loads(body))["choices"][0]["message"]["content"])
    """
    slow = Raw(json.dumps(BOXED[1]).encode(), wait_s=0.5)
    async with scripted_model(slow) as model:
        draft, failure = await attempted(slots, model, program(code))
    assert failure is None
    run = draft.agent.program
    assert run is not None
    assert (run.exit_code, run.stdout) == (0, "They are \\boxed{24}.\n")
    assert len(model.requests) == 1
    assert [turn.call.status for turn in draft.agent.turns if turn.call] == ["delivered"]


async def test_a_slot_that_dies_under_a_program_is_a_failure_of_the_sandbox(
    slots: LocalBackend,
) -> None:
    def end_slot() -> Raw:
        [slot] = slots._slots.values()
        os.kill(slot.fence.init_pid, signal.SIGKILL)
        return Raw(hang=True)

    async with scripted_model(end_slot) as model:
        draft, failure = await attempted(slots, model, program("work()"))
    assert (type(failure), draft.verdict) == (SlotLost, None)
    assert slots.free_slots == 1


class SlotsThatProgramsEnd(LocalBackend):
    """Each program, once it has ended, has killed its slot."""

    async def execute_batch(
        self, requests: Sequence[ExecutionRequest]
    ) -> list[ExecutionResult | SandboxError]:
        results = await super().execute_batch(requests)
        killed = ["tiny.py" in each.command for each in requests]
        return [SlotKilled("x") if k else r for k, r in zip(killed, results, strict=True)]


@pytest.mark.parametrize("again", [False, True])
async def test_a_program_that_kills_its_slot_again_is_measured_on_an_untouched_one(
    again: bool,
) -> None:
    gone = Failure(cause="sandbox", stage="agent", type="SlotKilled", message="gone")
    earlier = (AttemptRecord(attempt=1, epoch=1, failure=gone),) if again else ()
    slots = local_backend(SlotsThatProgramsEnd)
    async with slots as backend, scripted_model(BOXED) as model:
        draft, failure = await attempted(backend, model, program("work()"), earlier=earlier)
    assert type(failure) is (type(None) if again else SlotKilled)
    assert draft.agent.stop_reason == ("slot_killed" if again else None)
    assert (draft.verdict is not None) is again
    assert len(draft.agent.messages) == 3


async def test_without_isolation_a_program_is_run_and_ended_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "LEAVE_S", 0.1)
    settings = LocalSandboxSettings(isolation="none")
    backend = LocalBackend(settings, slots=1)
    await backend.start()
    try:
        code = """
        ask([user(TASK)])
        try:
            ask([user(TASK), dict(role="assistant", content="x"), user("on")])
        finally:
            time.sleep(1000)
        """
        async with scripted_model(BOXED) as model:
            draft, failure = await attempted(backend, model, program(code), limits={"max_turns": 1})
    finally:
        await backend.stop()
    assert (failure, draft.agent.stop_reason) == (None, "max_turns")


async def test_a_cancelled_attempt_leaves_neither_program_nor_endpoint(
    slots: LocalBackend,
) -> None:
    asked = asyncio.Event()

    def hang() -> Raw:
        asked.set()
        return Raw(hang=True)

    async with scripted_model(hang) as model:
        attempt = asyncio.create_task(attempted(slots, model, program("work()")))
        await asyncio.wait_for(asked.wait(), 30.0)
        attempt.cancel()
        await asyncio.wait([attempt])
    assert attempt.cancelled()
    assert slots.free_slots == 1
