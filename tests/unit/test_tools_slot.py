"""The tools that act in a slot, against a real local sandbox."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from slot_bench import leased_slot

from hermes_queue.errors import DeadlineExceeded, SandboxError
from hermes_queue.sandbox.context import SlotContext
from hermes_queue.tools import Toolbox, ToolContext, ToolOutcome, make_call

TOOLS = ("terminal", "read_file", "write_file", "patch", "search_files")


class Bench:
    """A toolbox on a leased slot."""

    def __init__(self, slot: SlotContext) -> None:
        self.slot = slot
        self.context = ToolContext(slot, timeout_s=20.0, observation_bytes=16_384)

    async def use(self, name: str, **arguments: Any) -> ToolOutcome:
        return await Toolbox(TOOLS, self.context).call(make_call("c", name, **arguments))

    async def write(self, path: str, data: bytes) -> None:
        await self.slot.write_file(self.context.path(path), data)

    async def read(self, path: str) -> bytes:
        return await self.slot.read_file(self.context.path(path))


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with leased_slot() as slot:
        yield Bench(slot)


# --- terminal ---------------------------------------------------------------------------


async def test_terminal_shows_exit_code_and_both_streams(bench: Bench) -> None:
    outcome = await bench.use("terminal", command="echo out; echo err >&2; exit 3")
    assert outcome.text == "[exit code 3]\nout\nerr"
    assert outcome.schema_valid
    assert not outcome.ok


async def test_terminal_starts_in_the_workspace(bench: Bench) -> None:
    outcome = await bench.use("terminal", command="pwd")
    assert outcome.text == f"[exit code 0]\n{bench.slot.workspace}"
    assert outcome.ok


async def test_a_timeout_is_an_observation_with_the_output_so_far(bench: Bench) -> None:
    outcome = await bench.use("terminal", command="echo begun; sleep 60", timeout_s=3)
    assert "timed out after 3 s" in outcome.text
    assert "begun" in outcome.text
    assert not outcome.ok


async def test_a_call_cannot_raise_the_timeout_of_the_tool(bench: Bench) -> None:
    bench.context = replace(bench.context, timeout_s=1.0)
    outcome = await bench.use("terminal", command="sleep 60", timeout_s=1000)
    assert "timed out after 1 s" in outcome.text


async def test_long_output_reaches_the_model_as_head_and_tail(bench: Bench) -> None:
    outcome = await bench.use("terminal", command="echo first; seq 3000000; echo last")
    assert len(outcome.text.encode()) <= 16_384
    assert "first\n1\n2\n" in outcome.text
    assert outcome.text.endswith("3000000\nlast")
    assert "its middle was dropped" in outcome.text


async def test_output_that_is_not_utf8_is_shown_with_replacements(bench: Bench) -> None:
    outcome = await bench.use("terminal", command=r"printf 'a\xff\xfeb'")
    assert outcome.text == "[exit code 0]\na\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}b"


async def test_a_command_longer_than_one_argument_may_be_runs(bench: Bench) -> None:
    outcome = await bench.use("terminal", command=f"echo {'x' * 300_000} | wc -c")
    assert outcome.text == "[exit code 0]\n300001"


async def test_a_lost_slot_raises(bench: Bench) -> None:
    old = bench.slot.slot
    await bench.slot.renew()
    bench.slot.slot = old
    with pytest.raises(SandboxError):
        await bench.use("terminal", command="true")


async def test_no_command_starts_after_the_stage_deadline(bench: Bench) -> None:
    bench.slot.deadline = time.monotonic() - 1
    with pytest.raises(DeadlineExceeded):
        await bench.use("terminal", command="true")


# --- files ------------------------------------------------------------------------------


async def test_a_file_is_written_and_read_with_line_numbers(bench: Bench) -> None:
    outcome = await bench.use("write_file", path="new/dir/a b'\"$x.txt", content="eins\nzwei\n")
    assert outcome.ok
    assert "wrote 10 bytes" in outcome.text
    outcome = await bench.use("read_file", path="new/dir/a b'\"$x.txt")
    assert outcome.text == "     1\teins\n     2\tzwei"


async def test_reading_goes_on_at_an_offset(bench: Bench) -> None:
    await bench.write("n.txt", "".join(f"line {n}\n" for n in range(1, 101)).encode())
    outcome = await bench.use("read_file", path="n.txt", offset=10, limit=2)
    assert outcome.text == (
        "    10\tline 10\n    11\tline 11\n[lines 10-11 of 100; go on: offset=12]"
    )


async def test_reading_stops_where_the_observation_is_full(bench: Bench) -> None:
    await bench.write("n.txt", "".join(f"{'x' * 100} {n}\n" for n in range(1, 1001)).encode())
    outcome = await bench.use("read_file", path="n.txt", limit=1000)
    assert len(outcome.text.encode()) <= 16_384
    assert "bytes left out" not in outcome.text
    last = outcome.text.splitlines()[-1]
    assert last.startswith("[lines 1-")
    again = await bench.use("read_file", path="n.txt", offset=int(last.split("=")[1][:-1]))
    assert again.ok


@pytest.mark.parametrize("path", ["missing.txt", ".", "/", "/proc/self/mem", "/etc/shadow"])
async def test_what_cannot_be_read_is_an_answer(bench: Bench, path: str) -> None:
    outcome = await bench.use("read_file", path=path)
    assert outcome.schema_valid
    assert not outcome.ok
    assert path in outcome.text


async def test_binary_and_huge_files_are_an_answer(bench: Bench) -> None:
    await bench.write("b.bin", b"\x00\xff\x80")
    assert "not UTF-8 text" in (await bench.use("read_file", path="b.bin")).text
    await bench.slot.run("truncate -s 9M big.txt")
    assert "use the terminal" in (await bench.use("read_file", path="big.txt")).text


async def test_a_place_that_cannot_be_written_is_an_answer(bench: Bench) -> None:
    for path in ("/usr/x", ".", "/proc/x"):
        outcome = await bench.use("write_file", path=path, content="x")
        assert not outcome.ok
        assert "not written" in outcome.text


# --- patch ------------------------------------------------------------------------------


async def test_patch_replaces_the_one_match_and_keeps_the_mode(bench: Bench) -> None:
    await bench.write("a.py", b"def f():\n    return 1\n")
    await bench.slot.run("chmod 755 a.py")
    outcome = await bench.use("patch", path="a.py", old_string="return 1", new_string="return 2")
    assert outcome.text == "a.py: replaced 1 match(es), line 2"
    assert await bench.read("a.py") == b"def f():\n    return 2\n"
    assert (await bench.slot.run("stat -c %a a.py")).stdout == b"755\n"


async def test_patch_names_the_lines_of_several_matches_and_changes_nothing(bench: Bench) -> None:
    await bench.write("a.py", b"x = 1\ny = 2\nx = 1\n")
    outcome = await bench.use("patch", path="a.py", old_string="x = 1", new_string="x = 3")
    assert not outcome.ok
    assert "2 matches" in outcome.text
    assert "lines 1, 3" in outcome.text
    assert await bench.read("a.py") == b"x = 1\ny = 2\nx = 1\n"


async def test_patch_replaces_all_on_request(bench: Bench) -> None:
    await bench.write("a.py", b"x x\nx\n")
    outcome = await bench.use("patch", path="a.py", old_string="x", new_string="", replace_all=True)
    assert outcome.ok
    assert await bench.read("a.py") == b" \n\n"


async def test_patch_says_where_only_white_space_differs(bench: Bench) -> None:
    await bench.write("a.py", b"if a:\n    b()\n    c()\n")
    outcome = await bench.use("patch", path="a.py", old_string="  b()\n  c()", new_string="d()")
    assert "0 matches" in outcome.text
    assert "Line 2 matches except for white space" in outcome.text


async def test_patch_keeps_dos_line_ends(bench: Bench) -> None:
    await bench.write("a.txt", b"one\r\ntwo\r\nthree\r\n")
    outcome = await bench.use("patch", path="a.txt", old_string="one\ntwo", new_string="1\n2")
    assert outcome.ok
    assert await bench.read("a.txt") == b"1\r\n2\r\nthree\r\n"


async def test_patch_answers_what_cannot_be_done(bench: Bench) -> None:
    await bench.write("a.txt", b"one\n")
    for arguments, expected in (
        ({"path": "no.txt", "old_string": "a", "new_string": "b"}, "not found"),
        ({"path": "a.txt", "old_string": "", "new_string": "b"}, "old_string"),
        ({"path": "a.txt", "old_string": "one", "new_string": "one"}, "nothing to do"),
        ({"path": "a.txt", "old_string": "nope", "new_string": "b"}, "0 matches"),
    ):
        outcome = await bench.use("patch", **arguments)
        assert not outcome.ok
        assert expected in outcome.text


# --- search -----------------------------------------------------------------------------


async def test_contents_are_found_sorted_and_relative(bench: Bench) -> None:
    await bench.write("b.py", b"x\nneedle 12\n")
    await bench.write("a/a.py", b"needle 3\n")
    await bench.write(".git/config", b"needle 4\n")
    await bench.write("c.txt", b"needle 5\n")
    outcome = await bench.use("search_files", pattern=r"needle \d+", glob="*.py")
    assert outcome.text == "a/a.py:1:needle 3\nb.py:2:needle 12"


async def test_names_are_found_by_glob(bench: Bench) -> None:
    for name in ("a/x.py", "b/y.py", "b/z.txt", ".git/h.py"):
        await bench.write(name, b"")
    outcome = await bench.use("search_files", pattern="*.py", target="names")
    assert outcome.text == "a/x.py\nb/y.py"
    outcome = await bench.use("search_files", pattern="*.py", target="names", path="b")
    assert outcome.text == "b/y.py"


async def test_too_many_matches_are_capped_with_a_note(bench: Bench) -> None:
    await bench.write("n.txt", b"hit\n" * 100_000)
    outcome = await bench.use("search_files", pattern="hit", limit=3)
    assert outcome.text.splitlines()[3:] == ["[more than 3 matches: narrow the search]"]


async def test_one_file_can_be_searched(bench: Bench) -> None:
    await bench.write("n.txt", b"no\nhit\n")
    assert (await bench.use("search_files", pattern="hit", path="n.txt")).text == "n.txt:2:hit"


async def test_no_match_is_no_error_and_a_bad_pattern_is(bench: Bench) -> None:
    await bench.write("n.txt", b"x\n")
    nothing = await bench.use("search_files", pattern="zzz")
    assert (nothing.text, nothing.ok) == ("no matches", True)
    bad = await bench.use("search_files", pattern="(")
    assert not bad.ok
    assert "failed" in bad.text
    missing = await bench.use("search_files", pattern="x", path="nowhere")
    assert not missing.ok
    assert "nowhere" in missing.text


@pytest.mark.parametrize("pattern", ["-rf", "$(touch owned)", "`touch owned`", "'; touch owned; '"])
@pytest.mark.parametrize("target", ["content", "names"])
async def test_a_pattern_is_never_run(bench: Bench, pattern: str, target: str) -> None:
    await bench.write("n.txt", f"{pattern}\n".encode())
    await bench.use("search_files", pattern=pattern, target=target, glob=pattern, path=pattern)
    await bench.use("search_files", pattern=pattern, target=target)
    assert (await bench.slot.run("ls")).stdout == b"n.txt\n"
