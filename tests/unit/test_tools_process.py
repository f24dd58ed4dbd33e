"""The tool for background processes, in a real local sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from slot_bench import leased_slot

from hermes_queue.tools import Toolbox, ToolContext, ToolOutcome, make_call
from hermes_queue.tools.process import MAX_PROCESSES, ROOM_BYTES

ASKS = 'while read -r line; do echo "got $line"; done; echo bye; exit 3'


class ProcessBench:
    """The tool on a leased slot."""

    def __init__(self, context: ToolContext) -> None:
        self.context = context

    async def use(self, action: str, **arguments: Any) -> ToolOutcome:
        call = make_call("c", "process", action=action, **arguments)
        return await Toolbox(["process"], self.context).call(call)

    async def text(self, action: str, **arguments: Any) -> str:
        outcome = await self.use(action, **arguments)
        assert outcome.ok, outcome.text
        return outcome.text


@pytest.fixture
async def bench() -> AsyncIterator[ProcessBench]:
    async with leased_slot() as slot:
        yield ProcessBench(ToolContext(slot, timeout_s=20.0, observation_bytes=4096))


async def test_a_process_reads_its_input_and_ends_with_its_exit_code(bench: ProcessBench) -> None:
    assert await bench.text("start", command=ASKS) == "[process 1: running]"
    assert await bench.text("write", id=1, text="one\n") == "[process 1: running]\ngot one"
    ended = await bench.text("write", id=1, text="two\n", eof=True)
    assert ended == "[process 1: exited with code 3]\ngot two\nbye"
    refused = await bench.use("write", id=1, text="three\n")
    assert not refused.ok
    assert refused.text == "[the process no longer runs, so it takes no input]"


async def test_a_process_runs_on_between_calls_and_is_waited_for(bench: ProcessBench) -> None:
    started = "echo begun; until [ -e go ]; do sleep 0.05; done; echo ready; sleep 600"
    assert await bench.text("start", command=started) == "[process 1: running]\nbegun"
    await bench.context.slot.run("touch go")
    assert await bench.text("wait", id=1, until="ready") == "[process 1: running]\nready"
    assert await bench.text("wait", id=1, timeout_s=0.2) == "[process 1: running]"


async def test_kill_ends_a_process_and_its_children(bench: ProcessBench) -> None:
    await bench.text("start", command="trap '' TERM; sleep 600 & wait; sleep 600")
    assert await bench.text("kill", id=1) == "[process 1: killed]"
    left = await bench.context.slot.run("grep -al 'slee[p].600' /proc/[0-9]*/cmdline")
    assert left.stdout == b""
    assert await bench.text("list") == "1: killed: trap '' TERM; sleep 600 & wait; sleep 600"


async def test_processes_have_numbers_directories_and_outputs_of_their_own(
    bench: ProcessBench,
) -> None:
    assert await bench.text("list") == "[no process was started]"
    for number in (1, 2):
        shown = await bench.text("start", command=f"pwd; echo {number} >&2")
        workspace = bench.context.slot.workspace
        assert shown == f"[process {number}: exited with code 0]\n{workspace}\n{number}"
    assert (await bench.text("list")).splitlines() == [
        "1: exited with code 0: pwd; echo 1 >&2",
        "2: exited with code 0: pwd; echo 2 >&2",
    ]


async def test_the_end_of_long_output_is_shown_and_the_rest_is_kept(bench: ProcessBench) -> None:
    shown = await bench.text("start", command="yes | head -c 1000000; echo end")
    head, note, *lines = shown.splitlines()
    assert head == "[process 1: exited with code 0]"
    left_out = 1_000_004 - (bench.context.observation_bytes - ROOM_BYTES)
    assert note == f"[{left_out} bytes left out; all is in $TMPDIR/processes/1/out]"
    assert lines[-1] == "end"
    assert await bench.text("read", id=1) == "[process 1: exited with code 0]"
    kept = await bench.context.slot.run("stat -c %s $TMPDIR/processes/1/out")
    assert kept.stdout == b"1000004\n"


async def test_what_cannot_be_done_is_answered_with_the_reason(bench: ProcessBench) -> None:
    for arguments, reason in (
        ({"action": "start"}, "start needs `command`"),
        ({"action": "write", "id": 1}, "write needs `text`, or `eof`: true"),
        ({"action": "read"}, "read needs `id`, the number that start has shown"),
    ):
        outcome = await bench.use(**arguments)
        assert not outcome.schema_valid
        assert reason in outcome.text
    assert "there is no such process" in (await bench.use("read", id=7)).text
    fill = f"mkdir -p $TMPDIR/processes && cd $TMPDIR/processes && mkdir $(seq {MAX_PROCESSES})"
    await bench.context.slot.run(fill)
    assert "use the terminal" in (await bench.use("start", command="true")).text


async def test_a_process_that_does_not_read_holds_up_no_one_for_longer_than_the_call(
    bench: ProcessBench,
) -> None:
    bench.context = ToolContext(bench.context.slot, timeout_s=3.0, observation_bytes=4096)
    await bench.text("start", command="sleep 600")
    outcome = await bench.use("write", id=1, text="x" * 300_000)
    assert outcome.text == "[the process does not read its input]"


async def test_text_of_the_model_is_never_run_by_the_tools_own_shell(bench: ProcessBench) -> None:
    sly = "'\"$(touch pwned)`touch pwned`\n; touch pwned #"
    await bench.text("start", command="cat")
    shown = await bench.text("write", id=1, text=sly + "\n")
    assert shown == f"[process 1: running]\n{sly}"
    await bench.text("wait", id=1, until=sly, timeout_s=0.1)
    assert not (await bench.context.slot.run("test -e pwned")).ok
