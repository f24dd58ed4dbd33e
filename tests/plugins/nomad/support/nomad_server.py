"""A server that speaks the part of Nomad's HTTP API which slots need, over a driver of tasks.

The one of `nomad_engine.py` runs each allocation as a real container. As strict as the
documentation lets us be: unknown keys of a driver's configuration, raw_exec, capabilities beyond
`allow_caps` and wrong tokens are refused as Nomad refuses them. Listens on 127.0.0.1 only.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import threading
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from aiohttp import WSMsgType, web

VERSION = "1.9.3"
MAX_WAIT_S = 600.0
HEARTBEAT_S = 10.0


class TaskFailed(Exception):
    """A driver cannot start a task; the text is the event's."""


class RunningExec(Protocol):
    """A program in a task."""

    async def read(self) -> tuple[int, bytes] | None: ...
    async def write(self, data: bytes) -> None: ...
    async def write_eof(self) -> None: ...
    async def exit_code(self) -> int | None: ...


class TaskDriver(Protocol):
    """What runs tasks."""

    name: str

    async def start(self, alloc: Allocation, task: dict[str, Any]) -> str:
        """Start a task; its container. Raises TaskFailed."""
        ...

    def exec(
        self, container: str, command: list[str]
    ) -> AbstractAsyncContextManager[RunningExec]: ...

    async def signal(self, container: str, signal: str) -> None: ...

    async def wait(self, container: str) -> tuple[int, bool]:
        """Until its end: its exit code, and whether memory ran out."""
        ...

    async def stop(self, container: str) -> None: ...


@dataclass
class Allocation:
    """One allocation, as Nomad's clients and servers know it together."""

    alloc_id: str
    job_id: str
    index: int
    memory_mb: int
    status: str = "pending"
    desired: str = "run"
    state: str = "pending"
    failed: bool = False
    started_at: str = "0001-01-01T00:00:00Z"
    container: str = ""
    events: list[dict[str, Any]] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """As the API describes it."""
        task = {
            "State": self.state,
            "Failed": self.failed,
            "StartedAt": self.started_at,
            "Events": self.events,
        }
        return {
            "ID": self.alloc_id,
            "JobID": self.job_id,
            "TaskGroup": "slot",
            "NodeID": "5a4b7b33-8fcb-4d1c-9a3e-3d7a6a0c1f00",
            "NodeName": "node-1",
            "ClientStatus": self.status,
            "DesiredStatus": self.desired,
            "CreateIndex": self.index,
            # Nomad leaves it out until the client has reported.
            "TaskStates": None if self.status == "pending" else {"slot": task},
        }


@dataclass
class Job:
    """A registered job and what became of it."""

    job: dict[str, Any]
    submitted_ns: int
    modified: int
    evaluations: list[dict[str, Any]]
    allocation: Allocation | None = None
    running: asyncio.Task[None] | None = None


class NomadServer:
    """One agent that is server and client at once."""

    def __init__(self, driver: TaskDriver, *, token: str = "", memory_mb: int = 1 << 20) -> None:
        self.driver = driver
        self.token = token
        self.memory_mb = memory_mb
        self.jobs: dict[str, Job] = {}
        self.sockets: set[web.WebSocketResponse] = set()
        self.signals: list[tuple[str, str]] = []
        self.requests: list[str] = []
        """Method and path of each."""
        self.faults: dict[str, Callable[[], Awaitable[web.StreamResponse]]] = {}
        """Answers in place of the right ones, by the beginning of method and path."""
        self.on_exec: Callable[[web.WebSocketResponse], Awaitable[None]] | None = None
        """Talks to callers of exec in place of a program."""
        self._index = 10
        self._changed = asyncio.Condition()
        self._ending: set[asyncio.Task[None]] = set()

    def application(self) -> web.Application:
        """Its routes."""
        app = web.Application(middlewares=[self._checked], client_max_size=4 << 20)
        app.add_routes(
            [
                web.get("/v1/agent/self", self._self),
                web.get("/v1/nodes", self._nodes),
                web.get("/v1/jobs", self._list),
                web.post("/v1/jobs", self._register),
                web.get("/v1/job/{job}", self._job),
                web.delete("/v1/job/{job}", self._deregister),
                web.get("/v1/job/{job}/allocations", self._allocations),
                web.get("/v1/job/{job}/evaluations", self._evaluations),
                web.get("/v1/allocation/{alloc}", self._allocation),
                web.post("/v1/client/allocation/{alloc}/signal", self._signal),
                web.get("/v1/client/allocation/{alloc}/exec", self._exec),
            ]
        )
        return app

    @web.middleware
    async def _checked(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self.token and request.headers.get("X-Nomad-Token") != self.token:
            return web.Response(status=403, text="Permission denied")
        line = f"{request.method} {request.path.removeprefix('/v1/')}"
        self.requests.append(line)
        for beginning, answer in self.faults.items():
            if line.startswith(beginning):
                return await answer()
        return await handler(request)

    async def _bump(self) -> int:
        async with self._changed:
            self._index += 1
            self._changed.notify_all()
        return self._index

    def _answer(self, body: Any, index: int) -> web.Response:
        return web.json_response(body, headers={"X-Nomad-Index": str(index)})

    # --- agent and nodes --------------------------------------------------------------

    async def _self(self, request: web.Request) -> web.Response:
        return web.json_response({"config": {"Version": {"Version": VERSION}}, "member": {}})

    async def _nodes(self, request: web.Request) -> web.Response:
        drivers = {self.driver.name: {"Detected": True, "Healthy": True}}
        node = {
            "ID": "5a4b7b33-8fcb-4d1c-9a3e-3d7a6a0c1f00",
            "Name": "node-1",
            "Datacenter": "dc1",
            "NodePool": "default",
            "Status": "ready",
            "SchedulingEligibility": "eligible",
            "Drivers": drivers,
        }
        return self._answer([node], self._index)

    # --- jobs -------------------------------------------------------------------------

    async def _list(self, request: web.Request) -> web.Response:
        prefix, with_meta = request.query.get("prefix", ""), request.query.get("meta") == "true"
        found = []
        for name, each in sorted(self.jobs.items()):
            if name.startswith(prefix):
                stub = {
                    "ID": name,
                    "Type": each.job.get("Type"),
                    "Status": "dead" if _is_dead(each) else "running",
                    "SubmitTime": each.submitted_ns,
                }
                found.append(stub | ({"Meta": each.job.get("Meta")} if with_meta else {}))
        return self._answer(found, self._index)

    async def _register(self, request: web.Request) -> web.Response:
        body = await request.json()
        job = body.get("Job") or {}
        if problem := refusal_of(job, self.driver.name):
            return web.Response(status=500, text=f"1 error occurred:\n\t* {problem}\n\n")
        index = await self._bump()
        evaluation = {"ID": str(uuid.uuid4()), "JobID": job["ID"], "Status": "complete"}
        record = Job(job, time.time_ns(), index, [evaluation])
        self.jobs[job["ID"]] = record
        if shortage := self._shortage(job):
            evaluation |= {"FailedTGAllocs": {"slot": shortage}, "BlockedEval": str(uuid.uuid4())}
        else:
            self._place(record)
        return self._answer({"EvalID": evaluation["ID"], "JobModifyIndex": index}, index)

    def _shortage(self, job: dict[str, Any]) -> dict[str, Any] | None:
        """Why no node takes a job (`AllocationMetric`)."""
        wanted = _task(job)["Resources"]["MemoryMB"]
        used = sum(
            each.allocation.memory_mb
            for each in self.jobs.values()
            if each.allocation and each.allocation.status in ("pending", "running")
        )
        if _task(job)["Driver"] != self.driver.name:
            filtered = {"missing drivers": 1}
            return {"NodesEvaluated": 1, "NodesFiltered": 1, "ConstraintFiltered": filtered}
        if used + wanted > self.memory_mb:
            return {"NodesEvaluated": 1, "NodesExhausted": 1, "DimensionExhausted": {"memory": 1}}
        return None

    def _place(self, record: Job) -> None:
        memory_mb = _task(record.job)["Resources"]["MemoryMB"]
        alloc = Allocation(str(uuid.uuid4()), record.job["ID"], self._index, memory_mb)
        record.allocation = alloc
        record.running = asyncio.create_task(self._run(record, alloc))

    async def _run(self, record: Job, alloc: Allocation) -> None:
        """The life of an allocation."""
        try:
            alloc.container = await self.driver.start(alloc, _task(record.job))
        except TaskFailed as why:
            await self._ended(alloc, "failed", "Driver Failure", str(why))
            return
        alloc.status = alloc.state = "running"
        alloc.started_at = datetime.now(UTC).isoformat().replace("+00:00", "789Z")
        alloc.events.append({"Type": "Started", "DisplayMessage": "Task started by client"})
        await self._bump()
        code, oom = await self.driver.wait(alloc.container)
        if record.allocation is alloc and alloc.desired == "run":
            message = f"Exit Code: {code}" + (', Exit Message: "OOM Killed"' if oom else "")
            status = "complete" if code == 0 else "failed"
            details = {"exit_code": str(code), "oom_killed": "true" if oom else "false"}
            await self._ended(alloc, status, "Terminated", message, details)
            await self.driver.stop(alloc.container)

    async def _ended(
        self,
        alloc: Allocation,
        status: str,
        kind: str,
        message: str,
        details: dict[str, str] | None = None,
    ) -> None:
        alloc.status, alloc.state, alloc.failed = status, "dead", status == "failed"
        event = {"Type": kind, "DisplayMessage": message, "Details": details or {}}
        alloc.events.append(event)
        self._unblock()
        await self._bump()

    def _unblock(self) -> None:
        for each in self.jobs.values():
            if each.allocation is None and not self._shortage(each.job):
                each.evaluations.append({"ID": str(uuid.uuid4()), "Status": "complete"})
                self._place(each)

    def _found(self, request: web.Request) -> Job:
        record = self.jobs.get(request.match_info["job"])
        if record is None:
            raise web.HTTPNotFound(text="job not found")
        return record

    async def _job(self, request: web.Request) -> web.Response:
        return self._answer(self._found(request).job, self._index)

    async def _deregister(self, request: web.Request) -> web.Response:
        record = self._found(request)
        if request.query.get("purge") == "true":
            del self.jobs[record.job["ID"]]
        if (alloc := record.allocation) is not None:
            alloc.desired = "stop"
            ending = asyncio.create_task(self._stop(record, alloc))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
        return self._answer({"EvalID": str(uuid.uuid4())}, await self._bump())

    async def _stop(self, record: Job, alloc: Allocation) -> None:
        if record.running is not None and not alloc.container:
            await asyncio.wait([record.running], timeout=60)
        if alloc.container:
            await self.driver.stop(alloc.container)
        if record.running is not None:
            record.running.cancel()
        await self._ended(alloc, "complete", "Killed", "Task successfully killed")

    async def _blocking(self, request: web.Request) -> None:
        """Wait until something has changed since the index of a query."""
        index, wait = int(request.query.get("index", "0")), request.query.get("wait", "300s")
        seconds = float(wait.removesuffix("s"))
        if not index:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(seconds, MAX_WAIT_S)), self._changed:
                await self._changed.wait_for(lambda: self._index > index)

    async def _allocations(self, request: web.Request) -> web.Response:
        await self._blocking(request)
        record = self.jobs.get(request.match_info["job"])
        found = [record.allocation.document()] if record and record.allocation else []
        return self._answer(found, self._index)

    async def _evaluations(self, request: web.Request) -> web.Response:
        record = self.jobs.get(request.match_info["job"])
        return self._answer(record.evaluations if record else [], self._index)

    # --- allocations ------------------------------------------------------------------

    def _alloc(self, request: web.Request) -> Allocation:
        wanted = request.match_info["alloc"]
        for each in self.jobs.values():
            if each.allocation is not None and each.allocation.alloc_id == wanted:
                return each.allocation
        raise web.HTTPNotFound(text="alloc not found")

    async def _allocation(self, request: web.Request) -> web.Response:
        return self._answer(self._alloc(request).document(), self._index)

    def _running(self, request: web.Request) -> Allocation:
        alloc = self._alloc(request)
        if alloc.state != "running":
            raise web.HTTPNotFound(text='task "slot" is not running.')
        return alloc

    async def _signal(self, request: web.Request) -> web.Response:
        body, alloc = await request.json(), self._running(request)
        assert body["Task"] == "slot"
        self.signals.append((alloc.alloc_id, body["Signal"]))
        await self.driver.signal(alloc.container, body["Signal"])
        return web.json_response({})

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        alloc, command = self._running(request), json.loads(request.query["command"])
        assert request.query["task"] == "slot"
        assert request.query["tty"] == "false"
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self.sockets.add(socket)
        try:
            if self.on_exec is not None:
                await self.on_exec(socket)
            else:
                await self._pump(socket, alloc, command)
        finally:
            self.sockets.discard(socket)
        return socket

    async def _pump(
        self, socket: web.WebSocketResponse, alloc: Allocation, command: list[str]
    ) -> None:
        """Carry a program's streams until it has ended or the caller has gone."""
        try:
            async with self.driver.exec(alloc.container, command) as program:
                feeding = asyncio.create_task(_feed(socket, program))
                try:
                    reading = asyncio.create_task(_drain(socket, program))
                    await asyncio.wait([reading, feeding], return_when=asyncio.FIRST_COMPLETED)
                    if not reading.done():  # the caller has gone
                        reading.cancel()
                        return
                    await reading
                    code = await program.exit_code()
                finally:
                    feeding.cancel()
            if code is None:
                raise RuntimeError("failed to get exit code")
            # Go leaves out what is zero.
            result = {"exit_code": code} if code else {}
            await socket.send_json({"exited": True, "result": result})
            await socket.close()
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception as error:  # noqa: BLE001 - as an agent does
            await socket.close(code=1011, message=str(error).encode()[:120])


async def _drain(socket: web.WebSocketResponse, program: RunningExec) -> None:
    names = {1: "stdout", 2: "stderr"}
    while found := await program.read():
        stream, data = found
        for start in range(0, len(data), 1024):  # as a client's buffer has it
            chunk = base64.b64encode(data[start : start + 1024]).decode()
            await socket.send_json({names[stream]: {"data": chunk}})
    for name in names.values():
        await socket.send_json({name: {"close": True}})


async def _feed(socket: web.WebSocketResponse, program: RunningExec) -> None:
    async for message in socket:
        if message.type is not WSMsgType.TEXT:
            continue
        frame = json.loads(message.data)
        given = frame.get("stdin")
        if given is None:
            assert frame == {}, frame
        elif given.get("close"):
            await program.write_eof()
        else:
            with contextlib.suppress(Exception):  # it has closed its input
                await program.write(base64.b64decode(given["data"], validate=True))


def _task(job: dict[str, Any]) -> dict[str, Any]:
    task: dict[str, Any] = job["TaskGroups"][0]["Tasks"][0]
    return task


def _is_dead(job: Job) -> bool:
    return job.allocation is not None and job.allocation.status in ("complete", "failed")


def refusal_of(job: dict[str, Any], driver: str) -> str:
    """Why Nomad's validation refuses a job, or ""."""
    if not job.get("ID") or " " in job["ID"]:
        return "Missing job ID"
    if job.get("Type") != "batch":
        return "these tests know batch jobs only"
    if not job.get("Datacenters"):
        return "Missing job datacenters"
    [group] = job["TaskGroups"]
    [task] = group["Tasks"]
    if task["KillTimeout"] < 0 or group["RestartPolicy"]["Interval"] < 5 * 10**9:
        return "Task group slot validation failed: Interval can not be less than 5s"
    if task["Resources"]["MemoryMB"] < 10 or task["Resources"]["CPU"] < 1:
        return "minimum MemoryMB value is 10"
    if task["Driver"] not in (driver, "docker", "podman"):
        return f"unknown driver {task['Driver']!r}"
    for meta in (job.get("Meta") or {}).values():
        if not isinstance(meta, str):
            return "Meta must be strings"
    return ""


@asynccontextmanager
async def serving(server: NomadServer) -> AsyncIterator[str]:
    """The server's address, on the running loop."""
    runner = web.AppRunner(server.application(), shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


class ServerThread:
    """A server on a loop of its own, which outlives those of tests."""

    def __init__(self, make: Any) -> None:
        self._make = make
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self.address = ""
        self.server: NomadServer
        self.loop: asyncio.AbstractEventLoop
        self._error: BaseException | None = None

    async def _run(self) -> None:
        self.loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with self._make() as self.server, serving(self.server) as self.address:
                self._ready.set()
                await self._stop.wait()
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._ready.set()

    def start(self) -> None:
        """Start it, and wait until it serves."""
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """End it and its containers."""
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()


@contextmanager
def server_thread(make: Any) -> Iterator[ServerThread]:
    """A running server; `make` is an async context manager of one."""
    thread = ServerThread(make)
    thread.start()
    try:
        yield thread
    finally:
        thread.stop()
