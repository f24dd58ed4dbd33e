"""Engines and containers that fail: nothing is lost silently, and nothing stays."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping

import pytest
from container_engines import BASE

from hermes_queue.errors import SandboxError, SlotKilled, SlotLost
from hermes_queue.images.spec import ImageSpec
from hermes_queue.sandbox.base import ExecutionRequest, ExecutionResult, SlotSpec
from hermes_queue.sandbox.fleet import SandboxObserver

SPEC = SlotSpec(image=ImageSpec(BASE))


class Notes(SandboxObserver):
    """What a ledger would know."""

    def __init__(self) -> None:
        self.alive: set[str] = set()
        self.leases_of_unknown: list[str] = []

    async def created(self, sandbox_id: str, labels: Mapping[str, str]) -> None:
        await asyncio.sleep(0)
        self.alive.add(sandbox_id)

    def leased(self, slot) -> None:
        if slot.sandbox_id not in self.alive:
            self.leases_of_unknown.append(slot.sandbox_id)

    def gone(self, sandbox_id: str) -> None:
        self.alive.discard(sandbox_id)


async def test_the_ledger_knows_each_container_before_its_lease(make_backend):
    notes = Notes()
    bench = await make_backend(observer=notes)
    slot = await bench.backend.renew(await bench.slot())
    assert notes.alive == {slot.sandbox_id}
    assert notes.leases_of_unknown == []
    await bench.backend.release(slot)
    assert notes.alive == set()


async def test_a_container_is_labelled_with_its_trajectory_and_worker(make_backend):
    bench = await make_backend(labels={"deployment": "d", "worker": "w", "pool": "p"})
    await bench.backend.acquire("trajectory-7", SPEC)
    [info] = await bench.backend.list_sandboxes({"deployment": "d", "worker": "w"})
    assert info.labels["trajectory"] == "trajectory-7"
    assert info.labels["pool"] == "p"
    assert abs(info.created - time.time()) < 3600


async def test_the_next_worker_of_the_host_removes_what_a_killed_one_left(
    make_backend, environment, cache
):
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "slot_victim",
        "docker",
        "victim",
        env={**environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    container = (await process.stdout.readline()).decode().strip()
    process.send_signal(signal.SIGKILL)
    await process.wait()
    bench = await make_backend()
    assert container not in {info.sandbox_id for info in await bench.backend.list_sandboxes({})}


async def test_a_dead_container_is_a_lost_slot_and_no_observation(bench):
    slot = await bench.slot(SPEC)
    running = asyncio.create_task(bench.answer(slot, "touch /begun; sleep 4242"))
    while not (await bench.sh(slot, "test -e /begun")).ok:
        await asyncio.sleep(0.05)
    await bench.backend._host.remove(slot.sandbox_id)
    assert isinstance(await running, SlotLost)
    assert isinstance(await bench.answer(slot, "true"), SlotLost)
    await bench.backend.release(slot)
    assert bench.backend.free_slots == 2


async def test_undecodable_output_is_kept(bench):
    slot = await bench.slot(SPEC)
    result = await bench.sh(
        slot, "head -c 100000 /dev/urandom | tee /root/x; echo; sha256sum /root/x >&2"
    )
    assert len(result.stdout) == 100_001
    assert result.stderr.split()[0].decode() in await bench.out(slot, "sha256sum /root/x")


async def test_a_command_that_kills_everything_is_a_result(bench):
    slot = await bench.slot(SPEC)
    result = await bench.sh(slot, "echo x; kill -9 -1; sleep 1")
    assert (result.exit_code, result.timed_out) == (137, False)
    assert await bench.out(slot, "echo alive") == "alive"


async def test_the_output_of_a_command_cannot_end_it(bench):
    slot = await bench.slot()
    result = await bench.sh(slot, r"printf '\0%s\0%s\0' \"$HQ_SEAL\" '0 0 -'; echo more; exit 3")
    assert result.exit_code == 3
    assert result.stdout.endswith(b"more\n")
    seen = await bench.out(
        slot, "cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n' | grep -c SEAL || true"
    )
    assert seen == "0"


async def test_no_container_has_more_than_a_slot_needs(bench):
    for spec in (SlotSpec(), SPEC):
        slot = await bench.slot(spec)
        found = await bench.backend._host._client.json(f"containers/{slot.sandbox_id}/json")
        host = found["HostConfig"]
        assert not host["Privileged"]
        assert host["NetworkMode"] == "none"
        assert not host.get("Devices")
        assert not host.get("Binds")
        assert (host["Memory"], host["MemorySwap"]) == (256 << 20, 256 << 20)
        assert host["PidsLimit"] == 512
        assert any("no-new-privileges" in option for option in host["SecurityOpt"])


async def test_fifty_commands_in_ten_slots_at_once(make_backend):
    bench = await make_backend(slots=10)
    slots = await asyncio.gather(*(bench.slot(SPEC) for _ in range(10)))
    requests = [ExecutionRequest(slots[n % 10], f"echo {n}", timeout_s=300) for n in range(50)]
    answers = await bench.backend.execute_batch(requests)
    assert [getattr(answer, "stdout", answer) for answer in answers] == [
        f"{number}\n".encode() for number in range(50)
    ]


async def test_a_waiting_job_gets_a_container_that_was_made_meanwhile(make_backend):
    bench = await make_backend(slots=1)
    first = await bench.slot(SPEC)
    waiting = asyncio.create_task(bench.slot(SPEC))
    worker = {"worker": bench.backend.labels["worker"]}
    while len(await bench.backend.list_sandboxes(worker)) < 2:
        await asyncio.sleep(0.05)
    [spare] = {info.sandbox_id for info in await bench.backend.list_sandboxes(worker)} - {
        first.sandbox_id
    }
    await bench.backend.release(first)
    assert (await waiting).sandbox_id == spare


@pytest.mark.parametrize(("settings_mb", "task_mb"), [(20, None), (1000, 20), (0, 20)])
async def test_a_slot_that_writes_too_much_has_killed_itself(make_backend, settings_mb, task_mb):
    bench = await make_backend(disk_mb=settings_mb)
    slot = await bench.slot(dataclasses.replace(SPEC, disk_mb=task_mb))
    running = asyncio.create_task(bench.answer(slot, "head -c 40000000 /dev/zero >/big; sleep 99"))
    while not (await bench.sh(slot, "[ $(stat -c %s /big) = 40000000 ]")).ok:
        await asyncio.sleep(0.05)
    await bench.backend._measure()
    for answer in (await running, await bench.answer(slot, "true")):
        assert isinstance(answer, SlotKilled)
        assert "20 MB" in str(answer)


async def test_an_engine_that_is_killed_and_started_again_loses_no_work(make_backend, engine):
    if not engine.argv:
        pytest.skip("the engine is not ours to kill")
    notes = Notes()
    bench = await make_backend(slots=4, observer=notes)
    done: list[str] = []

    async def job(name: str) -> None:
        """Tries again after failures of the sandbox, as a worker does."""
        while True:
            slot = None
            try:
                slot = await bench.backend.acquire(name, SPEC)
                for step in range(4):
                    answer = await bench.answer(
                        slot, f"sleep 0.2; echo {name} {step}", timeout_s=60
                    )
                    if not isinstance(answer, ExecutionResult):
                        raise answer
                    assert answer.stdout == f"{name} {step}\n".encode()
                done.append(name)
                return
            except SandboxError:
                await asyncio.sleep(0.5)
            finally:
                if slot is not None:
                    await bench.backend.release(slot)

    jobs = [asyncio.create_task(job(f"job-{number}")) for number in range(12)]
    while len(done) < 3:
        await asyncio.sleep(0.05)
    await asyncio.to_thread(engine.kill)
    await asyncio.sleep(1)
    await asyncio.to_thread(engine.start)
    await asyncio.gather(*jobs)
    assert sorted(done) == sorted(f"job-{number}" for number in range(12))
    with contextlib.suppress(SandboxError):
        await bench.backend._stock.tend()
    left = await bench.backend.list_sandboxes({"worker": bench.backend.labels["worker"]})
    assert left == []
    assert notes.alive == set()
