"""The command router: commands in a sandbox, their input and output, snapshots and mounts."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from typing import Any

from google.protobuf.empty_pb2 import Empty
from grpclib import GRPCError, Status
from modal_proto import task_command_router_pb2 as router_pb2

from localmodal.box import ServedSandbox
from localmodal.commands import Command
from localmodal.storage import snapshots
from localmodal.storage.store import Store
from localmodal.wire import Request, Stream, new_id

LEAST_PROBE_PAUSE_S = 0.02


class Router:
    """Methods have the names of the protocol."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def _command(self, request: Request) -> tuple[ServedSandbox, Command]:
        """The command of a request; its sandbox may have ended."""
        box = self.store.tasks.get(request.task_id)
        if box is None or request.exec_id not in box.commands:
            raise GRPCError(Status.NOT_FOUND, f"no exec {request.exec_id}")
        return box, box.commands[request.exec_id]

    # --- commands ---------------------------------------------------------------------

    async def TaskExecStart(self, request: Request, stream: Stream) -> Any:
        """Start a command; repeating an exec id starts nothing."""
        box = self.store.task(request.task_id)
        if getattr(request, "container_id", ""):
            raise GRPCError(Status.UNIMPLEMENTED, "localmodal has no further containers")
        env = dict(request.env)
        env.update(self.store.environment(request, request.secret_ids))
        await box.spawn(
            request.exec_id,
            list(request.command_args),
            cwd=request.workdir or box.definition.workdir,
            env=env,
            merge=request.HasField("pty_info"),
            timeout_s=request.timeout_secs,
        )
        return router_pb2.TaskExecStartResponse()

    async def TaskExecStdioRead(self, request: Request, stream: Stream) -> AsyncIterator[Any]:
        """Stream output from an offset on."""
        _, command = self._command(request)
        stdout = router_pb2.TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDOUT
        log = command.logs[1 if request.file_descriptor == stdout else 2]
        async for data in log.read(request.offset):
            yield router_pb2.TaskExecStdioReadResponse(data=data)

    async def TaskExecStdinWrite(self, request: Request, stream: Stream) -> Any:
        """Write input at an offset."""
        _, command = self._command(request)
        await command.input.write(request.offset, request.data, eof=request.eof)
        return router_pb2.TaskExecStdinWriteResponse()

    async def TaskExecStdinWriteStream(self, stream: Stream) -> Any:
        """Write input from a stream of pieces."""
        first = await stream.recv_message()
        if first is None or first.WhichOneof("payload") != "start":
            raise GRPCError(Status.INVALID_ARGUMENT, "the first message must be start")
        _, command = self._command(first.start)
        position = first.start.offset
        while (message := await stream.recv_message()) is not None:
            if message.WhichOneof("payload") == "end":
                await command.input.write(position, b"", eof=True)
                break
            await command.input.write(position, message.data, eof=False)
            position += len(message.data)
        return router_pb2.TaskExecStdinWriteStreamResponse()

    async def TaskExecStdinStatus(self, request: Request, stream: Stream) -> Any:
        """The number of input bytes received."""
        pipe = self._command(request)[1].input
        return router_pb2.TaskExecStdinStatusResponse(
            num_bytes_written=pipe.written, closed=pipe.closed
        )

    async def TaskExecPoll(self, request: Request, stream: Stream) -> Any:
        """The status of a command; empty while it runs."""
        return router_pb2.TaskExecPollResponse(**self._command(request)[1].status())

    async def TaskExecWait(self, request: Request, stream: Stream) -> Any:
        """Wait for a command's end and return its status."""
        box, command = self._command(request)
        await command.done.wait()
        status = command.status()
        # If the sandbox is one process (gVisor), its end also ends commands, with varying statuses.
        died = not box.enclosure.is_alive() and status.get("code") != 0
        if died or (not box.is_up() and status.get("signal")):
            raise GRPCError(Status.NOT_FOUND, f"sandbox {box.sandbox_id} has finished")
        return router_pb2.TaskExecWaitResponse(**status)

    # --- the sandbox's own process ----------------------------------------------------

    async def SandboxStdioReadV2(self, request: Request, stream: Stream) -> AsyncIterator[Any]:
        """Stream the entrypoint's output from an offset on."""
        box = self.store.tasks.get(request.task_id)
        if box is None:
            raise GRPCError(Status.NOT_FOUND, f"no task {request.task_id}")
        if box.entrypoint is None:
            await box.ended.wait()
            return
        stdout = router_pb2.SANDBOX_STDIO_FILE_DESCRIPTOR_STDOUT
        log = box.entrypoint.logs[1 if request.file_descriptor == stdout else 2]
        offset = request.offset
        async for data in log.read(offset):
            yield router_pb2.SandboxStdioReadV2Response(data=data, starting_offset=offset)
            offset += len(data)

    async def SandboxStdinWriteV2(self, request: Request, stream: Stream) -> Any:
        """Write the entrypoint's input at an offset."""
        box = self.store.task(request.task_id)
        if box.entrypoint is None:
            raise GRPCError(Status.FAILED_PRECONDITION, "the sandbox has no entrypoint")
        await box.entrypoint.input.write(request.offset, request.data, eof=request.eof)
        return router_pb2.SandboxStdinWriteV2Response()

    async def SandboxWaitUntilReady(self, request: Request, stream: Stream) -> Any:
        """Run the readiness probe until it succeeds."""
        box = self.store.task(request.task_id)
        probe = box.definition.readiness_probe
        connect = f"exec 3<>/dev/tcp/127.0.0.1/{probe.tcp_port}"
        argv = list(probe.exec_command.argv) or ["bash", "-c", connect]
        deadline = time.monotonic() + request.timeout
        while True:
            command = await box.spawn(new_id("probe"), argv)
            await command.done.wait()
            if command.status().get("code") == 0:
                return router_pb2.SandboxWaitUntilReadyTcrResponse(ready_at=time.time())
            if time.monotonic() > deadline:
                raise GRPCError(Status.DEADLINE_EXCEEDED, "the sandbox did not become ready")
            await asyncio.sleep(max(probe.interval_ms / 1000, LEAST_PROBE_PAUSE_S))

    # --- snapshots, mounts, volumes ---------------------------------------------------

    async def TaskSnapshotFilesystem(self, request: Request, stream: Stream) -> Any:
        """Take a snapshot of all files except mounted ones, as an image."""
        image_id = await snapshots.take(self.store, self.store.task(request.task_id), "/")
        return router_pb2.TaskSnapshotFilesystemResponse(image_id=image_id)

    async def TaskSnapshotDirectory(self, request: Request, stream: Stream) -> Any:
        """Take a snapshot of a directory, as an image."""
        box = self.store.task(request.task_id)
        image_id = await snapshots.take(self.store, box, os.fsdecode(request.path))
        return router_pb2.TaskSnapshotDirectoryResponse(image_id=image_id)

    async def TaskMountDirectory(self, request: Request, stream: Stream) -> Any:
        """Mount a directory's snapshot at a path; without an image, an empty directory."""
        box = self.store.task(request.task_id)
        image = self.store.image(request.image_id) if request.image_id else None
        await snapshots.mount(self.store, box, image, os.fsdecode(request.path))
        return Empty()

    async def TaskUnmountDirectory(self, request: Request, stream: Stream) -> Any:
        """Restore what was at the path before the mount."""
        await snapshots.unmount(self.store.task(request.task_id), os.fsdecode(request.path))
        return Empty()

    async def TaskReloadVolumes(self, request: Request, stream: Stream) -> Any:
        """Commit this sandbox's changes and load those of others."""
        box = self.store.task(request.task_id)
        await self.store.volumes.reload(box.enclosure.directory)
        return router_pb2.TaskReloadVolumesResponse()
