"""The backend `nomad` passes the checks of the contract on a server whose containers are real."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from container_engines import BASE, MEMORY_MB
from slot_bench import SlotBench
from tiny_registry import tiny_registry

from hermes_plugins.containers.backend import ContainerBackend
from hermes_plugins.nomad import cluster as nomad_cluster
from hermes_plugins.nomad.cluster import make_backend
from hermes_plugins.nomad.settings import NomadSettings
from hermes_queue.errors import (
    EnvInfraError,
    SandboxRejected,
    SandboxUnavailable,
    SlotLost,
)
from hermes_queue.images.spec import ImageSpec
from hermes_queue.sandbox.base import ExecutionRequest, SlotSpec

IMAGE = SlotSpec(image=ImageSpec(BASE))


@pytest.fixture
async def cluster(settings: Mapping[str, str]) -> AsyncIterator[Callable[..., Any]]:
    """Starts backends on the server; after the test they have left nothing."""
    started: list[ContainerBackend] = []

    async def start(*, slots: int = 2, **options: Any) -> SlotBench:
        values = NomadSettings().model_dump() | options
        section = NomadSettings.model_construct(**values)
        backend = make_backend(section, slots=slots)
        started.append(backend)
        await backend.start()
        return SlotBench(backend)

    yield start
    for each in started:
        await each.stop()
        assert await each.list_sandboxes({"worker": each.labels["worker"]}) == []


async def test_the_next_worker_removes_what_a_killed_one_left(cluster, settings):
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "slot_victim",
        "nomad",
        "victim",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    job = (await process.stdout.readline()).decode().strip()
    process.send_signal(signal.SIGKILL)
    await process.wait()
    bench = await cluster()
    assert job.startswith("hermes-queue-")
    assert job not in {info.sandbox_id for info in await bench.backend.list_sandboxes({})}


async def test_a_container_that_dies_is_a_lost_slot_and_no_observation(cluster, nomad):
    bench = await cluster()
    slot = await bench.slot(IMAGE)
    running = asyncio.create_task(bench.answer(slot, "touch /begun; sleep 4242"))
    while not (await bench.sh(slot, "test -e /begun")).ok:
        await asyncio.sleep(0.05)
    tasks, job = nomad.thread.server.driver, nomad.thread.server.jobs[slot.sandbox_id]
    ending = tasks.stop(job.allocation.container)
    await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(ending, nomad.thread.loop))
    assert isinstance(await running, SlotLost)
    assert isinstance(await bench.answer(slot, "true"), SlotLost)
    await bench.backend.release(slot)
    assert bench.backend.free_slots == 2


async def test_a_container_without_signs_of_life_ends_by_itself(cluster, monkeypatch):
    monkeypatch.setattr(nomad_cluster, "BEATS_PER_IDLE_TIME", 0.001)
    bench = await cluster(idle_timeout_s=15)
    slot = await bench.slot(IMAGE)
    while (await bench.backend._host.state(slot.sandbox_id)).running:
        await asyncio.sleep(0.1)
    assert isinstance(await bench.answer(slot, "true"), SlotLost)


async def test_signs_of_life_keep_a_container_and_its_files(cluster):
    bench = await cluster(idle_timeout_s=15)
    slot = await bench.slot(IMAGE)
    assert (await bench.sh(slot, "echo kept >/f; sleep 20; cat /f")).stdout == b"kept\n"


async def test_root_of_a_slot_may_signal_everything_and_the_slot_lives(cluster):
    bench = await cluster()
    slot = await bench.slot(IMAGE)
    for command in ("kill -9 -1", "kill -USR2 1; sleep 60", "kill -TERM -1", "kill -9 1; exit 137"):
        result = await bench.sh(slot, f"echo x; {command}", timeout_s=100)
        assert (result.exit_code, result.timed_out) in ((137, False), (143, False), (0, False))
        assert await bench.out(slot, "echo alive") == "alive"


async def test_a_user_has_the_groups_that_the_image_gives_it(cluster):
    bench = await cluster()
    slot = await bench.slot(IMAGE)
    await bench.out(
        slot, "groupadd -g 777 crew && useradd -m -u 1500 -G crew ann && chmod 711 /root"
    )
    look = "id -u; id -g; id -G; echo $HOME; grep CapEff /proc/self/status"
    none = "CapEff:\t0000000000000000"
    assert await bench.out(slot, look, user="ann") == f"1500\n1500\n1500 777\n/home/ann\n{none}"
    assert await bench.out(slot, look, user="ann:crew") == f"1500\n777\n777\n/home/ann\n{none}"
    assert await bench.out(slot, look, user="4444") == f"4444\n0\n0\n/\n{none}"
    await bench.out(slot, "mv $(command -v setpriv) /srv")
    assert await bench.out(slot, look, user="ann") == f"1500\n1500\n1500 777\n/home/ann\n{none}"


async def test_a_slot_with_all_the_processes_it_may_have_can_be_restarted(cluster):
    bench = await cluster(max_pids=40)
    slot = await bench.slot(IMAGE)
    many = "for i in $(seq 100); do sleep 600 & done; wait"
    result = await bench.sh(slot, f"echo kept >/root/f; {many}", timeout_s=3)
    assert result.timed_out
    again = await bench.backend.restart(slot)
    assert await bench.out(again, "cat /root/f; pgrep -c sleep || true") == "kept\n1"


@pytest.mark.parametrize("kind", ["docker"])  # Podman locks a container while a program starts
@pytest.mark.parametrize("file", ["/etc/passwd", "/etc/group"])
async def test_a_slot_in_which_nothing_starts_can_be_restarted(cluster, file):
    bench = await cluster()
    slot = await bench.slot(IMAGE)
    await bench.out(slot, f"echo kept >/root/f; rm {file}; mkfifo {file}")
    waiting = asyncio.create_task(bench.answer(slot, "true"))
    await asyncio.sleep(1)
    again = await bench.backend.restart(slot)
    assert isinstance(await waiting, SlotLost)
    assert await bench.out(again, f"cat /root/f; [ -e {file} ] || echo gone") == "kept\ngone"


async def test_a_full_cluster_hands_back_jobs_until_there_is_room(cluster, nomad):
    bench = await cluster(slots=3, placement_timeout_s=0.5)
    first = await bench.slot(IMAGE)
    nomad.thread.server.memory_mb, before = MEMORY_MB + 10, nomad.thread.server.memory_mb
    try:
        with pytest.raises(SandboxUnavailable, match="memory"):
            await bench.slot(IMAGE)
        await bench.backend.release(first)
        while nomad.thread.server.jobs:
            await asyncio.sleep(0.05)
        assert await bench.out(await bench.slot(IMAGE), "echo room") == "room"
    finally:
        nomad.thread.server.memory_mb = before


async def test_fifty_commands_in_ten_slots_at_once(cluster):
    bench = await cluster(slots=10)
    slots = await asyncio.gather(*(bench.slot(IMAGE) for _ in range(10)))
    requests = [ExecutionRequest(slots[n % 10], f"echo {n}", timeout_s=300) for n in range(50)]
    answers = await bench.backend.execute_batch(requests)
    assert [getattr(answer, "stdout", answer) for answer in answers] == [
        f"{number}\n".encode() for number in range(50)
    ]


@pytest.fixture
def folder(cache: Path) -> Iterator[Path]:
    """A task's folder with a Dockerfile."""
    directory = Path(tempfile.mkdtemp(dir=cache))
    (directory / "Dockerfile").write_text(
        f"FROM {BASE}\nWORKDIR /app\nENV COLOUR=blue\nRUN echo built >/app/f\nUSER nobody\n"
    )
    yield directory
    shutil.rmtree(directory)


async def test_a_folder_with_a_dockerfile_is_built_where_nodes_find_it(cluster, engine, folder):
    bench = await cluster(build_engine=engine.address)
    slot = await bench.slot(SlotSpec(image=ImageSpec(context=str(folder))))
    look = "pwd; cat f; echo $COLOUR; id -un"
    assert await bench.out(slot, look) == "/app\nbuilt\nblue\nnobody"
    assert slot.image.startswith("built from sha256:")


async def test_a_folder_that_nobody_builds_is_refused_before_a_slot(cluster, folder):
    bench = await cluster()
    with pytest.raises(SandboxRejected, match="HERMES_QUEUE_NOMAD_BUILD_ENGINE"):
        await bench.backend.prepare(SlotSpec(image=ImageSpec(context=str(folder))))


@pytest.mark.parametrize("kind", ["docker"])  # Podman pushes to no registry without TLS
async def test_a_built_image_is_pushed_once_to_where_nodes_pull_it(cluster, engine, folder):
    async with tiny_registry() as (registry, host):
        repository = f"{host}/agents/tasks"
        bench = await cluster(build_engine=engine.address, push=repository)
        spec = SlotSpec(image=ImageSpec(context=str(folder)))
        slots = await asyncio.gather(bench.slot(spec), bench.slot(spec))
        assert await bench.out(slots[1], "cat f") == "built"
        assert [name for name in registry.manifests if "sha256" not in name] != []
        job = await bench.backend._host._client.request(f"job/{slots[0].sandbox_id}")
        config = job.body["TaskGroups"][0]["Tasks"][0]["Config"]
        assert config["image"].startswith(f"{repository}:")


@pytest.mark.parametrize("kind", ["docker"])
async def test_a_repository_that_takes_no_image_is_named(cluster, engine, folder):
    bench = await cluster(build_engine=engine.address, push="127.0.0.1:1/agents/tasks")
    with pytest.raises(EnvInfraError, match="HERMES_QUEUE_NOMAD_PUSH=127"):
        await bench.backend.prepare(SlotSpec(image=ImageSpec(context=str(folder))))
