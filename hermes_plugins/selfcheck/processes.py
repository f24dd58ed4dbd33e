"""Checks of time limits and process trees."""

from __future__ import annotations

import asyncio

from hermes_plugins.selfcheck.bench import CheckFailed, Trial, check, expect, same
from hermes_queue.errors import SlotLost
from hermes_queue.sandbox.base import ExecutionRequest, ExecutionResult, Slot

# The brackets and the empty quotes keep the pattern from matching shells that have this text on
# their command lines.
COUNT = (
    "if command -v pgrep >/dev/null; then pgrep -fc '[s]leep 4242' || true; else n=0; "
    "for p in /proc/[0-9]*; do mapfile -d '' -t a <$p/cmdline; "
    '[ "${a[*]}" != "sleep"" 4242" ] || n=$((n + 1)); done 2>/dev/null; echo $n; fi'
)
"""Prints the number of the bench's sleeping processes that the slot sees."""
TREES = {
    "child": "sleep 4242 & wait",
    "ignoring signals": "trap '' TERM INT HUP; sleep 4242 & wait",
    "own session": "setsid sleep 4242 & setsid --fork sleep 4242; sleep 4242",
    "double fork": "(sleep 4242 &) ; (setsid sh -c 'sleep 4242 & sleep 4242' &) ; sleep 4242",
    "cleared environment": "env -i setsid --wait sleep 4242",
}


@check()
async def a_timeout_is_reported_with_the_output_so_far(bench: Trial, slot: Slot) -> None:
    """Answer a command that runs out of time with exit code 124, `timed_out` and its output."""
    result = await bench.sh(slot, "echo begun; sleep 4242", timeout_s=3)
    same((result.exit_code, result.timed_out, result.stdout), (124, True, b"begun\n"))


@check()
async def a_timeout_kills_the_whole_tree(bench: Trial, slot: Slot) -> None:
    """Kill every process of a command that runs out of time, even if it ignores signals, left the
    session, lost its parent or cleared its environment.
    """
    for kind, tree in TREES.items():
        result = await bench.sh(slot, tree, timeout_s=0.5)
        expect(result.timed_out, f"{kind}: the command did not run out of time")
        same(await bench.out(slot, COUNT), "0", f"{kind}: processes left")


@check()
async def a_timeout_spares_the_slots_other_commands(bench: Trial, slot: Slot) -> None:
    """Kill the tree of this command only, not all processes in its slot."""
    slow = ExecutionRequest(slot, "sleep 1; echo done")
    stuck = ExecutionRequest(slot, "sleep 4242", timeout_s=0.3)
    done, killed = await bench.backend.execute_batch([slow, stuck])
    expect(isinstance(done, ExecutionResult) and done.stdout == b"done\n", f"found {done!r}")
    expect(isinstance(killed, ExecutionResult) and killed.timed_out, f"found {killed!r}")


@check()
async def cancellation_kills_the_whole_tree(bench: Trial, slot: Slot) -> None:
    """Kill the command's processes when the call of `execute_batch` is cancelled, then end the
    call.
    """
    command = "(setsid sleep 4242 &) ; touch begun; sleep 4242"
    task = asyncio.create_task(bench.sh(slot, command))
    while not (await bench.sh(slot, "test -e begun")).ok:
        await asyncio.sleep(0.02)
    task.cancel()
    await asyncio.wait({task})
    expect(task.cancelled(), "the cancelled call returned or raised something else")
    same(await bench.out(slot, COUNT), "0", "processes left")


@check()
async def a_background_server_outlives_its_command_and_dies_with_the_slot(bench: Trial) -> None:
    """End a command with its shell, even if background processes hold its streams open, and let
    those run until the slot is renewed or released.
    """
    slot = await bench.slot()
    # It holds both pipes, and continues to write to them after the command is over.
    server = "(while sleep 0.05; do echo noise; echo x >>beats; done) &"
    result = await bench.sh(slot, f"{server} sleep 4242 & echo started", timeout_s=20)
    same((result.exit_code, result.timed_out), (0, False))
    expect(b"started\n" in result.stdout[:200], f"found {result.stdout[:80]!r}")
    # Some engines close the streams of a command seconds after its end.
    before = int(await bench.out(slot, "sleep 4; cat beats | wc -l"))
    for _ in range(200):
        if int(await bench.out(slot, "cat beats | wc -l")) > before + 3:
            break
        await asyncio.sleep(0.05)
    else:
        raise CheckFailed("the server died with its command")
    renewed = await bench.backend.renew(slot)
    same(await bench.out(renewed, COUNT), "0", "processes left after renew")


@check()
async def releasing_under_a_command_loses_it_in_place(bench: Trial, slot: Slot) -> None:
    """Answer a command whose slot is released meanwhile with `SlotLost`."""
    running = asyncio.create_task(bench.answer(slot, "touch begun; sleep 4242"))
    while not (await bench.sh(slot, "test -e begun")).ok:
        await asyncio.sleep(0.02)
    await bench.backend.release(slot)
    answer = await running
    expect(isinstance(answer, SlotLost), f"found {answer!r}")
