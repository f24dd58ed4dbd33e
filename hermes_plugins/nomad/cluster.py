"""A Nomad cluster as a host of containers: one batch job each, found by its name."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn
from urllib.parse import quote

from hermes_plugins.containers.backend import ContainerBackend
from hermes_plugins.containers.host import HostFacts
from hermes_plugins.containers.images.hosted import HostedImage
from hermes_plugins.images.containers.host import ContainerSpec, ContainerState, ExecStream
from hermes_plugins.images.containers.process import run_small
from hermes_plugins.images.containers.scripts import BASH
from hermes_plugins.nomad import placement
from hermes_plugins.nomad.changes import LIST_S, difference, listing, packed
from hermes_plugins.nomad.client import REQUEST_S, NomadClient
from hermes_plugins.nomad.execution import NomadExec, entry, query
from hermes_plugins.nomad.facts import read_facts
from hermes_plugins.nomad.images import NomadImages
from hermes_plugins.nomad.job import (
    ALIVE,
    PREFIX,
    RESET,
    SECOND_NS,
    TASK,
    has_labels,
    job_of,
    labels_of,
)
from hermes_plugins.nomad.settings import NomadSettings
from hermes_queue.cancellation import end_tasks, unbroken
from hermes_queue.errors import SandboxError, SandboxRejected, SlotLost
from hermes_queue.sandbox.archives import FilesRefused
from hermes_queue.sandbox.base import SandboxInfo
from hermes_queue.sandbox.commands.shell import script
from hermes_queue.sandbox.image_slots import FileChange, TooManyChanges
from hermes_queue.settings import PathSettings

logger = logging.getLogger(__name__)

BEATS_PER_IDLE_TIME = 3
BEATS_AT_ONCE = 64
BEAT_S = 10.0
"""For one sign of life: those for a node that hangs must not be why others come too late."""
RESET_TRIES = 5
MOST_KNOWN_IMAGES = 64
"""Images whose files are remembered; those of a container that lives always are."""


@dataclass(frozen=True, slots=True)
class _Job:
    """A container that this worker has made."""

    alloc_id: str
    env: Mapping[str, str]
    """Of its commands, over the image's."""
    started: float
    files: bytes = b""
    """Names of the files of its image, packed."""


def make_backend(settings: NomadSettings, **options: Any) -> ContainerBackend:
    """The backend `nomad`; `options` are those of `BackendFactory`."""
    cache = (options.pop("cache", None) or PathSettings().cache).absolute()
    images = NomadImages(settings, cache=cache)
    cluster = NomadCluster(settings, images)
    return ContainerBackend(cluster, images, settings, cache=cache, **options)


class NomadCluster:
    """See `ContainerHost`. A container's id is the name of its job."""

    def __init__(self, settings: NomadSettings, images: NomadImages | None = None) -> None:
        self._settings = settings
        self._images = images
        self._client = NomadClient(settings)
        self._jobs: dict[str, _Job] = {}
        self._files: OrderedDict[str, bytes] = OrderedDict()
        self._beating: asyncio.Task[None] | None = None
        self.facts = HostFacts("no Nomad yet")

    async def open(self) -> None:
        """See `ContainerHost`. Raises ConfigurationError: no node can hold slots."""
        await self._client.open()
        if self._beating is None:
            try:
                self.facts = await read_facts(self._client, self._settings)
            except BaseException:
                await self._client.close()
                raise
            self._beating = asyncio.create_task(self._beat())

    async def close(self) -> None:
        """See `ContainerHost`."""
        if self._beating is not None:
            await end_tasks(self._beating)
            self._beating = None
        if self._images is not None:
            await self._images.close()
        await self._client.close()

    # --- signs of life ----------------------------------------------------------------

    async def _beat(self) -> None:
        """Show containers that their worker lives; each ends by itself without."""
        turns = asyncio.Semaphore(BEATS_AT_ONCE)

        async def beat(job: _Job) -> None:
            async with turns:
                with contextlib.suppress(SandboxError):  # whoever uses it learns more
                    await self._signal(job.alloc_id, ALIVE, timeout_s=BEAT_S)

        while True:
            await asyncio.sleep(self._settings.idle_timeout_s / BEATS_PER_IDLE_TIME)
            await asyncio.gather(*map(beat, list(self._jobs.values())))

    async def _signal(self, alloc_id: str, signal: str, timeout_s: float = REQUEST_S) -> None:
        body = {"Task": TASK, "Signal": signal}
        path = f"client/allocation/{alloc_id}/signal"
        await self._client.request(path, "POST", body=body, timeout_s=timeout_s, gone=True)

    # --- containers -------------------------------------------------------------------

    async def create(self, spec: ContainerSpec) -> str:
        """See `ContainerHost`."""
        try:
            await self._client.request(
                "jobs", "POST", body=job_of(spec, self._settings), making=True
            )
            allocation = await placement.placed(self._client, spec.name, spec.image, self._settings)
            details = await self._client.request(f"allocation/{allocation.alloc_id}", gone=True)
            started = placement.started_at(details.body)
            self._jobs[spec.name] = _Job(allocation.alloc_id, dict(spec.env), started)
            if spec.capabilities is None:  # a task's image, whose changes may be asked for
                await self._remember_files(spec)
        except BaseException:
            await unbroken(self._discard(spec.name))
            raise
        return spec.name

    async def _remember_files(self, spec: ContainerSpec) -> None:
        """Note the files of a new container's image."""
        files = self._files.pop(spec.image, None)
        if files is None:
            try:
                found = await listing(self, spec.name)
            except (FilesRefused, TooManyChanges):
                return  # an image without `find`, or a huge one: for tasks that need no changes
            files = await asyncio.to_thread(packed, found)
        self._files[spec.image] = files
        while len(self._files) > MOST_KNOWN_IMAGES:
            self._files.popitem(last=False)
        self._jobs[spec.name] = replace(self._jobs[spec.name], files=files)

    async def _discard(self, name: str) -> None:
        with contextlib.suppress(SandboxError):  # labelled, so that it is found later
            await self.remove(name)

    async def _alloc_id(self, container: str) -> str:
        if (job := self._jobs.get(container)) is not None:
            return job.alloc_id
        return (await placement.find(self._client, container)).alloc_id

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
        job = self._jobs.get(container)
        variables = {**(job.env if job else {}), **env}
        path = f"client/allocation/{await self._alloc_id(container)}/exec"
        async with self._client.socket(path, query()) as socket:
            stream = NomadExec(socket)
            try:
                await stream.write(entry(argv, user=user, env=variables))
                if not stdin:
                    await stream.write_eof()
                yield stream
            finally:
                stream.end()

    async def state(self, container: str) -> ContainerState:
        """See `ContainerHost`."""
        found = await placement.look(self._client, await self._alloc_id(container))
        return ContainerState(found.is_running, found.out_of_memory)

    async def trap_in(self, container: str) -> str:
        """See `ContainerHost`. Nomad does not say; a restart removes what it would be."""
        return ""

    async def restart(self, container: str) -> None:
        """See `ContainerHost`. A restart by Nomad would lose the files.

        The signal makes room for the program that does the rest, and checks it.
        """
        await self._signal(await self._alloc_id(container), RESET)
        argv, why = [*BASH, script(__package__, "reset.sh"), "reset"], ""
        for _ in range(RESET_TRIES):  # the signal may be late, and kill it, too
            done = await run_small(self, container, argv)
            if done.exit_code == 0:
                return
            why = f"exit code {done.exit_code}, {done.output.strip()[-200:]}"
        raise SandboxError(f"the processes of a slot could not be ended: {why}")

    async def changes(self, container: str, most: int) -> list[FileChange]:
        """See `ContainerHost`."""
        job = self._jobs.get(container)
        if job is None:
            raise SlotLost(f"the job {container} was not made by this worker")
        if not job.files:
            raise SandboxRejected(
                "changes of slots at Nomad are found by GNU find: install findutils in the image"
            )
        if not job.started:
            raise SandboxError(f"Nomad does not say when the job {container} has started")
        try:
            async with asyncio.timeout(LIST_S):
                found = await listing(self, container)
        except TimeoutError as error:  # whoever grades asks a fresh container, too
            raise FilesRefused(f"a slot lists its files for more than {LIST_S:g} s") from error
        return await asyncio.to_thread(difference, found, job.files, job.started, most)

    async def commit(self, container: str, name: str, labels: Mapping[str, str]) -> HostedImage:
        """See `ContainerHost`. Always raises SandboxRejected."""
        _no_commit()

    async def remove(self, container: str) -> None:
        """See `ContainerHost`."""
        path = f"job/{quote(container, safe='')}"
        with contextlib.suppress(SlotLost):
            await self._client.request(path, "DELETE", params={"purge": "true"}, gone=True)
        self._jobs.pop(container, None)

    async def list(self, labels: Mapping[str, str]) -> list[SandboxInfo]:
        """See `ContainerHost`."""
        answer = await self._client.request("jobs", params={"prefix": PREFIX, "meta": "true"})
        found = []
        for stub in placement.rows(answer.body, "jobs"):
            meta = stub.get("Meta")
            if meta is None and not stub.get("Stop"):  # before Nomad 1.6
                meta = await self._meta(str(stub.get("ID")))
            ours = labels_of(meta)
            if ours and has_labels(ours, labels):
                submitted = stub.get("SubmitTime")
                created = submitted / SECOND_NS if isinstance(submitted, int) else 0.0
                found.append(SandboxInfo(str(stub.get("ID")), ours, created))
        return found

    async def _meta(self, job: str) -> Any:
        try:
            answer = await self._client.request(f"job/{quote(job, safe='')}", gone=True)
        except SlotLost:
            return None
        return answer.body.get("Meta") if isinstance(answer.body, Mapping) else None

    async def written(self, labels: Mapping[str, str]) -> dict[str, int]:
        """See `ContainerHost`. Nomad does not say; the driver limits it, see `storage_opt`."""
        return {}

    # --- images and networks ----------------------------------------------------------

    async def remove_image(self, name: str) -> None:
        """See `ContainerHost`. Nodes look after their images themselves."""

    async def list_images(self, labels: Mapping[str, str]) -> dict[str, Mapping[str, str]]:
        """See `ContainerHost`."""
        return {}

    async def network(self, name: str) -> str:
        """See `ContainerHost`. Raises SandboxRejected: the operator has named none."""
        if not name:
            raise SandboxRejected(
                "the task wants the network: make one in which containers do not reach each other "
                "on all nodes (docker network create --opt "
                "com.docker.network.bridge.enable_icc=false NAME) and set "
                "HERMES_QUEUE_NOMAD_NETWORK=NAME"
            )
        return name


def _no_commit() -> NoReturn:
    raise SandboxRejected(
        "Nomad makes no images of containers; use the backend docker for tasks that need that"
    )
