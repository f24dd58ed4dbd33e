"""The backend `nomad` and a cluster that fails: what its answers mean, and that nothing stays.

The server is the one of `make test-engines`, without containers: programs run on this host.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from nomad_server import Allocation, NomadServer, RunningExec, TaskFailed, serving

from hermes_plugins.images.containers.host import ContainerSpec
from hermes_plugins.nomad import client, execution, job, placement
from hermes_plugins.nomad.cluster import NomadCluster
from hermes_plugins.nomad.offer import check
from hermes_plugins.nomad.settings import NomadSettings
from hermes_queue.errors import (
    ConfigurationError,
    SandboxError,
    SandboxRejected,
    SandboxUnavailable,
    SlotLost,
)
from hermes_queue.sandbox.archives import FilesRefused

SPEC = ContainerSpec(
    "image:1", ("true",), {"worker": "w", "deployment": "d"}, 1.0, 64, 50, 8, name="hermes-queue-1"
)
FURNISHED = dataclasses.replace(SPEC, capabilities=("CHOWN", "SYS_PTRACE"))
"""As for tasks without an image; its files are not listed."""


class Program:
    """A program of this host."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def read(self) -> tuple[int, bytes] | None:
        assert self._process.stdout is not None
        data = await self._process.stdout.read(65536)
        return (1, data) if data else None

    async def write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        await self._process.stdin.drain()

    async def write_eof(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    async def exit_code(self) -> int | None:
        return await self._process.wait()


class HostTasks:
    """See `TaskDriver`."""

    name = "docker"

    def __init__(self) -> None:
        self.refusal = ""
        self.stopped: list[str] = []
        self.ended = asyncio.Event()

    async def start(self, alloc: Allocation, task: dict[str, Any]) -> str:
        if self.refusal:
            raise TaskFailed(self.refusal)
        return f"container of {alloc.job_id}"

    @asynccontextmanager
    async def exec(self, container: str, command: list[str]) -> AsyncIterator[RunningExec]:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={"PATH": "/usr/bin:/bin", "NOMAD_META_x": "secret", "LC_ALL": "C.UTF-8"},
        )
        yield Program(process)
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()

    async def signal(self, container: str, signal: str) -> None: ...

    async def wait(self, container: str) -> tuple[int, bool]:
        await self.ended.wait()
        return 137, True

    async def stop(self, container: str) -> None:
        self.stopped.append(container)


@pytest.fixture
async def server() -> AsyncIterator[NomadServer]:
    """A cluster of one node with 256 MB."""
    made = NomadServer(HostTasks(), token="s3cret", memory_mb=256)
    async with serving(made) as made.address:
        yield made


@pytest.fixture
async def connect(server: NomadServer) -> AsyncIterator[Callable[..., Any]]:
    """Opens clusters with settings of their own."""
    opened: list[NomadCluster] = []

    async def connect(**settings: Any) -> NomadCluster:
        options = {"address": server.address, "token": "s3cret", **settings}
        cluster = NomadCluster(NomadSettings(**options))
        opened.append(cluster)
        await cluster.open()
        return cluster

    yield connect
    for each in opened:
        await each.close()


@pytest.fixture
async def cluster(connect: Callable[..., Any]) -> NomadCluster:
    """An open cluster."""
    found: NomadCluster = await connect()
    return found


def answering(status: int, text: str, **headers: str) -> Callable[[], Any]:
    async def answer() -> web.Response:
        return web.Response(status=status, text=text, headers=headers)

    return answer


async def collected(cluster: NomadCluster, argv: list[str], **options: Any) -> tuple[bytes, Any]:
    """Output and exit code of a program."""
    output = b""
    options = {"user": "0", "env": {}, "stdin": False} | options
    data = options.pop("data", b"")
    async with cluster.exec(SPEC.name, argv, **options) as stream:
        if data:
            await stream.write(data)
            await stream.write_eof()
        while found := await stream.read():
            output += found[1]
        return output, await stream.exit_code()


# --- jobs ---------------------------------------------------------------------------------


async def test_a_container_is_a_job_that_carries_its_labels_and_is_purged(cluster, server):
    assert await cluster.create(FURNISHED) == FURNISHED.name
    server.jobs["hermes-queue-foreign"] = server.jobs[FURNISHED.name].__class__(
        {"ID": "hermes-queue-foreign", "Meta": {"owner": "somebody"}}, 0, 0, []
    )
    [info] = await cluster.list({"worker": "w"})
    assert (info.sandbox_id, info.labels) == (FURNISHED.name, FURNISHED.labels)
    assert await cluster.list({"worker": "other"}) == []
    assert (await cluster.state(FURNISHED.name)).running
    await cluster.remove(FURNISHED.name)
    await cluster.remove(FURNISHED.name)
    assert await cluster.list({}) == []


async def test_labels_are_found_where_lists_of_jobs_do_not_have_them(cluster, server):
    await cluster.create(FURNISHED)
    stub = [{"ID": FURNISHED.name, "Stop": False}]
    server.faults["GET jobs"] = answering(200, json.dumps(stub))
    [info] = await cluster.list({"worker": "w"})
    assert info.labels == FURNISHED.labels


async def test_a_job_runs_once_with_limits_no_network_and_no_right_that_nodes_refuse(
    cluster, server
):
    await cluster.create(FURNISHED)
    job = server.jobs[FURNISHED.name].job
    [group] = job["TaskGroups"]
    [task] = group["Tasks"]
    assert (job["Type"], group["Count"]) == ("batch", 1)
    assert group["RestartPolicy"]["Attempts"] == group["ReschedulePolicy"]["Attempts"] == 0
    assert task["Resources"] == {"CPU": 2000, "MemoryMB": 64}
    config = task["Config"]
    assert (config["network_mode"], config["pids_limit"], config["cpu_hard_limit"]) == (
        "none",
        50,
        True,
    )
    assert (config["cap_drop"], config["cap_add"]) == (["ALL"], ["chown"])
    assert config["security_opt"] == ["no-new-privileges"]
    assert "privileged" not in config


@pytest.mark.parametrize(
    ("settings_mb", "task_mb", "size"), [(0, 512, None), (900, 0, "900M"), (900, 512, "512M")]
)
async def test_the_disk_is_limited_where_the_engines_can(
    connect, server, settings_mb, task_mb, size
):
    cluster = await connect(disk_mb=settings_mb)
    await cluster.create(dataclasses.replace(FURNISHED, disk_mb=task_mb))
    config = server.jobs[FURNISHED.name].job["TaskGroups"][0]["Tasks"][0]["Config"]
    assert config.get("storage_opt") == (size and {"size": size})


async def test_podman_gets_what_its_driver_has(connect, server):
    server.driver.name = "podman"
    cluster = await connect(driver="podman", ptrace=True)
    await cluster.create(FURNISHED)
    config = server.jobs[FURNISHED.name].job["TaskGroups"][0]["Tasks"][0]["Config"]
    assert (config["memory_swap"], config["shm_size"]) == ("64m", "8m")
    assert "sys_ptrace" in config["cap_add"]
    assert not {"security_opt", "mount"} & config.keys()


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ({"driver": "raw_exec"}, "docker"),
        ({"network": "host"}, "network of slots"),
        ({"network": "container:x"}, "network of slots"),
        ({"address": "nomad:4646"}, "https://"),
        ({"idle_timeout_s": 5}, "60"),
    ],
)
def test_settings_without_isolation_or_sense_are_refused(setting, named):
    with pytest.raises(ValueError, match=named):
        NomadSettings(**setting)


async def test_a_task_with_network_needs_one_that_the_operator_names(connect):
    cluster = await connect()
    with pytest.raises(SandboxRejected, match="HERMES_QUEUE_NOMAD_NETWORK"):
        await cluster.network("")
    assert await cluster.network("slots") == "slots"


# --- placement ----------------------------------------------------------------------------


async def test_a_full_cluster_is_waited_for_and_then_says_what_is_used_up(
    connect, server, monkeypatch
):
    monkeypatch.setattr(placement, "POLL_S", 0.02)
    monkeypatch.setattr(placement, "WAIT_S", 0.1)
    cluster = await connect(placement_timeout_s=0.2)
    await cluster.create(FURNISHED)
    large = dataclasses.replace(FURNISHED, memory_mb=250, name="hermes-queue-2")
    with pytest.raises(SandboxUnavailable, match=r"used up on 1 nodes: memory"):
        await cluster.create(large)
    assert list(server.jobs) == [FURNISHED.name]


async def test_a_job_that_waited_for_room_gets_it(connect, server, monkeypatch):
    monkeypatch.setattr(placement, "POLL_S", 0.02)
    cluster = await connect()
    await cluster.create(FURNISHED)
    large = dataclasses.replace(FURNISHED, memory_mb=250, name="hermes-queue-2")
    waiting = asyncio.create_task(cluster.create(large))
    while "GET job/hermes-queue-2/evaluations" not in server.requests:
        await asyncio.sleep(0.01)
    await cluster.remove(FURNISHED.name)
    assert await waiting == large.name


async def test_a_cluster_without_a_node_that_fits_is_not_waited_for(connect, server):
    cluster = await connect()
    server.driver.name = "exec"
    with pytest.raises(SandboxUnavailable, match=r"missing drivers \(1 nodes\)"):
        await cluster.create(FURNISHED)
    assert server.jobs == {}


@pytest.mark.parametrize(
    ("says", "kind", "named"),
    [
        ("Failed to pull `x`: pull access denied, repository does not exist", SandboxRejected, "x"),
        ("Failed to pull `x`: toomanyrequests: rate limit", SandboxUnavailable, "toomany"),
        ("driver does not allow the following capabilities: sys_ptrace", SandboxRejected, "PTRACE"),
        ("volumes are not enabled; cannot mount host paths", SandboxRejected, "SHARED_CACHE"),
        ("linux spec user: unable to find user x", SandboxRejected, "user of the image"),
        ('exec: "/bin/sh": stat /bin/sh: no such file', SandboxRejected, "/bin/bash"),
        ("the disk is on fire", SandboxError, "fire"),
    ],
)
async def test_a_container_that_does_not_start_says_why(cluster, server, says, kind, named):
    server.driver.refusal = says
    with pytest.raises(SandboxError, match=named) as caught:
        await cluster.create(FURNISHED)
    assert type(caught.value) is kind
    assert server.jobs == {}


async def test_a_job_that_nomad_finds_invalid_is_refused_for_good(cluster):
    with pytest.raises(SandboxRejected, match="minimum MemoryMB"):
        await cluster.create(dataclasses.replace(FURNISHED, memory_mb=1))


async def test_an_agent_that_does_not_block_is_not_asked_without_pause(
    connect, server, monkeypatch
):
    monkeypatch.setattr(placement, "POLL_S", 0.05)
    cluster = await connect(placement_timeout_s=0.3)
    path = f"GET job/{FURNISHED.name}/allocations"
    server.faults[path] = answering(200, "[]", **{"X-Nomad-Index": "garbage"})
    with pytest.raises(SandboxUnavailable, match="within"):
        await cluster.create(FURNISHED)
    assert server.requests.count(path) <= 8


async def test_a_start_that_takes_too_long_is_given_up(connect, server, monkeypatch):
    monkeypatch.setattr(placement, "POLL_S", 0.02)
    cluster = await connect(start_timeout_s=0.1, pull_timeout_s=0.2)
    pending = [{"ID": "a", "ClientStatus": "pending", "NodeName": "n7", "TaskStates": None}]
    path = f"GET job/{FURNISHED.name}/allocations"
    server.faults[path] = answering(200, json.dumps(pending))
    with pytest.raises(SandboxError, match=r"the node n7 started no container in 0\.1 s"):
        await cluster.create(FURNISHED)
    event = {"Type": "Driver", "DisplayMessage": "Downloading image"}
    pending[0]["TaskStates"] = {"slot": {"State": "pending", "Events": [event]}}
    server.faults[path] = answering(200, json.dumps(pending))
    with pytest.raises(SandboxError, match=r"in 0\.2 s: Driver: Downloading image"):
        await cluster.create(FURNISHED)


@pytest.mark.parametrize(
    "body", ["{", "{}", '[1, "x"]', '[{"ID": "a", "TaskStates": 7}]', "[" * 100_000]
)
async def test_answers_that_make_no_sense_are_failures_of_the_sandbox(
    connect, server, monkeypatch, body
):
    monkeypatch.setattr(placement, "POLL_S", 0.02)
    cluster = await connect(start_timeout_s=0.05)
    server.faults[f"GET job/{FURNISHED.name}/allocations"] = answering(200, body)
    with pytest.raises(SandboxError):
        await cluster.create(FURNISHED)
    assert server.jobs == {}


# --- lost slots ---------------------------------------------------------------------------


async def test_a_container_that_has_ended_is_lost_and_why(cluster, server):
    await cluster.create(FURNISHED)
    server.driver.ended.set()
    while (state := await cluster.state(FURNISHED.name)).running:
        await asyncio.sleep(0.01)
    assert state.out_of_memory
    with pytest.raises(SlotLost):
        await collected(cluster, ["true"])


@pytest.mark.parametrize("status", ["lost", "unknown", "failed"])
async def test_an_allocation_on_a_lost_node_is_lost_though_another_takes_its_place(
    cluster, server, status
):
    await cluster.create(FURNISHED)
    server.jobs[FURNISHED.name].allocation.status = status
    assert not (await cluster.state(FURNISHED.name)).running
    alloc = server.jobs[FURNISHED.name].allocation
    server.jobs[FURNISHED.name].allocation = Allocation("other", FURNISHED.name, 99, 64)
    with pytest.raises(SlotLost):
        await cluster.state(FURNISHED.name)
    server.jobs[FURNISHED.name].allocation = alloc


async def test_containers_get_signs_of_life_and_a_restart_is_a_signal(connect, server, monkeypatch):
    monkeypatch.setattr("hermes_plugins.nomad.cluster.BEATS_PER_IDLE_TIME", 6000)
    cluster = await connect(idle_timeout_s=60)
    await cluster.create(FURNISHED)
    alloc = server.jobs[FURNISHED.name].allocation.alloc_id
    while (alloc, "SIGUSR1") not in server.signals:
        await asyncio.sleep(0.005)
    server.on_exec = frames('{"exited": true, "result": {"exit_code": 1}}')
    with pytest.raises(SandboxError, match="could not be ended"):
        await cluster.restart(FURNISHED.name)
    assert (alloc, "SIGUSR2") in server.signals


def test_a_first_process_does_not_end_with_a_sleep_that_the_slot_has_replaced(tmp_path):
    fake = tmp_path / "sleep"
    fake.write_text("#!/bin/sh\necho slept\n/bin/sleep 0.1\n")
    fake.chmod(0o755)
    words = ["/bin/sh", "-c", job.FIRST.format(idle_s=3)]  # Whole seconds: two to three pass.
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    ended = subprocess.run(words, env=path, capture_output=True, check=True)
    assert ended.stdout.count(b"slept") > 1


# --- programs -----------------------------------------------------------------------------


def frames(*texts: str, close: int | None = 1000, reason: bytes = b"") -> Callable[[Any], Any]:
    """Sends frames to whoever runs a program, and closes."""

    async def talk(socket: web.WebSocketResponse) -> None:
        for text in texts:
            await socket.send_str(text)
        if close is None:
            socket._req.transport.abort()
        else:
            await socket.close(code=close, message=reason)

    return talk


async def test_a_program_gets_words_variables_and_input_as_they_are(cluster):
    await cluster.create(FURNISHED)
    script = 'printf "%s|" "$@" "$A" "${NOMAD_META_x-none}" "$LC_ALL" "$PWD"; cat; exit 7'
    words = ["two words", "", "$x `y` 'z'\n", "ä\udcff"]
    found = await collected(
        cluster,
        ["/bin/bash", "-c", script, "-", *words],
        env={"A": "é\udcfe=1"},
        stdin=True,
        data=b"\0\xff" * 100_000,
    )
    expected = "|".join([*words, "é\udcfe=1", "none", "C.UTF-8", "/"]) + "|"
    assert found == (expected.encode("utf-8", "surrogateescape") + b"\0\xff" * 100_000, 7)


async def test_a_user_that_the_image_does_not_have_is_named_as_engines_do(cluster):
    await cluster.create(FURNISHED)
    for user in ("no-such-user", "0:no-such-group"):
        argv = ["/bin/bash", "-c", 'exec 2>&1; exec /bin/bash -p -c "$0" enter', ENTER]
        data = execution.entry(["true"], user=user, env={})
        output, code = await collected(cluster, argv, stdin=True, data=data)
        assert code == 126
        assert b"unable to find" in output


ENTER = json.loads(execution.query()["command"])[3]


@pytest.mark.parametrize(
    ("talk", "kind", "named"),
    [
        (frames("no json"), SandboxError, "no JSON"),
        (frames("[1]"), SandboxError, "no object"),
        (frames('{"stdout": {"data": "!"}}'), SandboxError, "no base64"),
        (frames('{"stdout": {"data": [1]}}'), SandboxError, "no base64"),
        (frames("[" * 200_000), SandboxError, "no JSON"),
        (frames("x" * 5_000_000), SandboxError, "no frame"),
        (frames(close=1011, reason=b'task "slot" is not running.'), SlotLost, "not running"),
        (frames(close=1011, reason=b"unknown allocation"), SlotLost, "unknown"),
        (frames(close=1011, reason=b"exec: no such file"), SandboxRejected, "no such file"),
    ],
    ids=lambda value: "" if callable(value) else str(value),
)
async def test_frames_that_make_no_sense_are_failures_and_never_output(
    cluster, server, talk, kind, named
):
    await cluster.create(FURNISHED)
    server.on_exec = talk
    with pytest.raises(SandboxError, match=named) as caught:
        await collected(cluster, ["true"])
    assert type(caught.value) is kind


@pytest.mark.parametrize("close", [1000, 1011, None])
async def test_a_connection_that_ends_without_an_exit_code_has_none(cluster, server, close):
    await cluster.create(FURNISHED)
    output = '{"stdout": {"data": "eA=="}}'
    server.on_exec = frames("{}", output, close=close, reason=b"rpc error: timeout")
    output, code = await collected(cluster, ["true"])
    assert b"x".startswith(output)
    assert code is None


async def test_a_frame_with_both_streams_and_the_end_loses_none_of_them(cluster, server):
    await cluster.create(FURNISHED)
    frame = '{"stdout": {"data": "eA=="}, "stderr": {"data": "eQ=="}, "exited": true, "result": {}}'
    server.on_exec = frames(frame, '{"exited": true, "result": {"exit_code": 9}}')
    assert await collected(cluster, ["true"]) == (b"xy", 0)


@pytest.mark.parametrize("result", ["[]", '{"exit_code": 256}', '{"exit_code": true}', "null"])
async def test_an_end_without_a_code_that_programs_have_is_no_success(cluster, server, result):
    await cluster.create(FURNISHED)
    server.on_exec = frames(f'{{"exited": true, "result": {result}}}')
    assert await collected(cluster, ["true"]) == (b"", None)


async def test_a_list_of_files_that_the_slot_has_spoilt_is_not_the_images_fault(cluster, server):
    """`find` was there when the slot began."""
    ended = '{"exited": true, "result": {"exit_code": 127}}'
    server.on_exec = frames('{"stdout": {"data": "MS4wIC9iaW4A"}}', ended)  # 1.0 /bin
    await cluster.create(SPEC)
    assert await cluster.changes(SPEC.name, 10) == []
    for spoilt in (frames(ended), frames('{"stdout": {"data": "eCAvYgA="}}', ended)):  # x /b
        server.on_exec = spoilt
        with pytest.raises(FilesRefused):
            await cluster.changes(SPEC.name, 10)
    server.on_exec = frames(close=None)
    with pytest.raises(SandboxError) as lost:
        await cluster.changes(SPEC.name, 10)
    assert not isinstance(lost.value, FilesRefused)


async def test_empty_frames_are_signs_of_life_in_both_directions(cluster, server, monkeypatch):
    monkeypatch.setattr(execution, "HEARTBEAT_S", 0.01)
    received = asyncio.Event()

    async def talk(socket: web.WebSocketResponse) -> None:
        await socket.send_str("{}")
        async for message in socket:
            if message.data == "{}":
                received.set()
                await socket.send_str('{"exited": true, "result": {}}')
                return

    await cluster.create(FURNISHED)
    server.on_exec = talk
    assert await collected(cluster, ["true"]) == (b"", 0)
    assert received.is_set()


async def test_input_after_its_end_is_refused(cluster):
    await cluster.create(FURNISHED)
    async with cluster.exec(FURNISHED.name, ["cat"], user="", env={}, stdin=False) as stream:
        with pytest.raises(SandboxError, match="has ended"):
            await stream.write(b"x")
        await stream.write_eof()


# --- the connection -----------------------------------------------------------------------


async def test_a_wrong_token_names_the_setting_and_the_policy(connect):
    with pytest.raises(SandboxRejected, match=r"HERMES_QUEUE_NOMAD_TOKEN.*alloc-exec"):
        await connect(token="wrong")


async def test_nomads_own_variables_are_taken_where_ours_are_not_set(server, monkeypatch):
    monkeypatch.setenv("NOMAD_ADDR", server.address)
    monkeypatch.setenv("NOMAD_TOKEN", "s3cret")
    [condition] = [each async for each in check()]
    assert condition.message == f"Nomad 1.9.3 (driver docker) answers at {server.address}"


async def test_a_cluster_without_the_driver_is_refused_at_the_start(connect, server):
    server.driver.name = "podman"
    with pytest.raises(ConfigurationError, match=r"driver 'docker'.*there are: podman"):
        await connect()
    server.driver.name = "docker"
    with pytest.raises(ConfigurationError, match="0 are ready"):
        await connect(datacenters=("dc7",))


async def test_a_token_that_may_see_no_nodes_and_no_agent_is_enough(connect, server):
    server.faults["GET nodes"] = answering(403, "Permission denied")
    server.faults["GET agent/self"] = answering(403, "Permission denied")
    assert (await connect()).facts.name == "Nomad of unknown version (driver docker)"


async def test_an_agent_that_is_away_is_waited_for_while_a_container_is_made(connect, server):
    cluster = await connect()
    for status in (500, 502, 429):
        server.faults["POST jobs"] = answering(status, "No cluster leader")
        with pytest.raises(SandboxUnavailable, match="No cluster leader"):
            await cluster.create(FURNISHED)
    cluster._client._base = "http://127.0.0.1:1"
    with pytest.raises(SandboxUnavailable, match="POST jobs"):
        await cluster.create(FURNISHED)
    with pytest.raises(SandboxError, match="GET jobs"):
        await cluster.list({})


async def test_a_slow_agent_and_one_that_never_stops_talking_are_bounded(
    cluster, server, monkeypatch
):
    forever = asyncio.Event()

    async def never() -> web.Response:
        await forever.wait()
        return web.Response()

    server.faults["GET jobs"] = never
    with pytest.raises(SandboxError, match="TimeoutError"):
        await cluster._client.request("jobs", timeout_s=0.05)
    forever.set()
    monkeypatch.setattr(client, "MAX_ANSWER_BYTES", 1000)
    server.faults["GET jobs"] = answering(200, "x" * 100_000)
    with pytest.raises(SandboxError, match="longer than"):
        await cluster.list({})


async def test_the_token_goes_nowhere_else_when_an_agent_redirects(cluster, server):
    await cluster.create(FURNISHED)
    stolen: list[str] = []

    async def elsewhere(request: web.Request) -> web.Response:
        stolen.append(request.headers.get("X-Nomad-Token", ""))
        return web.Response(status=404)

    app = web.Application()
    app.router.add_get("/{path:.*}", elsewhere)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    alloc = server.jobs[FURNISHED.name].allocation.alloc_id
    for path in (f"client/allocation/{alloc}/exec", "jobs"):
        server.faults[f"GET {path}"] = answering(307, "", Location=url)
    with pytest.raises(SandboxError, match="redirect"):
        await collected(cluster, ["true"])
    with pytest.raises(SandboxError, match="307"):
        await cluster.list({})
    await runner.cleanup()
    assert stolen == []


async def test_an_unreadable_certificate_is_named(connect, tmp_path):
    with pytest.raises(ConfigurationError, match="HERMES_QUEUE_NOMAD_CA_FILE"):
        await connect(address="https://127.0.0.1:1", ca_file=tmp_path / "none.pem")
