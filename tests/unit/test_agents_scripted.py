"""Agents that need no model."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from slot_bench import leased_slot

from hermes_queue import extensions
from hermes_queue.agent import AgentResult, AgentScript, make_chat, run_agent
from hermes_queue.errors import ConfigurationError, ModelConfigError
from hermes_queue.models import AgentSpec, Limits, Message, ToolCall
from hermes_queue.settings import ModelSettings
from hermes_queue.tools import Toolbox, ToolContext, make_call
from producers.run.launch import own_records

USER = Message(role="user", content="u")
CASES: Mapping[str, Sequence[ToolCall | str]] = {
    "b_text": ["I cheat"],
    "a_call": [make_call("t", "terminal", command="echo cheat")],
}


async def gold() -> tuple[list[ToolCall], str]:
    return [make_call(f"g{i}", "terminal", command=f"echo {i} >>gold") for i in range(2)], "gold!"


async def unwanted() -> tuple[list[ToolCall], str]:
    raise AssertionError("only the oracle may look at the gold answer")


def script(**fields: Any) -> AgentScript:
    return AgentScript(**{"oracle": unwanted, **fields})


async def act(spec: AgentSpec, known: AgentScript, **limits: Any) -> tuple[AgentResult, bytes]:
    """Run the agent in a slot; its result and the names of the files it left."""
    async with leased_slot() as slot:
        result = await run_agent(
            make_chat(spec, known, ModelSettings()),
            Toolbox(("terminal",), ToolContext(slot, 10.0, 4096)),
            [USER],
            limits=Limits(**limits),
            sampling={},
            deadline=time.monotonic() + 60,
        )
        return result, (await slot.run("cat gold 2>/dev/null")).stdout


def texts_of(result: AgentResult) -> list[str | None]:
    return [m.content for m in result.messages if m.role == "assistant"]


async def test_the_oracle_applies_the_gold_calls_and_states_the_answer() -> None:
    result, left = await act(AgentSpec(kind="oracle"), script(oracle=gold))
    assert left == b"0\n1\n"
    assert texts_of(result)[-1] == "gold!"
    assert result.stop_reason == "no_tool_call"
    assert len(result.turns) == 3


async def test_nop_ends_at_once() -> None:
    result, _ = await act(AgentSpec(kind="nop"), script())
    assert (result.stop_reason, result.tool_calls.attempted) == ("no_tool_call", 0)


async def test_garbage_is_never_schema_valid_and_is_stopped() -> None:
    result, _ = await act(AgentSpec(kind="garbage"), script(), max_format_errors=3)
    assert result.stop_reason == "format_errors"
    assert (result.tool_calls.attempted, result.tool_calls.schema_valid) == (3, 0)


async def test_garbage_ends_by_itself_where_nobody_stops_it() -> None:
    result, _ = await act(AgentSpec(kind="garbage"), script(), max_format_errors=99)
    assert result.stop_reason == "no_tool_call"
    assert result.tool_calls.schema_valid == 0


async def test_slow_sleeps_in_the_slot() -> None:
    spec = AgentSpec(kind="slow", params={"seconds": 0.1, "turns": 2})
    result, _ = await act(spec, script())
    assert (result.tool_calls.ok, len(result.turns)) == (2, 3)


@pytest.mark.parametrize("value", ["long", -1, True, None])
def test_slow_refuses_what_is_no_duration(value: object) -> None:
    with pytest.raises(ModelConfigError, match="agent slow: seconds: "):
        make_chat(AgentSpec(kind="slow", params={"seconds": value}), script(), ModelSettings())


@pytest.mark.parametrize(("index", "expected"), [(0, "Done."), (1, "I cheat"), (2, "Done.")])
async def test_tamper_goes_through_the_cases_by_sample(index: int, expected: str) -> None:
    result, _ = await act(AgentSpec(kind="tamper"), script(tamper=CASES, sample_index=index))
    assert texts_of(result)[-1] == expected


async def test_tamper_takes_the_case_that_is_named() -> None:
    spec = AgentSpec(kind="tamper", params={"case": "a_call"})
    result, _ = await act(spec, script(tamper=CASES, sample_index=1))
    assert result.tool_calls.ok == 1


async def test_an_unknown_tamper_case_is_refused_with_the_known_ones() -> None:
    chat = make_chat(
        AgentSpec(kind="tamper", params={"case": "c"}), script(tamper=CASES), ModelSettings()
    )
    with pytest.raises(ModelConfigError, match="known: a_call, b_text"):
        await chat.complete([], [], {}, time.monotonic() + 60)


async def test_tamper_does_nothing_where_the_env_knows_no_case() -> None:
    result, _ = await act(AgentSpec(kind="tamper"), script())
    assert result.tool_calls.attempted == 0


def stored(*commands: str) -> list[dict[str, Any]]:
    """A conversation as it lies in a results file."""
    messages = [USER]
    for i, command in enumerate(commands):
        call = make_call(f"r{i}", "terminal", command=command)
        messages.append(Message(role="assistant", reasoning="hm", tool_calls=(call,)))
        messages.append(Message(role="tool", content="old", tool_call_id=call.id))
    messages.append(Message(role="assistant", content=f"did {len(commands)}"))
    return [m.model_dump(mode="json") for m in messages]


async def test_replay_repeats_the_assistants_side_and_runs_its_calls_anew() -> None:
    spec = AgentSpec(kind="replay", params={"messages": stored("echo new >gold; cat gold")})
    result, left = await act(spec, script())
    assert left == b"new\n"
    assert texts_of(result)[-1] == "did 1"
    assert [m.content for m in result.messages if m.role == "tool"] == ["[exit code 0]\nnew"]


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory whose files jobs may name."""
    directory = tmp_path / "records"
    (directory / "inner").mkdir(parents=True)
    monkeypatch.setenv("HERMES_QUEUE_PATHS_REPLAY", str(directory))
    return directory


@pytest.mark.parametrize(
    ("instance_id", "index", "expected"),
    [("b", 0, "did 1"), ("b", 1, "did 2"), ("b", 2, "did 1"), ("other", 0, "did 0")],
)
async def test_replay_picks_the_records_of_its_instance(
    records: Path, instance_id: str, index: int, expected: str
) -> None:
    path = records / "records.jsonl"
    rows = [("a", []), ("b", ["true"]), ("b", ["true", "true"])]
    path.write_text(
        "".join(json.dumps({"instance_id": i, "messages": stored(*c)}) + "\n" for i, c in rows)
    )
    spec = AgentSpec(kind="replay", params={"path": str(path)})
    result, _ = await act(spec, script(instance_id=instance_id, sample_index=index))
    assert texts_of(result)[-1] == expected


@pytest.mark.parametrize("text", ["", "{", "[]\n", "{}\n", '{"messages": 3}\n', None])
async def test_replay_of_an_unusable_file_names_it(records: Path, text: str | None) -> None:
    path = records / "records.jsonl"
    if text is not None:
        path.write_text(text)
    await replayed(str(path))


async def replayed(path: object) -> str:
    """Why a worker does not read a file that a job names."""
    chat = make_chat(AgentSpec(kind="replay", params={"path": path}), script(), ModelSettings())
    with pytest.raises(ModelConfigError, match="agent replay") as caught:
        await chat.complete([], [], {}, time.monotonic() + 60)
    return str(caught.value)


@pytest.mark.parametrize(
    "path",
    [
        "/dev/zero",
        "/etc/passwd",
        "/proc/self/environ",
        "../outside",
        "inner/../../outside",
        "",
        ".",
    ],
)
async def test_replay_reads_nothing_outside_of_the_directory(records: Path, path: str) -> None:
    (records.parent / "outside").write_text("{}")
    assert "HERMES_QUEUE_PATHS_REPLAY" in await replayed(path)


async def test_replay_follows_no_link_and_opens_no_device(records: Path) -> None:
    (records.parent / "outside").mkdir()
    (records.parent / "outside" / "file").write_text("{}")
    (records / "link").symlink_to(records.parent / "outside" / "file")
    (records / "way").symlink_to(records.parent / "outside")
    os.mkfifo(records / "pipe")
    assert "OSError" in await replayed("link")
    assert "NotADirectoryError" in await replayed("way/file")
    assert "not a regular file" in await replayed("pipe")
    assert "not a regular file" in await replayed("inner")


async def test_replay_reads_no_record_without_end(
    records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hermes_queue.agent.kinds.replay.LINE_MAX_BYTES", 1000)
    (records / "long").write_bytes(b"[" * 1001)
    assert "at most 1000 bytes a record" in await replayed("long")
    (records / "deep").write_bytes(b"[" * 999)
    assert "agent replay: deep" in await replayed("deep")


async def test_replay_reads_no_file_without_end(
    records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hermes_queue.agent.kinds.replay.FILE_MAX_BYTES", 100)
    (records / "long").write_bytes(b'{"messages": []}\n' * 10)
    assert "100 bytes are read" in await replayed("long")


async def test_without_a_directory_replay_opens_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HERMES_QUEUE_PATHS_REPLAY", raising=False)
    (tmp_path / "file").write_text('{"messages": []}')
    assert "may not open files for jobs" in await replayed(str(tmp_path / "file"))


@pytest.mark.parametrize("name", ["file", "inner/file"])
async def test_a_worker_of_ones_own_opens_the_file_of_ones_own_flag(
    records: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(records)
    (records / name).write_text(json.dumps({"messages": stored()}))
    for path in (name, str(records / name)):
        spec = AgentSpec(kind="replay", params={"path": path})
        monkeypatch.setenv(*own_records(spec).popitem())
        chat = make_chat(spec, script(), ModelSettings())
        reply = await chat.complete([], [], {}, time.monotonic() + 60)
        assert reply.message.content == "did 0"


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, '"path" and "messages"'),
        ({"path": "x", "messages": []}, '"path" and "messages"'),
        ({"path": ["x"]}, "agent replay: path: .*valid string"),
    ],
)
def test_replay_needs_one_source(params: dict[str, Any], expected: str) -> None:
    with pytest.raises(ModelConfigError, match=expected):
        make_chat(AgentSpec(kind="replay", params=params), script(), ModelSettings())


def test_an_unknown_agent_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match="known: command, garbage, human, nop"):
        make_chat(AgentSpec(kind="orcale"), script(), ModelSettings())


def test_an_agent_of_ones_own_is_named_by_module_and_factory() -> None:
    spec = AgentSpec(kind="hermes_queue.agent.kinds.nop:AGENT")
    assert make_chat(spec, script(), ModelSettings()) is not None
    for kind in ("no.such:thing", "json:nothing"):
        with pytest.raises(ConfigurationError, match="cannot be loaded"):
            make_chat(AgentSpec(kind=kind), script(), ModelSettings())


def test_the_scripted_agents_are_all_known() -> None:
    expected = {"oracle", "nop", "replay", "garbage", "tamper", "slow", "openai"}
    expected |= {"command", "human", "recorded"}
    assert set(extensions.own("agent")) == expected
