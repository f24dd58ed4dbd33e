"""Steps of image builds on this host, in slots of their own: a `StepRunner`."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from hermes_plugins.images.rootfs.fence import RootfsFence, RootfsOptions
from hermes_plugins.images.rootfs.host import MOST_OUTPUT_BYTES, RootfsHost
from hermes_plugins.images.rootfs.place import SlotPlace
from hermes_plugins.images.rootfs.slot import RootfsSlot
from hermes_plugins.images.steps import BuildStep, LayerStack, StepResult
from hermes_queue.cancellation import unbroken
from hermes_queue.errors import SandboxError, SandboxRejected
from hermes_queue.sandbox.base import ExecutionResult
from hermes_queue.sandbox.builds.hosts import BuildHosts
from hermes_queue.sandbox.builds.network import PROXY_VARIABLES
from hermes_queue.sandbox.builds.proxy import BuildProxy
from hermes_queue.sandbox.host import cgroups
from hermes_queue.sandbox.host import pip as pip_settings
from hermes_queue.sandbox.host.spawner import Spawners
from hermes_queue.sandbox.local.fence import Bind
from hermes_queue.sandbox.local.registry import record_slot
from hermes_queue.settings import LocalSandboxSettings

MEMORY_MB = 4096
MAX_PIDS = 4096
CERTIFICATES = "/dev/.certificates.crt"
"""Path inside of the worker's certificate authorities; /dev is no part of a layer."""
CERTIFICATE_VARIABLES = (
    *("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO"),
    *("NODE_EXTRA_CA_CERTS", "CARGO_HTTP_CAINFO"),
)


class RootfsSteps:
    """See `StepRunner`. Belongs to one event loop; `close` it."""

    def __init__(self, host: RootfsHost, settings: LocalSandboxSettings | None = None) -> None:
        self._host = host
        self._settings = settings or LocalSandboxSettings()
        self._spawners = Spawners(confined=True)

    @classmethod
    def of(cls, cache: Path) -> RootfsSteps:
        """With the settings of the environment, and files in this cache directory."""
        return cls(RootfsHost(cache))

    @property
    def host_id(self) -> int:
        """See `StepRunner`. Blocking, some milliseconds, at the first time."""
        return self._host.ids.host_id

    async def edit(
        self,
        stack: LayerStack,
        program: str,
        arguments: Sequence[str],
        *,
        stdin: IO[bytes] | None = None,
        stdout: IO[bytes] | None = None,
        timeout_s: float = 600.0,
    ) -> StepResult:
        """See `StepRunner`."""
        return await self._host.edit(
            stack, program, arguments, stdin=stdin, stdout=stdout, timeout_s=timeout_s
        )

    async def run(self, stack: LayerStack, step: BuildStep) -> StepResult:
        """See `StepRunner`."""
        ids = await asyncio.to_thread(lambda: self._host.ids)
        pip = await asyncio.to_thread(pip_settings.prepare, self._host.cache)
        path = await self._host.new_place()
        memory_mb = step.memory_mb or MEMORY_MB
        groups = cgroups.create(f"hermes-queue-{path.name}", memory_mb=memory_mb, max_pids=MAX_PIDS)
        options = RootfsOptions(
            layers=stack.lower,
            ids=ids,
            environment=step.env,
            workdir=step.workdir,
            binds=tuple(_binds(pip)) if step.network else (),
            groups=groups,
            limits=cgroups.process_limits(groups, memory_mb=memory_mb, max_pids=MAX_PIDS),
            upper=stack.upper,
        )
        fence = RootfsFence(path.name, self._host.tools, SlotPlace(path), options, self._spawners)
        slot = RootfsSlot(fence, path.with_suffix(".json"), remove=self._remove)
        try:
            await asyncio.to_thread(fence.directories.create, owner=ids.host_id)
            await fence.begin()
            pid, started = fence.init_pid, fence.init_started
            record_slot(path.parent, path.name, pid=pid, started=started, groups=groups)
            await slot.become(step.user)
            done = await (
                self._run_connected(slot, step, pip) if step.network else _run(slot, step)
            )
        except SandboxRejected as error:  # no such user: the Dockerfile's fault
            return StepResult(1, f"{error}\n".encode())
        except OSError as error:
            raise SandboxError(f"a step of a build could not be run: {error}") from error
        finally:
            await unbroken(slot.end())
        return StepResult(done.exit_code, done.stdout, done.timed_out)

    async def _run_connected(
        self, slot: RootfsSlot, step: BuildStep, pip: pip_settings.PipSettings
    ) -> ExecutionResult:
        own = dict(pip.environment)
        proxy = BuildProxy(BuildHosts.of(own, self._settings.build_hosts, public=True))
        listener = await slot.open_port()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            proxy.serve(listener)
            done = await _run(slot, step, _network_environment(own, url))
        finally:
            await proxy.close()
        lines = "".join(f"\nConnection refused by the worker: {text}" for text in proxy.refusals)
        return _with_end(done, lines.encode())

    async def _remove(self, path: Path) -> None:
        await asyncio.to_thread(self._host.discard, path)

    async def close(self) -> None:
        """Free what it has. Idempotent."""
        await self._spawners.close()
        await self._host.close()


async def _run(
    slot: RootfsSlot, step: BuildStep, network: dict[str, str] | None = None
) -> ExecutionResult:
    return await slot.run(
        step.argv,
        env={**(network or {}), **step.env},
        cwd=step.workdir,
        timeout_s=step.timeout_s,
        max_output_bytes=MOST_OUTPUT_BYTES,
        one_stream=True,
    )


def _with_end(done: ExecutionResult, text: bytes) -> ExecutionResult:
    return dataclasses.replace(done, stdout=done.stdout + text)


def _certificates() -> Path | None:
    """The file with the certificate authorities that this worker trusts, if there is one."""
    named = [os.environ.get(name) for name in CERTIFICATE_VARIABLES]
    default = ssl.get_default_verify_paths()
    for name in (*named, default.cafile, default.openssl_cafile):
        if name and Path(name).is_file():
            return Path(name).resolve()
    return None


def _binds(pip: pip_settings.PipSettings) -> list[Bind]:
    """Files of this host that programs of a build need to reach indexes."""
    found: list[Bind] = []
    certificates = _certificates()
    if certificates is not None:
        found.append((str(certificates), CERTIFICATES, False))
    for path in pip.readable:
        # Indexes in directories; files are certificates, which would hide those of the image.
        if path.is_dir() and not path.is_relative_to("/etc"):
            found.append((str(path), str(path), True))
    return found


def _network_environment(own: dict[str, str], proxy: str) -> dict[str, str]:
    """The worker's index settings, its certificates, and our proxy in place of its own."""
    ours = {*CERTIFICATE_VARIABLES, "SSL_CERT_DIR"}
    found = {
        name: value
        for name, value in own.items()
        if name not in ours and name.lower() not in PROXY_VARIABLES
    }
    if _certificates() is not None:
        found |= dict.fromkeys(CERTIFICATE_VARIABLES, CERTIFICATES)
    for name in PROXY_VARIABLES[:-1]:
        found |= {name: proxy, name.upper(): proxy}
    return {**found, "PIP_PROXY": proxy}
