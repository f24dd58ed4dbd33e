"""What a hostile call or file may cost the worker: tools share its event loop and its memory."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from growth import LINEAR, growth

from hermes_queue.models import FunctionCall, ToolCall
from hermes_queue.sandbox.base import ExecutionResult
from hermes_queue.tools import Toolbox, ToolContext, ToolOutcome, make_call
from hermes_queue.tools.base import MAX_PATH_CHARS
from hermes_queue.tools.patch import PatchArguments, _edit
from hermes_queue.tools.read_file import MAX_READ_BYTES, ReadFileArguments, _show
from hermes_queue.tools.toolbox import MAX_ARGUMENT_CHARS

TOOLS = ("patch", "read_file", "search_files", "write_file")


class OneFile:
    """As much of a slot as the file tools ask for, with one file."""

    workspace = "/workspace"

    def __init__(self, data: bytes) -> None:
        self.data = data

    def remaining_s(self) -> float:
        return 60.0

    async def read_file(self, path: str, *, max_bytes: int) -> bytes:
        return self.data

    async def write_file(self, path: str, data: bytes) -> None:
        self.data = data


async def use(file: OneFile, name: str, **arguments: Any) -> ToolOutcome:
    context = ToolContext(file, timeout_s=20.0, observation_bytes=16_384)  # type: ignore[arg-type]
    return await Toolbox(TOOLS, context).call(make_call("c", name, **arguments))


def patch(old: str, new: str = "z", **rest: Any) -> PatchArguments:
    return PatchArguments(path="f", old_string=old, new_string=new, **rest)


@contextmanager
def threads_used(monkeypatch: pytest.MonkeyPatch, module: str, name: str) -> Iterator[set[str]]:
    """The names of the threads that call a function."""
    import importlib

    seen: set[str] = set()
    place = importlib.import_module(module)
    called = getattr(place, name)

    def noted(*args: Any) -> Any:
        seen.add(threading.current_thread().name)
        return called(*args)

    monkeypatch.setattr(place, name, noted)
    yield seen


# --- time -------------------------------------------------------------------------------


def test_the_hint_of_a_patch_costs_no_more_than_file_and_argument_are_long() -> None:
    def typo_at_the_end(lines: int) -> tuple[PatchArguments, str]:
        return patch("x\n" * (lines // 4) + "y"), "x\n" * lines

    assert growth(typo_at_the_end, lambda made: _edit(*made), 8_000) < LINEAR


def test_a_file_of_very_many_lines_gets_no_hint() -> None:
    answer = _edit(patch(" x\ny"), "x\n" * 100_000 + "y\n")
    assert "matches except" not in answer.text  # type: ignore[union-attr]


def test_the_line_numbers_of_many_matches_cost_no_more_than_the_file_is_long() -> None:
    assert growth(lambda n: (patch("x"), "x\n" * n), lambda made: _edit(*made), 50_000) < LINEAR


@pytest.mark.parametrize("offset", [1, 500_000, 1_000_000])
def test_lines_far_down_a_file_are_the_right_ones(offset: int) -> None:
    text = "".join(f"{n}\n" for n in range(1, 1_000_001))
    shown = _show(ReadFileArguments(path="f", offset=offset, limit=2), text, 16_384).text
    assert shown.split("\n")[0] == f"{offset:>6}\t{offset}"


def test_reading_a_file_of_line_breaks_makes_no_list_of_its_lines() -> None:
    import tracemalloc

    text = "\n" * (4 << 20)
    tracemalloc.start()
    try:
        answer = _show(ReadFileArguments(path="f", offset=3 << 20, limit=3), text, 16_384).text
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert answer.endswith(f"[lines {3 << 20}-{(3 << 20) + 2} of {4 << 20}; go on: offset=3145731]")
    assert peak < 4 * len(text)  # a list of the lines alone has eight bytes a line


@pytest.mark.parametrize(
    ("tool", "function", "arguments"),
    [
        ("patch", "_edit", {"path": "f", "old_string": "a", "new_string": "b"}),
        ("read_file", "_show", {"path": "f"}),
    ],
)
async def test_work_on_a_files_text_leaves_the_event_loops_thread(
    tool: str, function: str, arguments: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with threads_used(monkeypatch, f"hermes_queue.tools.{tool}", function) as seen:
        outcome = await use(OneFile(b"a"), tool, **arguments)
    assert outcome.ok
    assert seen
    assert threading.current_thread().name not in seen


# --- memory -----------------------------------------------------------------------------


async def test_a_patch_whose_result_would_be_huge_is_answered_and_changes_nothing() -> None:
    file = OneFile(b"x" * 1_000_000)
    outcome = await use(
        file, "patch", path="f", old_string="x", new_string="y" * 1_000_000, replace_all=True
    )
    assert not outcome.ok
    assert f"would have {10**12} characters, more than {MAX_READ_BYTES}" in outcome.text
    assert file.data == b"x" * 1_000_000


async def test_arguments_beyond_the_limit_are_not_read() -> None:
    text = json.dumps({"path": "f", "content": "a" * MAX_ARGUMENT_CHARS})
    context = ToolContext(OneFile(b""), 20.0, 16_384)  # type: ignore[arg-type]
    call = ToolCall(id="c", function=FunctionCall(name="write_file", arguments=text))
    outcome = await Toolbox(TOOLS, context).call(call)
    assert not outcome.schema_valid
    assert f"more than {MAX_ARGUMENT_CHARS}" in outcome.text


async def test_very_many_wrong_arguments_are_counted_and_not_listed() -> None:
    outcome = await use(OneFile(b""), "read_file", path="f", **{f"a{n}": 1 for n in range(5_000)})
    assert "5000 unknown or wrong arguments" in outcome.text


@pytest.mark.parametrize("tool", ["patch", "read_file", "search_files", "write_file"])
async def test_a_path_that_no_argument_vector_holds_is_the_models_mistake(tool: str) -> None:
    rest = {
        "patch": {"old_string": "a", "new_string": "b"},
        "search_files": {"pattern": "a"},
        "write_file": {"content": ""},
    }
    long = "a/" * MAX_PATH_CHARS
    outcome = await use(OneFile(b"a"), tool, path=long, **rest.get(tool, {}))
    assert not outcome.schema_valid
    assert f"must not be longer than {MAX_PATH_CHARS} characters" in outcome.text


class WithoutBash:
    """As much of a slot as `process` asks for, whose agent was root and has replaced bash."""

    def __init__(self, printed: bytes) -> None:
        self.printed = printed

    def remaining_s(self) -> float:
        return 60.0

    async def run(self, command: str, **options: Any) -> ExecutionResult:
        return ExecutionResult(0, self.printed, b"", 0.0)


@pytest.mark.parametrize("printed", [b"", b"1", b"\xff\n", b"1\n", b"\n\n\n"])
@pytest.mark.parametrize("action", ["start", "list", "read", "write", "wait", "kill"])
async def test_whatever_a_slot_answers_to_process_is_the_models_business(
    printed: bytes, action: str
) -> None:
    slot: Any = WithoutBash(printed)
    toolbox = Toolbox(["process"], ToolContext(slot, timeout_s=20.0, observation_bytes=4096))
    more = {"command": "true"} if action == "start" else {"text": "x"}
    found = await toolbox.call(make_call("c", "process", action=action, id=1, **more))
    assert found.schema_valid


@pytest.mark.parametrize("text", ["a\ud800b", "\udfff", "é\ud800"])
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("write_file", {"path": "f", "content": "%s"}),
        ("patch", {"path": "f", "old_string": "a", "new_string": "%s"}),
        ("process", {"action": "wait", "id": 1, "until": "%s"}),
        ("process", {"action": "start", "command": "%s"}),
    ],
)
@pytest.mark.parametrize("ascii", [True, False])
async def test_half_of_a_surrogate_pair_is_the_models_mistake_and_no_failure(
    name: str, arguments: dict[str, Any], text: str, *, ascii: bool
) -> None:
    given = {key: text if value == "%s" else value for key, value in arguments.items()}
    slot: Any = OneFile(b"a")
    toolbox = Toolbox([name], ToolContext(slot, timeout_s=20.0, observation_bytes=4096))
    function = FunctionCall(name=name, arguments=json.dumps(given, ensure_ascii=ascii))
    found = await toolbox.call(ToolCall(id="c", function=function))
    assert (found.ok, found.schema_valid) == (False, False)
    assert "half of a surrogate pair" in found.text
    assert slot.data == b"a"
    await use(slot, "write_file", path="f", content="😀")
    assert slot.data == "😀".encode()
