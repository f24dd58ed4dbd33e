"""The calls of the protocol about images, and about files that are uploaded for them."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from google.protobuf.empty_pb2 import Empty
from grpclib import GRPCError, Status
from modal_proto import api_pb2

from hermes_queue.errors import (
    HermesQueueError,
    IsolationUnavailable,
    SandboxError,
    SandboxRejected,
    TrajectoryFailure,
)
from localmodal.box import Result
from localmodal.rooted.blobs import MAX_BLOB_BYTES
from localmodal.rooted.recipe import Image
from localmodal.wire import Request, Stream

if TYPE_CHECKING:
    from localmodal.storage.store import Store

BUILDER_VERSION = "2025.06"


class ImageCalls:
    """Methods have the names of the protocol."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._builds: dict[str, asyncio.Task[Any]] = {}
        self._logs: dict[str, list[str]] = {}

    async def ImageGetOrCreate(self, request: Request, stream: Stream) -> Any:
        """Record a recipe; equal recipes are one image."""
        recipe = request.image
        digest = hashlib.sha256(recipe.SerializeToString(deterministic=True)).hexdigest()
        image_id = f"im-{digest[:22]}"
        image = self.store.images.get(image_id)
        if image is None:
            image = self.store.images[image_id] = self._recorded(image_id, recipe)
        if self._is_real(image):
            await self._check_host()
        finished = image_id in self.store.built and not request.force_build
        result = Result(status=Result.GENERIC_STATUS_SUCCESS) if finished else Result()
        return api_pb2.ImageGetOrCreateResponse(
            image_id=image_id, result=result, metadata=self._image_metadata()
        )

    def _recorded(self, image_id: str, recipe: Request) -> Image:
        bases = [(base.docker_tag, self.store.image(base.image_id)) for base in recipe.base_images]
        inherited = [command for _, base in bases for command in base.commands]
        own = (*recipe.dockerfile_commands,)
        return Image(
            image_id,
            commands=(*inherited, *own),
            files=next((base.files for _, base in bases if base.files), None),
            own=own,
            bases=tuple((name, base.image_id) for name, base in bases),
            upload_id=recipe.context_mount_id,
            arguments=tuple(sorted(recipe.build_args.items())),
        )

    def _is_real(self, image: Image) -> bool:
        return image.rootfs is None and (image.wants_root or self.store.real_images)

    async def _check_host(self) -> None:
        """Raises GRPCError: images cannot be had on this host; the message has the fix."""
        try:
            await self.store.builds.check()
        except IsolationUnavailable as error:
            raise GRPCError(
                Status.INVALID_ARGUMENT, f"localmodal can have no images on this host: {error}"
            ) from error
        except SandboxError as error:
            raise GRPCError(Status.UNAVAILABLE, str(error)) from error

    async def ImageJoinStreaming(self, request: Request, stream: Stream) -> AsyncIterator[Any]:
        """Stream the log of a build, and its result. A recorded image's build runs nothing."""
        image = self.store.image(request.image_id)
        result = self.store.faults.build_result()
        if result is None and self._is_real(image):
            building = self._building(image)
            shown = 0
            while not building.done():
                await asyncio.wait({building}, timeout=1.0)
                lines = self._logs.get(image.image_id, [])
                for line in lines[shown:]:
                    yield _log(line)
                shown = len(lines)
            result = building.result()
        else:
            for line in image.commands:
                yield _log(f"{line} (recorded)")
        result = result or Result(status=Result.GENERIC_STATUS_SUCCESS)
        if result.status == Result.GENERIC_STATUS_SUCCESS:
            self.store.built.add(request.image_id)
        yield api_pb2.ImageJoinStreamingResponse(
            result=result, eof=True, metadata=self._image_metadata()
        )

    def _building(self, image: Image) -> asyncio.Task[Any]:
        """The build of an image, which goes on if its client hangs up."""
        known = self._builds.get(image.image_id)
        if known is None:
            known = asyncio.create_task(self._build(image))
            self._builds[image.image_id] = known
            known.add_done_callback(lambda _: self._builds.pop(image.image_id, None))
        return known

    async def _build(self, image: Image) -> Any:
        log = self._logs[image.image_id] = []
        try:
            await self._built(image, log.append)
        except (TrajectoryFailure, HermesQueueError, GRPCError, OSError) as error:
            why = str(getattr(error, "message", None) or error)
            # A refusal is for good; a sandbox's failure may pass, like an eviction of Modal's
            # builder.
            if isinstance(error, SandboxError) and not isinstance(error, SandboxRejected):
                why = f"build for {image.image_id} failed with an unknown status: {why}"
            return Result(status=Result.GENERIC_STATUS_FAILURE, exception=why)
        finally:
            self._logs.pop(image.image_id, None)
        return Result(status=Result.GENERIC_STATUS_SUCCESS)

    async def _built(self, image: Image, report: Any) -> Image:
        """The image with its root file system, and that of those it is built on."""
        if image.rootfs is not None:
            return image
        bases = {}
        for name, image_id in image.bases:
            bases[name] = await self._built(self.store.image(image_id), report)
        held = await self.store.builds.build(image, bases, self.store.uploads, report)
        known = self.store.images.get(image.image_id)
        if known is not None and known.rootfs is not None:  # built at the same time for another
            held.release()
            return known
        found = self.store.images[image.image_id] = replace(image, rootfs=held)
        return found

    async def ImageFromId(self, request: Request, stream: Stream) -> Any:
        """An image or a snapshot by id."""
        self.store.image(request.image_id)
        return api_pb2.ImageFromIdResponse(
            image_id=request.image_id, metadata=self._image_metadata()
        )

    async def ImageGetByTag(self, request: Request, stream: Stream) -> Any:
        """Find an image by the name under which it was published."""
        image_id = self.store.image_names.get(request.tag)
        if image_id is None:
            raise GRPCError(Status.NOT_FOUND, f"Image '{request.tag}' not found")
        return api_pb2.ImageGetByTagResponse(image_id=image_id)

    async def ImagePublish(self, request: Request, stream: Stream) -> Any:
        """Give an image a name."""
        self.store.image(request.image_id)
        self.store.image_names[request.tag] = request.image_id
        return api_pb2.ImagePublishResponse()

    async def ImageDelete(self, request: Request, stream: Stream) -> Any:
        """Remove an image, and its files unless another one has them, too."""
        image = self.store.images.pop(request.image_id, None)
        if image is None:
            raise GRPCError(Status.NOT_FOUND, f"no image {request.image_id}")
        self.store.built.discard(request.image_id)
        if image.rootfs is not None:
            image.rootfs.release()
        if image.files and all(other.files != image.files for other in self.store.images.values()):
            await asyncio.to_thread(self.store.host.remove, image.files)
        return Empty()

    def _image_metadata(self) -> Any:
        version = self.store.host.python.version
        return api_pb2.ImageMetadata(
            python_version_info=f"Python {version}.0", image_builder_version=BUILDER_VERSION
        )

    # --- files for builds -------------------------------------------------------------

    async def MountPutFile(self, request: Request, stream: Stream) -> Any:
        """Store a file, or say whether it is here."""
        uploads, digest = self.store.uploads, request.sha256_hex
        kind = request.WhichOneof("data_oneof")
        if kind == "data":
            await asyncio.to_thread(uploads.put, digest, request.data)
        elif kind == "data_blob_id":
            await asyncio.to_thread(uploads.put_blob, digest, request.data_blob_id)
        return api_pb2.MountPutFileResponse(exists=uploads.has(digest))

    async def MountBatchedCheckExistence(self, request: Request, stream: Stream) -> Any:
        """Which of these files are not here."""
        digests = list(request.sha256_hex_hashes)
        missing = [digest for digest in digests if not self.store.uploads.has(digest)]
        return api_pb2.MountBatchedCheckExistenceResponse(missing_sha256_hex_hashes=missing)

    async def MountGetOrCreate(self, request: Request, stream: Stream) -> Any:
        """Record a build context."""
        if request.deployment_name:
            raise GRPCError(Status.NOT_FOUND, f"Mount '{request.deployment_name}' not found")
        upload_id = await asyncio.to_thread(self.store.uploads.add_list, list(request.files))
        digest = upload_id.removeprefix("mo-")
        return api_pb2.MountGetOrCreateResponse(
            mount_id=upload_id,
            handle_metadata=api_pb2.MountHandleMetadata(content_checksum_sha256_hex=digest),
        )

    async def BlobCreate(self, request: Request, stream: Stream) -> Any:
        """An address to which the client sends a large file."""
        if request.content_length > MAX_BLOB_BYTES:
            most = MAX_BLOB_BYTES >> 20
            raise GRPCError(Status.INVALID_ARGUMENT, f"localmodal takes files up to {most} MiB")
        blob_id = secrets.token_hex(16)
        url = await self.store.blobs.address(blob_id)
        items = api_pb2.UploadUrlList(items=[url])
        return api_pb2.BlobCreateResponse(blob_ids=[blob_id], blob_id=blob_id, upload_urls=items)


def _log(line: str) -> Any:
    log = api_pb2.TaskLogs(data=f"=> {line}\n")
    return api_pb2.ImageJoinStreamingResponse(task_logs=[log])
