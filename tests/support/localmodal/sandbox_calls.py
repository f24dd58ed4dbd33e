"""The control plane's calls for sandboxes, of both versions of the protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from google.protobuf.empty_pb2 import Empty
from grpclib import GRPCError, Status
from modal_proto import api_pb2

from localmodal.box import TERMINATED, WORKER_LOST, ServedSandbox
from localmodal.control import ControlPlane
from localmodal.storage.store import Store
from localmodal.wire import Request, Stream, Tokens, new_id

PAGE = 100
"""Sandboxes per page of a list."""
ROUTER_TOKEN_LIFETIME_S = 3600.0


class SandboxCalls(ControlPlane):
    """The whole control plane. Methods have the names of the protocol."""

    def __init__(self, store: Store, tokens: Tokens, router_url: str) -> None:
        super().__init__(store, tokens)
        self._router_url = router_url
        self._created: dict[str, asyncio.Task[ServedSandbox]] = {}

    async def _create(self, request: Request, stream: Stream, *, v1: bool) -> ServedSandbox:
        """Create once per idempotency key: the SDK repeats a call whose reply was lost."""
        definition = request.definition
        variables = getattr(definition, "environment_variables", None)
        environment = dict(variables.contents) if variables else {}
        environment.update(self.store.environment(request, definition.secret_ids))
        key = stream.metadata.get("x-idempotency-key") or new_id("key")
        if key not in self._created:  # no await before the task is stored: see the docstring
            work = self.store.create(request.app_id, definition, environment, v1=v1)
            self._created[key] = asyncio.create_task(work)
        try:
            # Shielded: the client that hangs up comes back with the same key.
            box = await asyncio.shield(self._created[key])
        except GRPCError:
            self._created.pop(key, None)
            raise
        box.tags = {tag.tag_name: tag.tag_value for tag in request.tags}
        return box

    async def SandboxCreateV2(self, request: Request, stream: Stream) -> Any:
        """Create a sandbox; returns the address for its commands."""
        box = await self._create(request, stream, v1=False)
        return api_pb2.SandboxCreateV2Response(
            sandbox_id=box.sandbox_id,
            task_id=box.task_id,
            metadata=self._metadata(box),
            command_router_access=self._access(box, stream),
        )

    async def SandboxCreate(self, request: Request, stream: Stream) -> Any:
        """Create a sandbox in V1; the SDK asks for the task later."""
        box = await self._create(request, stream, v1=True)
        return api_pb2.SandboxCreateResponse(
            sandbox_id=box.sandbox_id, metadata=self._metadata(box)
        )

    async def SandboxGetTaskIdV2(self, request: Request, stream: Stream) -> Any:
        """The task of a sandbox, or its result."""
        box = self.store.box(request.sandbox_id)
        if box.result is not None:
            return api_pb2.SandboxGetTaskIdResponse(task_result=box.result)
        return api_pb2.SandboxGetTaskIdResponse(task_id=box.task_id)

    async def SandboxGetCommandRouterAccess(self, request: Request, stream: Stream) -> Any:
        """Address and token of the command router, after reattaching or expiry."""
        if request.WhichOneof("target") == "task_id":
            box = self.store.task(request.task_id)
        else:
            box = self.store.box(request.sandbox_id)
        if not box.is_up():
            raise GRPCError(Status.FAILED_PRECONDITION, f"sandbox {box.sandbox_id} has finished")
        access = self._access(box, stream)
        return api_pb2.SandboxGetCommandRouterAccessResponse(url=access.url, jwt=access.jwt)

    async def TaskGetCommandRouterAccess(self, request: Request, stream: Stream) -> Any:
        """`SandboxGetCommandRouterAccess` in V1."""
        access = self._access(self.store.task(request.task_id), stream)
        return api_pb2.TaskGetCommandRouterAccessResponse(url=access.url, jwt=access.jwt)

    async def SandboxWaitV2(self, request: Request, stream: Stream) -> Any:
        """Wait for the end; with timeout 0 it is a poll."""
        box = self.store.box(request.sandbox_id)
        result = await box.wait_visible(request.timeout)
        return api_pb2.SandboxWaitResponse(result=result, metadata=self._metadata(box))

    async def SandboxTerminateV2(self, request: Request, stream: Stream) -> Any:
        """End a sandbox; does nothing if it has ended."""
        box = self.store.box(request.sandbox_id)
        before = box.result
        await box.end(WORKER_LOST if box.lost else TERMINATED)
        return api_pb2.SandboxTerminateResponse(existing_result=before)

    async def SandboxGetFromNameV2(self, request: Request, stream: Stream) -> Any:
        """The running sandbox of an app with a name."""
        app_id = self.store.apps.get((request.environment_name, request.app_name))
        found = [
            box
            for box in self.store.boxes.values()
            if box.definition.name == request.sandbox_name and box.app_id == app_id
        ]
        running = [box for box in found if box.result is None]
        chosen = running or (found if request.include_terminated else [])
        if not chosen:
            raise GRPCError(Status.NOT_FOUND, f"no sandbox named {request.sandbox_name}")
        return api_pb2.SandboxGetFromNameResponse(
            sandbox_id=chosen[-1].sandbox_id, metadata=self._metadata(chosen[-1])
        )

    async def SandboxListV2(self, request: Request, stream: Stream) -> Any:
        """One page, newest first; for the next page, the SDK asks for older sandboxes."""
        tags = {tag.tag_name: tag.tag_value for tag in request.tags}
        boxes = [
            box
            for box in self.store.boxes.values()
            if (request.include_finished or box.result is None)
            and (not request.app_id or box.app_id == request.app_id)
            and (not request.before_timestamp or box.created < request.before_timestamp)
            and tags.items() <= box.tags.items()
        ]
        boxes.sort(key=lambda box: box.created, reverse=True)
        return api_pb2.SandboxListResponse(sandboxes=[self._info(box) for box in boxes[:PAGE]])

    async def SandboxTagsGetV2(self, request: Request, stream: Stream) -> Any:
        """All tags."""
        return api_pb2.SandboxTagsGetResponse(tags=_tags(self.store.box(request.sandbox_id)))

    async def SandboxTagsSetV2(self, request: Request, stream: Stream) -> Any:
        """Replace all tags."""
        tags = {tag.tag_name: tag.tag_value for tag in request.tags}
        self.store.box(request.sandbox_id).tags = tags
        return Empty()

    async def SandboxGetLogs(self, request: Request, stream: Stream) -> AsyncIterator[Any]:
        """Output of the sandbox's entrypoint in V1."""
        box = self.store.box(request.sandbox_id)
        if box.entrypoint is not None:
            descriptor = request.file_descriptor
            number = 1 if descriptor == api_pb2.FILE_DESCRIPTOR_STDOUT else 2
            async for data in box.entrypoint.logs[number].read(0):
                text = data.decode("utf-8", "replace")
                item = api_pb2.TaskLogs(data=text, file_descriptor=descriptor)
                yield api_pb2.TaskLogsBatch(items=[item])
        yield api_pb2.TaskLogsBatch(eof=True)

    async def SandboxStdinWrite(self, request: Request, stream: Stream) -> Any:
        """Input of the sandbox's entrypoint in V1."""
        box = self.store.box(request.sandbox_id)
        if box.entrypoint is None or not box.is_up():
            raise GRPCError(Status.FAILED_PRECONDITION, "the sandbox takes no input")
        pipe = box.entrypoint.input
        await pipe.write(pipe.written, request.input, eof=request.eof)
        return api_pb2.SandboxStdinWriteResponse()

    # V1 (SDK 1.5 by default, MODAL_SANDBOX_V2=0, GPU) has these under other names.
    SandboxGetTaskId = SandboxGetTaskIdV2
    SandboxWait = SandboxWaitV2
    SandboxTerminate = SandboxTerminateV2
    SandboxGetFromName = SandboxGetFromNameV2
    SandboxList = SandboxListV2
    SandboxTagsGet = SandboxTagsGetV2
    SandboxTagsSet = SandboxTagsSetV2

    def _access(self, box: ServedSandbox, stream: Stream) -> Any:
        url = box.worker.url if box.worker is not None else self._router_url
        if stream.metadata.get("x-modal-client-type") == str(api_pb2.CLIENT_TYPE_LIBMODAL_JS):
            # On localhost the JavaScript SDK requires the scheme https, and uses plaintext
            # nevertheless.
            url = url.replace("http://", "https://", 1)
        token = self.tokens.make(box.task_id, ROUTER_TOKEN_LIFETIME_S)
        return api_pb2.CommandRouterAccess(url=url, jwt=token)

    @staticmethod
    def _metadata(box: ServedSandbox) -> Any:
        return api_pb2.SandboxHandleMetadata(app_id=box.app_id, result=box.visible_result)

    def _info(self, box: ServedSandbox) -> Any:
        return api_pb2.SandboxInfo(
            id=box.sandbox_id,
            created_at=box.created,
            app_id=box.app_id,
            name=box.definition.name,
            image_id=box.definition.image_id,
            task_info=api_pb2.TaskInfo(id=box.task_id, result=box.result),
            tags=_tags(box),
            metadata=self._metadata(box),
            timeout_secs=box.definition.timeout_secs,
        )


def _tags(box: ServedSandbox) -> list[Any]:
    return [api_pb2.SandboxTag(tag_name=name, tag_value=text) for name, text in box.tags.items()]
