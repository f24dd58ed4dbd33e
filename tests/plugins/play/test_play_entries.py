"""What a person enters in `hermes-queue play`, and what is shown of what comes from elsewhere."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from hermes_plugins.play.entry import EntryReader, Mistake
from hermes_plugins.play.person import Person
from hermes_plugins.play.screen import Display
from hermes_queue.agent import AgentScript, make_chat
from hermes_queue.errors import ConfigurationError, ModelConfigError
from hermes_queue.models import AgentSpec, Message
from hermes_queue.settings import ModelSettings
from hermes_queue.tools import load_tool
from producers.gsm8k import PRODUCER
from producers.run.launch import run
from producers.run.options import parse

ALL = ("terminal", "read_file", "write_file", "patch", "search_files", "calculator", "submit")


def entries(*names: str) -> EntryReader:
    return EntryReader([load_tool(name) for name in names or ALL])


def called(text: str) -> tuple[str, dict[str, Any]]:
    message = entries().read(text)
    assert isinstance(message, Message)
    [call] = message.tool_calls
    return call.function.name, json.loads(call.function.arguments)


@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ("ls -la | head", "terminal", {"command": "ls -la | head"}),
        (": > empty", "terminal", {"command": ": > empty"}),
        ("cat <<E\n:quit\nE", "terminal", {"command": "cat <<E\n:quit\nE"}),
        (":calculator 2 * (3 + 4)", "calculator", {"expression": "2 * (3 + 4)"}),
        (":read_file a b.txt", "read_file", {"path": "a b.txt"}),
        (":read_file a.txt offset=10 limit=5", "read_file", {"path": "a.txt"}),
        (":write_file path=a content='x = \"1\"\ny'", "write_file", {"content": 'x = "1"\ny'}),
        (':terminal command="it\'s" timeout_s=2.5', "terminal", {"timeout_s": 2.5}),
        (
            ':patch {"path": "a", "old_string": "-", "new_string": "="}',
            "patch",
            {"new_string": "="},
        ),
        (":patch path=a old_string=1 new_string=2 replace_all=true", "patch", {"old_string": "1"}),
        (":submit It's done", "submit", {"summary": "It's done"}),
        (":submit", "submit", {}),
        (':tool made_up {"a": 1}', "made_up", {"a": 1}),
    ],
)
def test_an_entry_is_a_tool_call(text: str, name: str, arguments: dict[str, Any]) -> None:
    tool, given = called(text)
    assert (tool, {key: given[key] for key in arguments}) == (name, arguments)


def test_calls_have_ids_of_their_own_and_answers_none() -> None:
    all_tools = entries()
    ids = [all_tools.read("ls").tool_calls[0].id for _ in range(2)]  # type: ignore[union-attr]
    assert ids == ["human_1", "human_2"]
    assert all_tools.read(":answer two\nlines") == Message(role="assistant", content="two\nlines")
    assert all_tools.read(":diff") == "diff"


@pytest.mark.parametrize(
    ("text", "tools", "said"),
    [
        ("ls", ("calculator",), "this env has no terminal; there are :calculator :answer :help"),
        (":submit", ("terminal",), "this env has no tool submit; there are :answer :help"),
        (":calc 1", ("calculator",), "there is no :calc"),
        (":read_file", ALL, r"path: Field required; :read_file path \[offset=\] \[limit=\]"),
        (":read_file a offset=x", ALL, "offset: Input should be a valid integer"),
        (":write_file path=a content=b c", ALL, "cannot place 'c'; :write_file path content"),
        (":tool", ALL, ":tool NAME JSON"),
    ],
)
def test_what_cannot_be_sent_is_answered_with_what_can(
    text: str, tools: tuple[str, ...], said: str
) -> None:
    with pytest.raises(Mistake, match=said):
        entries(*tools).read(text)


def test_a_terminal_obeys_nothing_that_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    Display().say("10%\r20%\r\n\x1b[2J\u202e\ud800ab é 漢")
    assert capsys.readouterr().out == "10%␍\n20%\n␛[2J⟨U+202E⟩\ufffdab é 漢\n"


def test_a_job_for_a_person_is_refused_where_there_is_none() -> None:
    options = parse(PRODUCER, ["--agent", "human"])
    with pytest.raises(ConfigurationError, match="use `hermes-queue play`"):
        run(PRODUCER, options)

    async def oracle() -> Any:
        raise AssertionError

    with pytest.raises(ModelConfigError, match="use `hermes-queue play`"):
        make_chat(AgentSpec(kind="human"), AgentScript(oracle=oracle), ModelSettings())


def test_a_closed_input_is_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    person = Person(Display(), cast(Any, None), [])
    with pytest.raises(EOFError):
        person._line("")
