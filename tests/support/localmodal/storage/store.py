"""The state of the server: apps, images, secrets, volumes and sandboxes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from grpclib import GRPCError, Status
from modal_proto import api_pb2

from localmodal.admission import check_definition
from localmodal.box import TERMINATED, ServedSandbox
from localmodal.enclosure import Enclosure, Volume
from localmodal.faults.plan import FaultPlan
from localmodal.gvisor import GvisorEnclosure
from localmodal.host import Host
from localmodal.listener import Listener
from localmodal.rooted.blobs import BlobReceiver
from localmodal.rooted.built import with_images
from localmodal.rooted.recipe import Image
from localmodal.rooted.uploads import Uploads
from localmodal.storage.volumes import Volumes
from localmodal.wire import Request, new_id

ENCLOSURES = {"namespaces": Enclosure, "gvisor": GvisorEnclosure}


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Limits of one sandbox, unless its creator sets lower ones."""

    memory_mb: int = 0
    """0 = unlimited. A plain `memory=` is a request, not a limit, as on Modal."""
    max_pids: int = 4096
    output_bytes: int = 1 << 30
    """Limit of each stream of each command; the rest is dropped."""
    capabilities: str = "wide"
    """Capabilities of root inside: a key of `enclosure.CAPABILITIES`."""
    runtime: str = "namespaces"
    """"namespaces" or "gvisor", see `localmodal.gvisor`."""


@dataclass
class Store:
    """The whole state of one server. Its methods raise GRPCError as the SDK expects it."""

    host: Host
    faults: FaultPlan
    limits: SandboxLimits
    network: bool
    """Whether sandboxes may have network at all."""
    open_worker: Callable[[], Awaitable[Listener | None]]
    """Opens a port for one sandbox's commands; None if all share the server's."""
    real_images: bool = False
    """Whether every image is built or fetched, and not only those that ask for it."""
    image_cache: Path | None = None
    """Directory of the host's images; None = that of the backend `local`."""
    apps: dict[tuple[str, str], str] = field(default_factory=dict)
    """(environment, name) -> id."""
    images: dict[str, Image] = field(default_factory=dict)
    built: set[str] = field(default_factory=set)
    """Ids of images that were built successfully."""
    image_names: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, dict[str, str]] = field(default_factory=dict)
    secret_names: dict[str, str] = field(default_factory=dict)
    boxes: dict[str, ServedSandbox] = field(default_factory=dict)
    """Sandbox id -> box, including boxes that have ended."""
    tasks: dict[str, ServedSandbox] = field(default_factory=dict)
    _names: set[tuple[str, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.volumes = Volumes(self.host)
        self.uploads = Uploads(self.host.directory / "uploads")
        self.blobs = BlobReceiver(self.uploads)
        self._builds: Any = None

    @property
    def builds(self) -> Any:
        """Builds of images, made on first use. Belongs to the event loop of its first use.

        Raises IsolationUnavailable: see `with_images`.
        """
        if self._builds is None:
            self._builds = with_images().ImageBuilds(self.image_cache)
        return self._builds

    def add_secret(self, name: str | None, values: Mapping[str, str]) -> str:
        """Store a secret; returns its id."""
        secret_id = new_id("st", 22)
        self.secrets[secret_id] = dict(values)
        if name:
            self.secret_names[name] = secret_id
        return secret_id

    def environment(self, request: Request, secret_ids: Iterable[str]) -> dict[str, str]:
        """Variables that a request sets; the field differs between SDK versions."""
        merged: dict[str, str] = {}
        for secret_id in secret_ids:
            merged.update(self._secret(secret_id))
        inline = getattr(request, "ephemeral_secrets", None)
        merged.update(dict(inline.contents) if inline else {})
        for source in getattr(request, "secret_sources", ()):
            if source.WhichOneof("source") == "secret_id":
                merged.update(self._secret(source.secret_id))
            else:
                merged.update(dict(source.env.contents))
        return merged

    def _secret(self, secret_id: str) -> dict[str, str]:
        if secret_id not in self.secrets:
            raise GRPCError(Status.NOT_FOUND, f"no secret {secret_id}")
        return self.secrets[secret_id]

    def image(self, image_id: str) -> Image:
        """An image by id."""
        if image_id not in self.images:
            raise GRPCError(Status.NOT_FOUND, f"no image {image_id}")
        return self.images[image_id]

    def box(self, sandbox_id: str) -> ServedSandbox:
        """A sandbox by id, possibly ended."""
        if sandbox_id not in self.boxes:
            raise GRPCError(Status.NOT_FOUND, f"no sandbox {sandbox_id}")
        return self.boxes[sandbox_id]

    def task(self, task_id: str) -> ServedSandbox:
        """A sandbox that accepts commands, by task id."""
        box = self.tasks.get(task_id)
        if box is None or not box.is_up():
            raise GRPCError(Status.NOT_FOUND, f"task {task_id} is not running")
        return box

    async def create(
        self, app_id: str, definition: Request, environment: Mapping[str, str], *, v1: bool
    ) -> ServedSandbox:
        """Create and start a sandbox."""
        if app_id not in self.apps.values():
            raise GRPCError(Status.NOT_FOUND, f"no app {app_id}")
        check_definition(definition)
        self.faults.throttle_creation()
        name = (app_id, definition.name)
        if definition.name:
            taken = any(
                (box.app_id, box.definition.name) == name and box.result is None
                for box in self.boxes.values()
            )
            if taken or name in self._names:
                raise GRPCError(Status.ALREADY_EXISTS, f"sandbox {definition.name!r} exists")
            # The sandbox enters `boxes` only after its start. Without this reservation a second
            # call in the meantime would create another one of the same name.
            self._names.add(name)
        try:
            return await self._create(app_id, definition, environment, v1)
        finally:
            self._names.discard(name)

    async def _create(
        self, app_id: str, definition: Request, environment: Mapping[str, str], v1: bool
    ) -> ServedSandbox:
        image = self.image(definition.image_id)
        sandbox_id = new_id("sb", 22 if v1 else 26)
        definition.workdir = definition.workdir or image.workdir
        directory = self.host.owned_directory(self.host.directory / sandbox_id)
        volumes = await self.volumes.attach(directory, definition.volume_mounts)
        enclosure = self._enclosure(image, sandbox_id, definition, volumes)
        box = ServedSandbox(
            sandbox_id=sandbox_id,
            task_id=new_id("ta", 25) + ("" if v1 else "V"),
            app_id=app_id,
            definition=definition,
            environment={**image.environment, **environment},
            tags={},
            enclosure=enclosure,
            conduct=self.faults.conduct,
            output_limit_bytes=self.limits.output_bytes,
            settle=partial(self.volumes.commit, directory),
        )
        for old in self.boxes.values():
            old.forget_output()
        await box.start()
        box.worker = await self.open_worker()
        self.boxes[sandbox_id] = box
        self.tasks[box.task_id] = box
        return box

    def _enclosure(
        self, image: Image, sandbox_id: str, definition: Request, volumes: tuple[Volume, ...]
    ) -> Enclosure:
        access = definition.network_access.network_access_type
        resources = definition.resources
        options: dict[str, Any] = {
            "host": self.host,
            "sandbox_id": sandbox_id,
            "files": image.files,
            "network": self.network and access != api_pb2.NetworkAccess.BLOCKED,
            "memory_mb": resources.memory_mb_max or self.limits.memory_mb,
            "max_pids": self.limits.max_pids,
            "capabilities": self.limits.capabilities,
            "volumes": volumes,
        }
        if image.rootfs is None:
            return ENCLOSURES[self.limits.runtime](**options)
        if self.limits.runtime != "namespaces":
            problem = f"localmodal has built images only without --runtime {self.limits.runtime}"
            raise GRPCError(Status.UNIMPLEMENTED, problem)
        enclosure: Enclosure = with_images().RootedEnclosure(
            **options,
            image=image.rootfs,
            builds=self.builds,
            workdir=definition.workdir,
            cpus=resources.milli_cpu_max / 1000 or None,
        )
        return enclosure

    async def shut_down(self) -> None:
        """`close`, and free all that the server holds."""
        await self.close()
        await self.blobs.close()
        builds, self._builds = self._builds, None
        if builds is not None:
            for image in self.images.values():
                if image.rootfs is not None:
                    image.rootfs.release()
            self.images.clear()
            await builds.close()

    async def close(self) -> None:
        """End every sandbox and forget all of them."""
        # One that is starting is not in `boxes` yet: its processes end with the server's thread.
        running = [box for box in self.boxes.values() if box.result is None]
        await asyncio.gather(*(box.end(TERMINATED) for box in running))
        for box in self.boxes.values():
            box.close()
        self.boxes.clear()
        self.tasks.clear()
