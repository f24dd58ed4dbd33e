"""What starts the commands of a local slot: its cost, its death, and hostile commands beside it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from hermes_queue.errors import SandboxError, SlotLost
from hermes_queue.sandbox.base import ExecutionResult
from hermes_queue.sandbox.host.processes import kill_trees

TRACER = """
import ctypes, os, time
while not os.path.exists("victim"):
    time.sleep(0.02)
victim = int(open("victim").read())
libc = ctypes.CDLL(None)
assert libc.ptrace(16, victim, 0, 0) == 0  # PTRACE_ATTACH
os.waitpid(victim, 0)
libc.ptrace(7, victim, 0, 0)  # PTRACE_CONT
open("traced", "w").close()
time.sleep(4242)
"""
VICTIM = """
import ctypes, os, time
ctypes.CDLL(None).prctl(0x59616d61, -1, 0, 0, 0)  # PR_SET_PTRACER, to any process
open("number", "w").write(str(os.getpid()))
os.rename("number", "victim")
while not os.path.exists("traced"):
    time.sleep(0.02)
"""
ATTACKS = """
import os, time
own, end = os.getpid(), time.monotonic() + 60
open("begun", "w").close()
while time.monotonic() < end and not os.path.exists("enough"):
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) in (1, own):
            continue
        try:
            if os.readlink(f"/proc/{name}/exe").endswith("/bash"):
                continue
        except FileNotFoundError:
            continue
        except PermissionError:
            pass  # not yet a command's program
        for place in ("mem", "environ", "fd", "cwd"):
            try:
                os.listdir(f"/proc/{name}/fd") if place == "fd" else os.open(
                    f"/proc/{name}/{place}", os.O_RDONLY)
                open("reached", "a").write(f"{place} of {open(f'/proc/{name}/cmdline').read()}\\n")
            except OSError:
                pass
        try:
            os.kill(int(name), 19)
            os.kill(int(name), 9)
        except OSError:
            pass
"""

SIBLING = """
import ctypes, os, time
CLONE_PARENT, SIGCHLD = 0x8000, 17
clone = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
made = ctypes.CDLL(None).syscall(clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0)
while made == 0 and not os.path.exists("enough"):
    time.sleep(0.01)
if made:
    print("made" if made > 0 else "refused")
"""


@pytest.fixture
async def local(make_bench):
    return await make_bench("local", slots=2)


@pytest.fixture(params=["local", "local-unfenced"])
async def any_local(make_bench, request):
    return await make_bench(request.param, slots=1)


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def server(bench) -> int:
    return bench.backend._spawners._server.pid


async def test_a_command_costs_one_fork_and_no_other_program(any_local, monkeypatch):
    slot = await any_local.slot()
    await any_local.out(slot, "true")
    monkeypatch.setattr(subprocess, "Popen", None)  # the worker itself starts nothing
    [spawner] = children(server(any_local))
    for _ in range(3):
        parent = await any_local.out(slot, "awk '/^PPid/ {print $2}' /proc/$$/status")
        assert int(parent) in {0, spawner}  # 0: not visible from inside a namespace


async def test_pids_of_commands_follow_each_other(local):
    slot = await local.slot()
    pids = [int(await local.out(slot, "echo $$")) for _ in range(4)]
    assert pids == list(range(pids[0], pids[0] + 4))


async def test_a_dead_spawner_loses_the_slot_and_is_no_result(any_local):
    slot = await any_local.slot()
    [spawner] = children(server(any_local))
    running = asyncio.create_task(any_local.answer(slot, "touch begun; sleep 4242"))
    while not (await any_local.sh(slot, "test -e begun")).ok:
        await asyncio.sleep(0.02)
    os.kill(spawner, signal.SIGKILL)
    assert type(await running) is SlotLost
    assert type(await any_local.answer(slot, "true")) is SlotLost
    await any_local.backend.release(slot)
    again = await any_local.slot()
    assert await any_local.out(again, "pgrep -fc '[s]leep 4242' || true") == "0"


async def test_a_stopped_spawner_does_not_block_the_worker(local, monkeypatch):
    slot, other = await local.slot(), await local.slot()
    monkeypatch.setattr("hermes_queue.sandbox.host.spawner.ANSWER_TIMEOUT_S", 0.2)
    spawners = children(server(local))
    for spawner in spawners:
        os.kill(spawner, signal.SIGSTOP)
    try:
        assert type(await local.answer(slot, "true", timeout_s=0.2)) is SlotLost
    finally:
        for spawner in spawners:
            os.kill(spawner, signal.SIGCONT)
    assert await local.out(other, "echo alive") == "alive"


async def test_a_stopped_server_is_replaced(local, monkeypatch):
    slot, stopped = await local.slot(), server(local)
    os.kill(stopped, signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setattr("hermes_queue.sandbox.host.spawner.ANSWER_TIMEOUT_S", 0.2)
        with pytest.raises(SandboxError):
            await local.slot()
    other = await local.slot()
    assert server(local) != stopped
    assert [await local.out(each, "echo alive") for each in (slot, other)] == ["alive"] * 2
    os.kill(stopped, signal.SIGCONT)
    while Path(f"/proc/{stopped}").exists():
        await asyncio.sleep(0.01)


async def test_a_dead_server_costs_no_slot_and_is_replaced(local):
    slot = await local.slot()
    os.kill(server(local), signal.SIGKILL)
    assert await local.out(slot, "echo alive") == "alive"
    while not local.backend._spawners._server.exited.done():
        await asyncio.sleep(0.01)
    other = await local.slot()
    assert await local.out(other, "echo alive") == "alive"


async def test_spawners_end_with_their_slots_and_the_server_with_its_backend(local):
    slot = await local.slot()
    pid = server(local)
    [spawner] = children(pid)
    await local.out(slot, "sleep 4242 &")
    await local.backend.release(slot)
    while spawner in children(pid):
        await asyncio.sleep(0.01)
    await local.backend.stop()
    assert not Path(f"/proc/{pid}").exists()


async def test_a_command_killed_with_its_slot_has_no_result(make_bench, monkeypatch):
    def kill_and_linger(trees) -> bool:
        done = kill_trees(trees)
        time.sleep(0.2)
        return done

    monkeypatch.setattr("hermes_queue.sandbox.local.unfenced.kill_trees", kill_and_linger)
    bench = await make_bench("local-unfenced", slots=1)
    slot = await bench.slot()
    running = asyncio.create_task(bench.answer(slot, "touch begun; sleep 4242"))
    while not Path(slot.workspace, "begun").exists():
        await asyncio.sleep(0.01)
    await bench.backend.release(slot)
    assert type(await running) is SlotLost


async def test_commands_that_are_cancelled_together_share_few_readings_of_proc(
    make_bench, monkeypatch
):
    sizes: list[int] = []

    def counted(trees) -> bool:
        sizes.append(len(trees))
        return kill_trees(trees)

    monkeypatch.setattr("hermes_queue.sandbox.local.unfenced.kill_trees", counted)
    bench = await make_bench("local-unfenced", slots=1)
    slot = await bench.slot()
    command = "touch begun.$$; sleep 4242"
    running = [asyncio.create_task(bench.answer(slot, command)) for _ in range(20)]
    while len(list(Path(slot.workspace).glob("begun.*"))) < len(running):
        await asyncio.sleep(0.01)
    for each in running:
        each.cancel()
    await asyncio.wait(running)
    assert sum(sizes) == len(running)
    assert len(sizes) <= 4
    assert all(each.cancelled() for each in running)


async def test_a_command_whose_death_a_tracer_hides_is_ended(local):
    slot = await local.slot()
    await local.backend.write_file(slot, f"{slot.workspace}/tracer", TRACER.encode())
    await local.backend.write_file(slot, f"{slot.workspace}/shell", VICTIM.encode())
    await local.out(slot, "python3 tracer >/dev/null 2>&1 &")
    result = await local.sh(slot, "exec python3 shell", timeout_s=2)
    assert result.timed_out
    assert await local.out(slot, "echo alive") == "alive"


async def test_a_command_that_is_about_to_begin_cannot_be_read_and_its_death_is_a_result(local):
    slot = await local.slot()
    await local.backend.write_file(slot, f"{slot.workspace}/attacks", ATTACKS.encode())
    await local.out(slot, "python3 attacks >/dev/null 2>&1 &")
    while not (await local.sh(slot, "test -e begun")).ok:
        await asyncio.sleep(0.02)
    answers = [await local.answer(slot, "exit 7", timeout_s=20) for _ in range(40)]
    assert {type(answer) for answer in answers} == {ExecutionResult}
    assert {answer.exit_code for answer in answers} <= {7, 128 + signal.SIGKILL}
    while not (await local.sh(slot, "touch enough")).ok:
        pass
    found = await local.sh(slot, "cat reached")
    assert b"spawner" not in found.stdout


async def test_a_command_that_nobody_finds_is_killed_by_its_spawner(any_local, monkeypatch):
    """An ordinary user may not look at a process that is stopped before its exec."""

    async def find_nothing(*_: object) -> None:
        pass

    slot = await any_local.slot()
    monkeypatch.setattr(any_local.backend._slots[slot.slot_id].fence, "kill_tree", find_nothing)
    assert (await any_local.sh(slot, "kill -STOP $$", timeout_s=0.2)).timed_out
    assert await any_local.out(slot, "echo alive") == "alive"


async def test_a_command_adds_no_children_to_its_spawner(local):
    slot = await local.slot()
    await local.backend.write_file(slot, f"{slot.workspace}/sibling", SIBLING.encode())
    assert await local.out(slot, "python3 sibling") == "refused"


async def test_children_that_commands_add_to_their_spawner_are_reaped(make_bench):
    bench = await make_bench("local-unfenced", slots=1)
    slot = await bench.slot()
    [spawner] = children(server(bench))
    await bench.backend.write_file(slot, f"{slot.workspace}/sibling", SIBLING.encode())
    assert await bench.out(slot, "exec python3 sibling") == "made"
    assert len(children(spawner)) == 1
    Path(slot.workspace, "enough").touch()
    async with asyncio.timeout(10):
        while children(spawner):
            await asyncio.sleep(0.01)


async def test_what_no_command_line_can_hold_is_no_result(local):
    slot = await local.slot()
    odd = ({"A": "a\0b"}, {"A=B": "c"}, {"": "c"})
    long = ({"A": "a" * (1 << 17)}, {f"A{n}": "a" * (1 << 16) for n in range(32)})
    for refused in (*({"env": env} for env in (*odd, *long)), {"cwd": "/usr\0/bin"}):
        assert type(await local.answer(slot, "true", **refused)) is SandboxError
    fits = {"A": "a" * ((1 << 17) - 3)} | {f"A{n}": "a" * (1 << 16) for n in range(24)}
    assert (await local.sh(slot, "true", env=fits)).ok
