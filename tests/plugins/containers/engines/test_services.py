"""Services beside a slot, on a real engine: reached by name, fenced like slots, gone with them."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from container_engines import BASE, EngineProcess

from hermes_plugins.containers.docker.networks import EngineNetworks
from hermes_plugins.containers.images.client import EngineClient
from hermes_queue.errors import EnvInfraError, SandboxRejected, SlotLost
from hermes_queue.images.spec import ImageSpec
from hermes_queue.sandbox.base import SlotSpec
from hermes_queue.sandbox.services import (
    ServiceDependency,
    ServiceEnded,
    ServiceHealthcheck,
    ServiceSpec,
    ServiceVolume,
)

IMAGE = ImageSpec(BASE)
ASK = "import urllib.request as r; print(r.urlopen('http://{}').read().decode(), end='')"
READY = ServiceHealthcheck(
    ("python3", "-c", "import socket; socket.create_connection(('127.0.0.1', 80), 1)"),
    interval_s=20,
    timeout_s=10,
)
WEB = ServiceSpec(
    "web",
    IMAGE,
    aliases=("www.shop.test",),
    command=("sh", "-c", "hostname >/srv/name; cd /srv && exec python3 -m http.server 80"),
    healthcheck=READY,
)
SPEC = SlotSpec(image=IMAGE, services=(WEB,))


@pytest.fixture
def kind() -> str:
    """Podman's networks leave the host in reach; see the last test."""
    return "docker"


@pytest.fixture
async def networks(engine: EngineProcess) -> AsyncIterator[EngineNetworks]:
    """What the engine has of networks and volumes."""
    client = EngineClient(engine.address)
    await client.open()
    yield EngineNetworks(client)
    await client.close()


def asks(host: str) -> str:
    """A command line that prints what a web server gives."""
    return f'python3 -c "{ASK.format(host)}"'


async def test_a_service_is_there_by_all_its_names_when_the_slot_is(bench):
    slot = await bench.slot(SPEC)
    assert await bench.out(slot, asks("web/name")) == "web"
    assert await bench.out(slot, asks("www.shop.test/name")) == "web"
    assert await bench.out(slot, "hostname") == "main"


async def test_nothing_but_the_services_can_be_reached(bench):
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        slot = await bench.slot(SPEC)
        places = await bench.out(slot, "hostname -I")
        gateway = places.strip().rpartition(".")
        host = f"{gateway[0]}.{int(gateway[2]) - 1}"
        names = [host, "1.1.1.1", *_own_addresses()]
        for name in names:
            tried = f"timeout 5 bash -c 'echo >/dev/tcp/{name}/{port}'"
            assert not (await bench.sh(slot, tried)).ok, name
        assert not (await bench.sh(slot, "getent hosts example.com")).ok
        assert not (await bench.sh(slot, "python3 -c 'import socket as s; s.socket(17, 3)'")).ok


def _own_addresses() -> list[str]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return [probe.getsockname()[0]]


async def test_services_of_two_slots_do_not_meet(bench):
    one, other = await asyncio.gather(bench.slot(SPEC), bench.slot(SPEC))
    address = (await bench.out(other, "getent hosts web")).split()[0]
    assert not (await bench.sh(one, f"timeout 5 bash -c 'echo >/dev/tcp/{address}/80'")).ok


async def test_services_have_limits_and_no_rights_on_the_host(bench):
    spec = dataclasses.replace(
        SPEC, services=(dataclasses.replace(WEB, cpus=0.5, memory_mb=96, tmpfs=("/run/x",)),)
    )
    slot = await bench.slot(spec)
    service = await bench.backend.service(slot, "web")
    assert "tmpfs" in await bench.out(service, "stat -f -c %T /run/x")
    out = await bench.out(service, "grep -E 'CapEff|NoNewPrivs' /proc/1/status")
    rights = int(out.split()[1], 16)
    assert not rights & (1 << 12 | 1 << 13 | 1 << 21 | 1 << 19 | 1 << 27), (
        "net, admin, ptrace, mknod"
    )
    assert "NoNewPrivs:\t1" in out
    eats = "python3 -c 'x = b\"a\" * (200 << 20)'"
    assert (await bench.sh(service, eats)).exit_code == 137


async def test_a_service_that_is_killed_from_outside_is_a_lost_slot(bench, kill_service):
    for look in ("service", "restart"):
        slot = await bench.slot(SPEC)
        await kill_service(slot, "web")
        with pytest.raises(SlotLost, match="killed from outside"):
            await (
                bench.backend.service(slot, "web")
                if look == "service"
                else bench.backend.restart(slot)
            )


async def test_a_service_that_reaches_its_own_limit_of_memory_has_ended_itself(bench):
    eats = "sleep 2; exec python3 -c 'x = b\"a\" * (200 << 20)'"
    eater = ServiceSpec("eater", IMAGE, command=("sh", "-c", eats), memory_mb=64)
    slot = await bench.slot(dataclasses.replace(SPEC, services=(eater,)))

    async def ends() -> None:
        while True:
            await bench.backend.service(slot, "eater")

    with pytest.raises(ServiceEnded, match="ended with 137, out of memory"):
        await ends()


async def test_dependencies_are_waited_for_and_volumes_are_shared(bench):
    data = ServiceVolume("data", "/data")
    seed = ServiceSpec(
        "seed", IMAGE, command=("sh", "-c", "sleep 1; echo sown >/data/x"), volumes=(data,)
    )
    reader = dataclasses.replace(
        WEB,
        command=("sh", "-c", "cp /data/x /srv/name && cd /srv && exec python3 -m http.server 80"),
        depends_on=(ServiceDependency("seed", "completed"),),
        volumes=(dataclasses.replace(data, read_only=True),),
    )
    last = ServiceSpec(
        "last",
        IMAGE,
        command=("sh", "-c", f"{asks('web/name')} >/data/y && exec sleep 4242"),
        depends_on=(ServiceDependency("web", "healthy"),),
        volumes=(data,),
        healthcheck=ServiceHealthcheck(("test", "-s", "/data/y"), interval_s=20),
    )
    spec = SlotSpec(
        image=IMAGE, services=(last, reader, seed), volumes=(ServiceVolume("data", "/shared"),)
    )
    slot = await bench.slot(spec)
    assert await bench.out(slot, "cat /shared/y") == "sown"
    with pytest.raises(ServiceEnded, match="seed ended with 0"):
        await bench.backend.service(slot, "seed")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"command": ("sh", "-c", "echo oops >&2; exit 3")}, "web ended with 3.*oops"),
        (
            {
                "command": ("sh", "-c", "echo waiting; exec sleep 4242"),
                "healthcheck": ServiceHealthcheck(("sh", "-c", "echo no; false"), 0.2, 5, 0, 2),
            },
            "web is not healthy after 2 checks, the last one: no; its output ends with: waiting",
        ),
        ({"healthcheck": ServiceHealthcheck(("sleep", "60"), 0.1, 0.1, 0, 1)}, "took more than"),
    ],
)
async def test_a_service_that_does_not_become_ready_is_a_failure_with_its_output(
    bench, networks, change, why
):
    spec = dataclasses.replace(SPEC, services=(dataclasses.replace(WEB, **change),))
    with pytest.raises(EnvInfraError, match=why):
        await bench.slot(spec)
    assert await left(bench.backend, networks) == [[], {}, {}]
    assert bench.backend.free_slots == 2


async def test_renewing_brings_new_services_and_restarting_keeps_their_files(bench):
    slot = await bench.slot(SPEC)
    service = await bench.backend.service(slot, "web")
    await bench.out(service, "echo changed >/srv/name; sleep 4242 & touch /usr/bin/new")
    changed = {change.path: change.kind for change in await bench.backend.changes(service)}
    assert changed["/usr/bin/new"] == "added"
    await bench.out(service, "printf kept >/srv/more")
    slot = await bench.backend.restart(slot)
    assert await bench.out(slot, asks("web/more")) == "kept"
    with pytest.raises(SlotLost):
        await bench.backend.changes(dataclasses.replace(service, slot_id="other"))
    again = await bench.backend.service(slot, "web")
    running = "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c '[s]leep 4242' || true"
    assert await bench.out(again, running) == "0"
    slot = await bench.backend.renew(slot)
    assert not (await bench.sh(slot, asks("web/more"))).ok
    assert isinstance(await bench.answer(again, "true"), SlotLost)


async def test_the_end_of_a_lease_leaves_nothing(bench, networks):
    slot = await bench.slot(dataclasses.replace(SPEC, volumes=(ServiceVolume("data", "/shared"),)))
    found = await left(bench.backend, networks)
    assert [len(each) for each in found] == [2, 1, 1]
    await bench.backend.release(slot)
    assert await left(bench.backend, networks) == [[], {}, {}]


async def left(backend: Any, networks: EngineNetworks) -> list[Any]:
    """Containers, networks and volumes of a worker."""
    labels = {"worker": backend.labels["worker"]}
    return [
        await backend.list_sandboxes(labels),
        await networks.list_networks(labels),
        await networks.list_volumes(labels),
    ]


VICTIM = """
import asyncio, sys
from hermes_queue.sandbox.base import SlotSpec
from hermes_plugins.containers.docker import BACKEND
sys.path.insert(0, sys.argv[1])
from test_services import SPEC, ServiceVolume, dataclasses

async def main():
    backend = BACKEND(labels={"worker": "victim"})
    await backend.start()
    spec = dataclasses.replace(SPEC, volumes=(ServiceVolume("data", "/shared"),))
    await backend.acquire("t", spec)
    print("ready", flush=True)
    await asyncio.sleep(3600)

asyncio.run(main())
"""


async def test_the_next_worker_removes_what_a_killed_one_left(make_backend, environment, networks):
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", VICTIM, str(Path(__file__).parent)),
        env={**environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGKILL)
    await process.wait()
    assert await networks.list_networks({"worker": "victim"})
    bench = await make_backend()
    assert await bench.backend.list_sandboxes({"worker": "victim"}) == []
    assert await networks.list_networks({"worker": "victim"}) == {}
    assert await networks.list_volumes({"worker": "victim"}) == {}


async def test_the_reapers_way_ends_containers_and_then_their_network(bench, networks):
    await bench.slot(SPEC)
    [containers, found, _] = await left(bench.backend, networks)
    assert (len(containers), len(found)) == (2, 1)
    for info in containers:
        await bench.backend.terminate(info.sandbox_id)
    assert await left(bench.backend, networks) == [[], {}, {}]


async def test_more_services_than_allowed_are_refused(make_backend):
    bench = await make_backend(max_services=0)
    with pytest.raises(SandboxRejected, match="HERMES_QUEUE_DOCKER_MAX_SERVICES=0"):
        await bench.backend.prepare(SPEC)


@pytest.fixture
def podman(engines: Callable[[str], EngineProcess]) -> EngineProcess:
    """The other engine."""
    return engines("podman")


async def test_podman_has_no_services(podman: EngineProcess, make_backend):
    bench = await make_backend(host=podman.address)
    assert not bench.backend.capabilities.services
    with pytest.raises(SandboxRejected, match=r"Podman.* use Docker Engine"):
        await bench.backend.prepare(SPEC)
