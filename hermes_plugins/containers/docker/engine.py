"""Docker Engine or Podman as a host of containers, through aiodocker."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import resource
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from hermes_plugins.containers.backend import ContainerBackend
from hermes_plugins.containers.docker.accounts import trap_in
from hermes_plugins.containers.docker.changes import file_changes
from hermes_plugins.containers.docker.facts import check_limits, read_facts
from hermes_plugins.containers.docker.networks import (
    LABEL,
    EngineNetworks,
    filters,
    link_body,
    link_host_config,
    prefixed,
    unprefixed,
    volume_mounts,
)
from hermes_plugins.containers.host import HostFacts
from hermes_plugins.containers.images.client import AnswerTooLong, EngineClient, translated
from hermes_plugins.containers.images.hosted import EngineImages, HostedImage
from hermes_plugins.containers.settings import DockerSettings
from hermes_plugins.images.containers.host import (
    ROOT_USERS,
    ContainerSpec,
    ContainerState,
    ExecStream,
)
from hermes_queue.cancellation import end_tasks, unbroken
from hermes_queue.errors import SandboxError, SlotKilled, SlotLost
from hermes_queue.sandbox.archives import FilesRefused
from hermes_queue.sandbox.base import SandboxInfo
from hermes_queue.sandbox.image_slots import FileChange, TooManyChanges
from hermes_queue.settings import PathSettings

if TYPE_CHECKING:
    from aiodocker.execs import Exec
    from aiodocker.stream import Stream

logger = logging.getLogger(__name__)
FIRST_IS_GONE = re.compile(r'exec: "/bin/sh"|executable file `?/bin/sh`? not found')
"""What engines say of a container whose first process cannot start again."""

LIST_ROUNDS, LIST_ROUND_S = 30, 10.0
"""How long a list of changes may take; between rounds the engine must answer another request."""
ANSWER_S = 60.0
"""For that request."""

CODE_TRIES, CODE_PAUSE_S = 40, 0.05
"""The engine learns of a program's end a little after its streams."""

NOFILE, NPROC = 65_536, 30_000
"""The kernel counts a user's processes in all containers together; PidsLimit limits a slot's."""


def make_backend(settings: DockerSettings, **options: Any) -> ContainerBackend:
    """The backend `docker`; `options` are those of `BackendFactory`."""
    client = EngineClient(settings.host)
    cache = (options.pop("cache", None) or PathSettings().cache).absolute()
    images = EngineImages(client, settings, cache=cache)
    engine = Engine(client, settings, images)
    networks = EngineNetworks(client)
    return ContainerBackend(engine, images, settings, cache=cache, networks=networks, **options)


class Engine:
    """See `ContainerHost`."""

    def __init__(
        self, client: EngineClient, settings: DockerSettings, images: EngineImages
    ) -> None:
        self._client = client
        self._images = images
        self._settings = settings
        self._networks: set[str] = set()
        self._networking = asyncio.Lock()
        self._images_own: set[str] = set()
        """Slots with an image of their own, whose commands may change all files."""
        self.facts = HostFacts("no engine yet")

    async def open(self) -> None:
        """See `ContainerHost`. Raises IsolationUnavailable: it enforces no limits."""
        await self._client.open()
        self.facts = await read_facts(self._client)
        if warning := check_limits(self.facts, self._settings):
            logger.warning("%s", warning, extra={"action": "start"})

    async def close(self) -> None:
        """See `ContainerHost`."""
        await self._client.close()

    # --- containers -------------------------------------------------------------------

    async def create(self, spec: ContainerSpec) -> str:
        """See `ContainerHost`."""
        making = asyncio.ensure_future(self._create(spec))
        try:
            async with asyncio.timeout(self._settings.start_timeout_s):
                return await asyncio.shield(making)
        except TimeoutError as error:
            making.add_done_callback(self._remove_late)
            raise SandboxError(
                f"the engine started no container in {self._settings.start_timeout_s:.0f} s"
            ) from error
        except asyncio.CancelledError:
            making.add_done_callback(self._remove_late)
            raise

    def _remove_late(self, making: asyncio.Future[str]) -> None:
        if not making.cancelled() and making.exception() is None:
            ending = asyncio.ensure_future(self.remove(making.result()))
            ending.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _create(self, spec: ContainerSpec) -> str:
        with translated(f"making a container of {spec.image}", making=True):
            made = await self._client.json(
                "containers/create",
                "POST",
                params={"name": spec.name},
                data=self._body(spec),
                timeout_s=300.0,
            )
            container = str(made["Id"])
            try:
                await self._client.json(f"containers/{container}/start", "POST", data={})
            except BaseException:
                await unbroken(self._discard(container))
                raise
        if not spec.is_service and (spec.capabilities is None or spec.link is not None):
            self._images_own.add(container)
        return container

    async def _discard(self, container: str) -> None:
        with contextlib.suppress(SandboxError):  # labelled, so that it is found later
            await self.remove(container)

    @property
    def _is_podman(self) -> bool:
        return self.facts.name.startswith("Podman")

    def _shared_memory(self, spec: ContainerSpec) -> dict[str, Any]:
        """Shared memory; Podman's own would keep its files when the container is restarted."""
        if self._is_podman:
            options = f"rw,nosuid,nodev,noexec,mode=1777,size={spec.shm_mb}m"
            return {"Tmpfs": {"/dev/shm": options}}  # noqa: S108 - in the container
        return {"ShmSize": spec.shm_mb << 20}

    def _body(self, spec: ContainerSpec) -> dict[str, Any]:
        """The request's body."""
        return {
            "Image": spec.image,
            "Entrypoint": list(spec.command),
            "Cmd": [],
            "User": spec.user,
            "Env": [f"{name}={value}" for name, value in spec.env],
            "Labels": prefixed(spec.labels),
            "Healthcheck": {"Test": ["NONE"]},
            **({"WorkingDir": spec.workdir} if spec.workdir else {}),
            **link_body(spec),
            "HostConfig": {
                "NetworkMode": spec.network,
                "NanoCpus": int(spec.cpus * 1e9),
                "Memory": spec.memory_mb << 20,
                "MemorySwap": spec.memory_mb << 20,
                "PidsLimit": spec.pids,
                **self._shared_memory(spec),
                "Ulimits": _ulimits(podman=self._is_podman),
                "CapDrop": [] if spec.capabilities is None else ["ALL"],
                "CapAdd": list(spec.capabilities or ()),
                "SecurityOpt": ["no-new-privileges"] if spec.no_new_privileges else [],
                "Mounts": [
                    {
                        "Type": "bind",
                        "Source": mount.source,
                        "Target": mount.target,
                        "ReadOnly": not mount.writable,
                    }
                    for mount in spec.mounts
                ]
                + volume_mounts(spec),
                "LogConfig": {"Type": "none", "Config": {}},
                "RestartPolicy": {"Name": "no"},
                **link_host_config(spec),
                **({"Runtime": self._settings.runtime} if self._settings.runtime else {}),
            },
        }

    @contextlib.asynccontextmanager
    async def exec(
        self,
        container: str,
        argv: Sequence[str],
        *,
        user: str,
        env: Mapping[str, str],
        stdin: bool = False,
    ) -> AsyncIterator[ExecStream]:
        """See `ContainerHost`."""
        from aiodocker.execs import Exec

        if container in self._images_own:
            # Docker's daemon looks up each user that is named, though it were root.
            user = "" if user in ROOT_USERS else user
            await self._check_start(container, user)
        body = {
            "Cmd": list(argv),
            "Env": [f"{name}={value}" for name, value in env.items()],
            "User": user,
            "WorkingDir": "/",
            "AttachStdin": stdin,
            "AttachStdout": True,
            "AttachStderr": True,
            "Tty": False,
        }
        with translated("starting a command", gone=True):
            made = await self._client.json(f"containers/{container}/exec", "POST", data=body)
            execution = Exec(self._client.docker, str(made["Id"]), tty=False)
            stream = execution.start(detach=False)
            await stream._init()
        try:
            yield EngineExec(execution, stream)
        finally:
            with contextlib.suppress(Exception):
                await stream.close()

    async def state(self, container: str) -> ContainerState:
        """See `ContainerHost`."""
        with translated("looking at a container", gone=True):
            found = await self._client.json(f"containers/{container}/json")
        state = found.get("State") or {}
        running, code = bool(state.get("Running")), state.get("ExitCode")
        return ContainerState(
            running,
            bool(state.get("OOMKilled")),
            exit_code=None if running or code is None else int(code),
        )

    async def _check_start(self, container: str, user: str) -> None:
        """Raise SlotKilled where a look at the container's users could hold up the engine itself.

        Podman locks a container until the runtime has started a program.
        """
        if (user or self._is_podman) and (why := await self.trap_in(container)):
            raise SlotKilled(f"no command can start in the slot: {why}")

    async def trap_in(self, container: str) -> str:
        """See `ContainerHost`."""
        if container not in self._images_own:
            return ""
        return await trap_in(self._client, container)

    async def restart(self, container: str) -> None:
        """See `ContainerHost`."""
        try:
            with translated("restarting a container", gone=True):
                place, params = f"containers/{container}", {"t": "0"}
                await self._client.json(f"{place}/stop", "POST", params=params)
                # Nobody can change them any more.
                if why := await self.trap_in(container):
                    raise FilesRefused(f"the slot cannot start again: {why}")
                await self._client.json(f"{place}/start", "POST", data={})
        except (SlotLost, FilesRefused):
            raise
        except SandboxError as error:
            if FIRST_IS_GONE.search(str(error)):
                raise FilesRefused(str(error)) from error
            raise

    async def changes(self, container: str, most: int) -> list[FileChange]:
        """See `ContainerHost`.

        Raises:
            FilesRefused: not in time. What holds up the engine itself is not counted: the files of
                other containers, which Podman deletes, for one.
        """
        path = f"containers/{container}/changes"
        whole_s = 2 * LIST_ROUNDS * LIST_ROUND_S
        asking = asyncio.ensure_future(self._client.json(path, timeout_s=whole_s))
        try:
            with translated("listing a container's changes", gone=True):
                for _ in range(LIST_ROUNDS):
                    if (await asyncio.wait({asking}, timeout=LIST_ROUND_S))[0]:
                        return await asyncio.to_thread(file_changes, await asking or [], most)
                    every = {"all": "true"}
                    await self._client.json("containers/json", params=every, timeout_s=ANSWER_S)
        except AnswerTooLong as error:
            raise TooManyChanges(str(error)) from error
        finally:
            await end_tasks(asking)
        raise FilesRefused(f"the slot's files were not listed in {LIST_ROUNDS * LIST_ROUND_S:g} s")

    async def commit(self, container: str, name: str, labels: Mapping[str, str]) -> HostedImage:
        """See `ContainerHost`."""
        repository, _, tag = name.rpartition(":")
        lines = [f"LABEL {LABEL}{key}={json.dumps(value)}" for key, value in labels.items()]
        params = {
            "container": container,
            "repo": repository,
            "tag": tag,
            "changes": "\n".join(lines),
        }
        with translated("keeping a container's files", gone=True):
            await self._client.json("commit", "POST", params=params, data={}, timeout_s=600.0)
        if (image := await self._images.find(name)) is None:
            raise SandboxError(f"the engine lost the image {name} that it has just made")
        return image

    async def remove(self, container: str) -> None:
        """See `ContainerHost`."""
        self._images_own.discard(container)
        params = {"force": "true", "v": "true"}
        for attempt in range(3):
            try:
                with translated("removing a container", gone=True):
                    await self._client.json(f"containers/{container}", "DELETE", params=params)
            except SlotLost as error:
                if "already in progress" in str(error):  # by an earlier request, which was cut off
                    await asyncio.sleep(0.2 * (attempt + 1))
                    continue
                return
            return

    async def list(self, labels: Mapping[str, str]) -> list[SandboxInfo]:
        """See `ContainerHost`."""
        with translated("listing containers"):
            found = await self._client.json("containers/json", params=filters(labels, all="true"))
        return [
            SandboxInfo(
                str(each["Id"]), unprefixed(each.get("Labels") or {}), float(each["Created"])
            )
            for each in found or ()
        ]

    async def written(self, labels: Mapping[str, str]) -> dict[str, int]:
        """See `ContainerHost`."""
        params = filters(labels, size="true")
        with translated("measuring containers"):
            found = await self._client.json("containers/json", params=params, timeout_s=300.0)
        return {str(each["Id"]): int(each.get("SizeRw") or 0) for each in found or ()}

    # --- images and networks ----------------------------------------------------------

    async def remove_image(self, name: str) -> None:
        """See `ContainerHost`."""
        with translated(f"removing the image {name}"):
            try:
                await self._client.json(f"images/{quote(name)}", "DELETE", params={"force": "true"})
            except Exception as error:
                if getattr(error, "status", None) != 404:
                    raise

    async def list_images(self, labels: Mapping[str, str]) -> dict[str, Mapping[str, str]]:
        """See `ContainerHost`."""
        with translated("listing images"):
            found = await self._client.json("images/json", params=filters(labels))
        return {
            str(name): unprefixed(each.get("Labels") or {})
            for each in found or ()
            for name in each.get("RepoTags") or ()
        }

    async def network(self, name: str) -> str:
        """See `ContainerHost`."""
        async with self._networking:
            if name not in self._networks:
                await self._find_network(name)
                self._networks.add(name)
        return name

    async def _find_network(self, name: str) -> None:
        with translated(f"finding the network {name!r}", making=True):
            found = await self._client.json(
                "networks", params={"filters": json.dumps({"name": [name]})}
            )
            if any(each.get("Name") == name for each in found or ()):
                return
            # Containers of one such network do not reach each other.
            body = {
                "Name": name,
                "Driver": "bridge",
                "CheckDuplicate": True,
                "Labels": {f"{LABEL}network": "slots"},
                "Options": {"com.docker.network.bridge.enable_icc": "false"},
            }
            try:
                await self._client.json("networks/create", "POST", data=body)
            except Exception as error:
                if getattr(error, "status", None) != 409:  # another worker was faster
                    raise


def _ulimits(*, podman: bool) -> list[dict[str, str | int]]:
    """Limits of processes, none above our own hard one.

    Podman's defaults are so high that raising them needs a right which it may lack.
    """
    wanted = [("nofile", resource.RLIMIT_NOFILE, NOFILE), ("core", resource.RLIMIT_CORE, 0)]
    if podman:
        wanted.append(("nproc", resource.RLIMIT_NPROC, NPROC))
    limits: list[dict[str, str | int]] = []
    for name, kind, value in wanted:
        hard = resource.getrlimit(kind)[1]
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        limits.append({"Name": name, "Soft": most, "Hard": most})
    return limits


class EngineExec:
    """See `ExecStream`."""

    def __init__(self, execution: Exec, stream: Stream) -> None:
        self._execution = execution
        self._stream = stream
        self._has_eof = False

    async def read(self) -> tuple[int, bytes] | None:
        """See `ExecStream`."""
        with translated("reading a command's output"):
            return cast("tuple[int, bytes] | None", await self._stream.read_out())

    async def write(self, data: bytes) -> None:
        """See `ExecStream`."""
        if self._has_eof:
            raise SandboxError("a command's input has ended")
        with translated("writing to a command"):
            await self._stream.write_in(data)

    async def write_eof(self) -> None:
        """See `ExecStream`."""
        self._has_eof = True
        with contextlib.suppress(Exception):  # the command may have ended, and with it the stream
            response = self._stream._resp
            if response is not None and response.connection is not None:
                transport = response.connection.transport
                if transport is not None and transport.can_write_eof():
                    transport.write_eof()

    async def exit_code(self) -> int | None:
        """See `ExecStream`."""
        for _ in range(CODE_TRIES):
            try:
                with translated("asking for a command's exit code"):
                    found = await self._execution.inspect()
            except SandboxError:
                return None  # Podman forgets ended programs, a restarted engine all of them
            code = found.get("ExitCode")
            if not found.get("Running") and isinstance(code, int):
                return code & 0xFF
            await asyncio.sleep(CODE_PAUSE_S)
        return None
