"""Checks of commands: their input and results."""

from __future__ import annotations

import os
import signal
import sys

from hermes_plugins.selfcheck.bench import NotApplicable, Trial, check, expect, same
from hermes_queue.sandbox.base import ExecutionRequest, ExecutionResult, Slot


@check()
async def a_non_zero_exit_is_a_result_not_an_error(bench: Trial, slot: Slot) -> None:
    """Return the exit code and both streams of a command that fails."""
    result = await bench.sh(slot, "echo out; echo err >&2; exit 3")
    same((result.exit_code, result.stdout, result.stderr), (3, b"out\n", b"err\n"))
    same((result.timed_out, result.truncated), (False, False), "timed_out, truncated")


@check()
async def death_by_a_signal_is_reported_as_a_shell_does(bench: Trial, slot: Slot) -> None:
    """Report exit code 128 + N after signal N."""
    result = await bench.sh(slot, "kill -TERM $$")
    same(result.exit_code, 128 + signal.SIGTERM)


@check()
async def a_sigkill_of_its_own_is_a_result(bench: Trial, slot: Slot) -> None:
    """Report a command that kills itself as a result; only the sandbox's death is an error."""
    for end in ("kill -KILL $$", "exit 137", "(kill -KILL $BASHPID)"):
        result = await bench.sh(slot, f"echo x; {end}")
        same(result.exit_code, 128 + signal.SIGKILL, end)
    same(await bench.out(slot, "echo alive"), "alive")


@check()
async def stdin_and_output_are_bytes(bench: Trial, slot: Slot) -> None:
    """Pass standard input and both streams on as bytes, unchanged."""
    everything = bytes(range(256)) * 300
    result = await bench.sh(slot, "cat; cat >&2", stdin=everything)
    expect(result.stdout == everything, "stdout differs from stdin")
    same(result.stderr, b"")


@check()
async def a_command_without_stdin_reads_an_empty_one(bench: Trial, slot: Slot) -> None:
    """Give a command without standard input an empty one, not an open one."""
    result = await bench.sh(slot, "wc -c", timeout_s=10)
    same(result.stdout.strip(), b"0")


@check()
async def invalid_utf8_is_kept_and_shown_replaced(bench: Trial, slot: Slot) -> None:
    """Keep output as bytes; `ExecutionResult.output` replaces invalid text."""
    result = await bench.sh(slot, r"printf 'a\xff\xfeb'")
    same((result.stdout, result.output), (b"a\xff\xfeb", "a\ufffd\ufffdb"))


@check()
async def a_command_line_may_hold_any_text_and_a_megabyte_of_it(bench: Trial, slot: Slot) -> None:
    """Give bash command lines that are too long for an argument (128 KiB) as a file."""
    same(await bench.out(slot, "echo 'ü $HOME \"x\"'"), 'ü $HOME "x"')
    same(await bench.out(slot, f"x={'a' * (1 << 20)}; echo ${{#x}}"), str(1 << 20))
    same(await bench.out(slot, f"cat\n: {'a' * (1 << 20)}", stdin=b"in"), "in")


@check()
async def long_output_keeps_head_and_tail(bench: Trial, slot: Slot) -> None:
    """Keep the first and last half of `max_output_bytes` of each stream, with a line between them
    that gives the number of omitted bytes, and set `truncated`.
    """
    command = "echo first; head -c 5000000 /dev/zero | tr '\\0' x; echo; echo last"
    both = f"{{ {command}; }} >long; cat long >&2; cat long"
    result = await bench.sh(slot, both, max_output_bytes=10_000)
    left_out = 5_000_000 + len(b"first\n\nlast\n") - 10_000
    for stream in (result.stdout, result.stderr):
        expect(stream.startswith(b"first\nxxx"), f"begins with {stream[:30]!r}")
        expect(stream.endswith(b"xxx\nlast\n"), f"ends with {stream[-30:]!r}")
        marker = f"\n[... {left_out} bytes left out ...]\n".encode()
        expect(marker in stream, f"lacks the line {marker!r}")
        expect(len(stream) < 10_100, f"has {len(stream)} bytes")
    expect(result.truncated, "truncated is not set")


@check()
async def a_command_that_opens_its_output_by_name_writes_there_or_fails(bench: Trial) -> None:
    """Let /dev/stdout and /dev/stderr be the command's own streams if the kernel can (gVisor
    cannot); never send their output elsewhere.
    """
    slot = await bench.slot()
    result = await bench.sh(slot, "echo out >/dev/stdout && echo err >/dev/stderr")
    whole = (result.stdout, result.stderr) == (b"out\n", b"err\n")
    expect(whole or not result.ok, f"it succeeded with {result}")


@check()
async def output_that_just_fits_is_whole(bench: Trial, slot: Slot) -> None:
    """Return a stream of exactly `max_output_bytes` unchanged."""
    result = await bench.sh(slot, "head -c 1001 /dev/zero", max_output_bytes=1001)
    expect(result.stdout == bytes(1001), f"found {len(result.stdout)} bytes of 1001")
    expect(not result.truncated, "truncated is set")


@check()
async def cwd_and_environment_are_the_requests(bench: Trial, slot: Slot) -> None:
    """Run in `cwd` with `env` added; a missing directory is the command's failure."""
    same(await bench.out(slot, "pwd -P"), slot.workspace)
    same(await bench.out(slot, "pwd -P", cwd="/usr"), "/usr")
    same(await bench.out(slot, 'echo "$A"', env={"A": "x y"}), "x y")
    nowhere = await bench.sh(slot, "true", cwd="/no/such/place")
    expect(nowhere.exit_code != 0, "a command ran in a missing directory")


@check()
async def the_workers_environment_does_not_reach_commands(bench: Trial) -> None:
    """Give commands a separate environment: the worker's contains secrets."""
    os.environ["WORKER_SECRET"] = "hunter2"
    try:
        slot = await bench.slot()
        expect("hunter2" not in await bench.out(slot, "env"), "a variable leaked")
    finally:
        del os.environ["WORKER_SECRET"]


@check(image="backend")
async def the_environment_is_the_same_on_every_backend(bench: Trial, slot: Slot) -> None:
    """Set SLOT_ENVIRONMENT, PATH, HOME, TMPDIR, PWD and HQ_COMMAND_ID, and nothing else: a test
    that depends on a variable would get another score.
    """
    found = dict(line.split("=", 1) for line in (await bench.out(slot, "env")).splitlines())
    same(found.pop("PWD", None), slot.workspace, "PWD")
    for own in ("PATH", "HOME", "TMPDIR", "HQ_COMMAND_ID", "SHLVL", "_"):
        expect(found.pop(own, None) is not None, f"{own} is not set")
    found.pop("HQ_SLOT", None)  # marks the processes of a slot without a separate uid
    same(found, {"LANG": "C.UTF-8", "USER": "agent", "LOGNAME": "agent"})


@check(image="backend")
async def python_is_the_workers_version_under_both_names(bench: Trial, slot: Slot) -> None:
    """Have `python` and `python3` of `SlotSpec.python`, or else the worker's version, on PATH."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for name in ("python", "python3"):
        code = 'import sys, ssl, sqlite3; print("%d.%d" % sys.version_info[:2])'
        same(await bench.out(slot, f"{name} -c '{code}'"), version, name)


@check()
async def fifty_commands_run_at_once(bench: Trial) -> None:
    """Run the commands of a batch concurrently, and return the results in their order."""
    slots = [await bench.slot(), await bench.slot()]
    requests = [
        ExecutionRequest(slots[n % 2], f"echo {n}; sleep 0.2; echo {n} >&2") for n in range(50)
    ]
    answers = await bench.backend.execute_batch(requests)
    for number, answer in enumerate(answers):
        expect(isinstance(answer, ExecutionResult), f"command {number} was answered by {answer!r}")
        if isinstance(answer, ExecutionResult):
            line = f"{number}\n".encode()
            same((answer.stdout, answer.stderr), (line, line), f"command {number}")


@check()
async def a_command_over_the_memory_limit_fails_and_the_slot_lives(bench: Trial) -> None:
    """Limit the memory of a slot's processes, so that one slot cannot end the others."""
    if bench.subject.memory_mb is None:
        raise NotApplicable("the memory limit of a slot is unknown: give --memory-mb")
    slot = await bench.slot()
    size = (bench.subject.memory_mb << 20) * 5 // 2
    result = await bench.sh(slot, f"exec python3 -c 'bytearray({size})'")
    expect(result.exit_code != 0, f"a process could have {size >> 20} MiB")
    same(await bench.out(slot, "echo alive"), "alive")
