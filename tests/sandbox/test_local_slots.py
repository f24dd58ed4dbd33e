"""What only the local backend promises: control groups, dead workers, the shape of a slot."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import slot_victim

from hermes_queue.errors import SlotLost
from hermes_queue.sandbox.base import ExecutionRequest
from hermes_queue.sandbox.host import cgroups, descriptors
from hermes_queue.sandbox.host.bubblewrap import Bubblewrap
from hermes_queue.sandbox.host.execution import Child
from hermes_queue.sandbox.host.processes import read_stat
from hermes_queue.sandbox.local.backend import LocalBackend
from hermes_queue.sandbox.local.slot import MOST_LEFT_OPEN
from hermes_queue.settings import LocalSandboxSettings
from hermes_queue.tools.terminal import render

LIMITED = cgroups.available()


@pytest.fixture
async def local(make_bench):
    return await make_bench("local", slots=2)


def first_process(bench, slot) -> int:
    return bench.backend._slots[slot.slot_id].fence.init_pid


async def test_the_memory_limit_ends_the_command_with_137(local):
    slot = await local.slot()
    result = await local.sh(slot, "exec python3 -c 'bytearray(600 << 20)'")
    # Without writable control groups the allocation fails instead, in Python with 1.
    assert result.exit_code == (137 if LIMITED else 1)


async def test_the_process_limit_holds_and_a_fork_bomb_can_be_ended(local):
    slot = await local.slot()
    bomb = "b() { b & b & while :; do sleep 4242; done; }; b"
    result = await local.sh(slot, bomb, timeout_s=1)
    assert result.exit_code != 0
    again = await local.backend.renew(slot)
    assert await local.out(again, "pgrep -c sleep || true") == "0"


BUSY = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"


@pytest.mark.parametrize("limited", [True, False] if LIMITED else [False])
async def test_the_processor_time_of_a_command_and_its_children_is_counted(
    make_bench, monkeypatch, limited
):
    monkeypatch.setattr(cgroups, "available", lambda: limited)
    local = await make_bench("local", slots=1)
    slot = await local.slot()
    assert (await local.sh(slot, "sleep 1")).cpu_s < 1
    assert (await local.sh(slot, f"timeout 60 python3 -c '{BUSY}'; true")).cpu_s >= 0.3
    used = (await local.sh(slot, "bash -c 'while :; do :; done'; true", timeout_s=1)).cpu_s
    assert used > (await local.sh(slot, "true")).cpu_s


@pytest.mark.skipif(not LIMITED, reason="needs control groups")
async def test_processor_time_of_what_leaves_the_command_counts_too(local):
    slot = await local.slot()
    leaves = f'(setsid python3 -c \'{BUSY}\nopen("done", "w")\' &)'
    done = await local.sh(slot, f"{leaves}; until test -e done; do sleep 0.1; done")
    assert done.cpu_s >= 0.3


@pytest.mark.skipif(not cgroups.shares_processors(), reason="needs the cpu controller")
async def test_a_slot_with_many_busy_processes_leaves_a_neighbour_its_share(local):
    busy, neighbour = await local.slot(), await local.slot()
    begin = (
        "touch /tmp/begun; for i in $(seq 20); do taskset -c 0 sh -c 'while :; do :; done' & done"
    )
    many = asyncio.create_task(local.sh(busy, f"{begin}; wait", timeout_s=600))
    while not (await local.sh(busy, "test -e /tmp/begun")).ok:
        await asyncio.sleep(0.02)
    groups = local.backend._slots[busy.slot_id].fence.options.groups
    before = groups.cpu_s()
    own = await local.sh(neighbour, f"taskset -c 0 python3 -c '{BUSY}'", timeout_s=600)
    others = groups.cpu_s() - before
    many.cancel()
    assert own.cpu_s > others / 5


async def test_background_processes_hold_few_of_the_workers_descriptors(local):
    slot = await local.slot()
    hold_on = "trap '' PIPE; (while echo x; do sleep 0.1; done; touch /tmp/ended) 2>/dev/null &"
    assert (await local.sh(slot, hold_on)).notice == ""
    before = open_files()
    results = [await local.sh(slot, "sleep 4242 &") for _ in range(MOST_LEFT_OPEN)]
    assert open_files() <= before + MOST_LEFT_OPEN
    assert results[0].notice == ""
    assert "command >log 2>&1 &" in results[-1].notice
    assert results[-1].notice in render(results[-1], 1.0)
    # The oldest is not killed: it meets an error when it writes on.
    await local.out(slot, "until [ -e /tmp/ended ]; do sleep 0.05; done")
    await local.backend.release(slot)
    assert open_files() < before


def open_files() -> int:
    gc.collect()  # what earlier tests left must not be closed in between
    return len(os.listdir("/proc/self/fd"))


async def test_commands_start_with_the_limit_of_open_files_that_the_worker_began_with(
    local, monkeypatch
):
    """Its own is raised."""
    began = resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.setattr(descriptors, "_at_start", None)
    resource.setrlimit(resource.RLIMIT_NOFILE, (500, began[1]))
    try:
        descriptors.raise_limit()
        descriptors.raise_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == descriptors.most() > 500
        slot = await local.slot()
        assert await local.out(slot, "ulimit -S -n") == "500"
        assert await local.out(slot, "ulimit -H -n") != "500"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, began)


async def test_control_groups_are_removed_with_their_slot(local):
    slot = await local.slot()
    groups = local.backend._slots[slot.slot_id].fence.options.groups
    assert (groups is not None) == LIMITED
    await local.backend.release(slot)
    assert not any(group.exists() for group in (groups.groups if groups else ()))


async def test_a_killed_first_process_loses_the_slot_in_place(local):
    slot, other = await local.slot(), await local.slot()
    running = asyncio.create_task(
        local.backend.execute_batch(
            [ExecutionRequest(slot, "touch begun; sleep 4242"), ExecutionRequest(other, "sleep 1")]
        )
    )
    while not (await local.sh(slot, "test -e begun")).ok:
        await asyncio.sleep(0.02)
    os.kill(first_process(local, slot), signal.SIGKILL)
    lost, fine = await running
    assert type(lost) is SlotLost  # nobody inside can have sent that signal
    assert fine.exit_code == 0
    [after] = await local.backend.execute_batch([ExecutionRequest(slot, "true")])
    assert isinstance(after, SlotLost)
    await local.backend.release(slot)
    assert local.backend.free_slots == 1


@pytest.mark.parametrize(
    ("command", "from_inside"),
    [("exit 0", True), ("exit 3", True), ("exit 137", False), ("kill -TERM $$", False)],
)
async def test_only_a_first_process_that_ends_by_itself_was_ended_from_inside(
    local, command, from_inside
):
    slot = Bubblewrap("slot", local.backend._tools)
    slot._child = Child(["/bin/sh", "-c", command], env={})
    assert await slot.ended_from_inside() is from_inside
    await slot.kill()
    assert not await slot.ended_from_inside()


async def test_release_leaves_no_file_on_the_host(local, cache):
    slot = await local.slot()
    place = cache / "slots" / slot.sandbox_id / slot.slot_id
    assert place.is_dir()
    await local.out(slot, "mkdir -p a/b/c; touch a/b/c/d; chmod 000 a/b a")
    deep = "import os\nfor n in range(2100): os.mkdir('d'); os.chdir('d')"
    await local.out(slot, f'python3 -c "{deep}"')
    await local.backend.release(slot)
    assert not place.exists()
    assert not place.with_suffix(".json").exists()


async def test_orphans_are_reaped(local):
    slot = await local.slot()
    await local.out(slot, "for i in $(seq 30); do (setsid sleep 0.1 &); done")
    # Zombies are listed, too.
    while await local.out(slot, "pgrep -c '^sleep$' || true") != "0":
        await asyncio.sleep(0.05)


async def test_terminals_can_be_opened(local):
    slot = await local.slot()
    assert await local.out(slot, "script -qec 'test -t 1 && echo tty' /dev/null") == "tty\r"


async def test_streams_can_be_opened_by_name(local):
    slot = await local.slot()
    result = await local.sh(slot, "echo o | tee /dev/stderr; cat /dev/stdin", stdin=b"i")
    assert (result.stdout, result.stderr) == (b"o\ni", b"o\n")


@pytest.fixture
def start_victim(configure):
    """Start a worker that leases a slot and waits to be killed; the process and its sandbox."""
    configure("local")

    def start(worker):
        command = [sys.executable, slot_victim.__file__, "local", worker]
        victim = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        return victim, victim.stdout.readline().strip()

    return start


def test_the_kernel_ends_the_slots_of_a_killed_worker(cache, start_victim):
    victim, sandbox_id = start_victim("unattended")
    namespaces = {
        os.readlink(f"/proc/{child}/ns/pid_for_children")
        for child in Path(f"/proc/{victim.pid}/task/{victim.pid}/children").read_text().split()
    }
    assert len(namespaces) == 1
    [record] = [p for p in (cache / "slots" / sandbox_id).glob("slot-*.json")]
    pid = json.loads(record.read_text())["pid"]
    assert read_stat(pid) is not None
    victim.kill()
    victim.communicate()
    deadline = time.monotonic() + 20
    while (stat := read_stat(pid)) is not None and stat.is_alive:
        assert time.monotonic() < deadline, "the slot outlived its worker"
        time.sleep(0.05)


async def test_a_worker_that_lives_ends_what_a_dead_one_left(cache, start_victim):
    settings = LocalSandboxSettings(memory_mb=256, reap_s=0.1)
    live = LocalBackend(settings, cache=cache, slots=1)
    await live.start()
    try:
        victim, sandbox_id = start_victim("reaped")
        await asyncio.sleep(0.5)
        assert (cache / "slots" / sandbox_id).is_dir()
        victim.kill()
        victim.communicate()
        async with asyncio.timeout(30):
            while (cache / "slots" / sandbox_id).exists():
                await asyncio.sleep(0.05)
    finally:
        await live.stop()


async def test_a_slot_that_was_just_being_started_is_ended_with_its_dead_worker(
    cache, start_victim
):
    victim, sandbox_id = start_victim("starting")
    command = "import time; time.sleep(600)"
    unrecorded = subprocess.Popen(
        [sys.executable, "-c", command, f"{cache}/slots/{sandbox_id}/etc/passwd"]
    )
    victim.kill()
    victim.communicate()
    heir = LocalBackend(LocalSandboxSettings(), cache=cache, slots=1)
    await heir.start()
    await heir.stop()
    assert unrecorded.wait(10) == -signal.SIGKILL


async def test_the_next_worker_reclaims_what_a_dead_one_left(
    make_bench, cache, start_victim, caplog
):
    caplog.set_level(logging.INFO)
    victim, sandbox_id = start_victim("reclaimed")
    live = await make_bench("local", slots=1)
    assert (cache / "slots" / sandbox_id).is_dir()
    victim.kill()
    victim.communicate()
    slot = await live.slot()
    await make_bench("local", slots=1)
    assert f"deleting the files of sandbox {sandbox_id}, whose worker died" in caplog.text
    assert not (cache / "slots" / sandbox_id).exists()
    assert await live.out(slot, "echo alive") == "alive"
