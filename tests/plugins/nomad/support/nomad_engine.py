"""Tasks of the Nomad-compatible server as real containers of an engine."""

from __future__ import annotations

import contextlib
import json
import resource
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from nomad_server import Allocation, NomadServer, RunningExec, TaskFailed

from hermes_plugins.containers.docker.engine import Engine
from hermes_plugins.containers.images.client import EngineClient
from hermes_plugins.containers.images.hosted import EngineImages
from hermes_plugins.containers.settings import DockerSettings
from hermes_queue.errors import SandboxError, TrajectoryFailure

CORE_MHZ = 2000
LABEL = "nomad-test-server"
KEYS = {
    "docker": {
        *("image", "entrypoint", "command", "args", "network_mode", "cap_add", "cap_drop"),
        *("cpu_hard_limit", "pids_limit", "image_pull_timeout", "shm_size", "ulimit", "mount"),
        *("security_opt", "storage_opt", "runtime", "work_dir"),
    },
    "podman": {
        *("image", "entrypoint", "command", "args", "network_mode", "cap_add", "cap_drop"),
        *("cpu_hard_limit", "pids_limit", "image_pull_timeout", "shm_size", "ulimit", "volumes"),
        *("memory_swap", "working_dir"),
    },
}
"""Of a driver's `config` block, of those that its documentation has."""
ALLOW_CAPS = {
    *("audit_write", "chown", "dac_override", "fowner", "fsetid", "kill", "mknod"),
    *("net_bind_service", "setfcap", "setgid", "setpcap", "setuid", "sys_chroot"),
}
"""Nomad's default."""


class EngineTasks:
    """See `TaskDriver`."""

    def __init__(self, name: str, address: str, directory: Path) -> None:
        self.name = name
        settings = DockerSettings(host=address)
        self.client = EngineClient(address)
        self._images = EngineImages(self.client, settings, cache=directory)
        self._engine = Engine(self.client, settings, self._images)
        self._directory = directory
        self.allow_caps = set(ALLOW_CAPS)

    async def start(self, alloc: Allocation, task: dict[str, Any]) -> str:
        config = task["Config"]
        if unknown := config.keys() - KEYS[self.name]:
            raise TaskFailed(f"failed to parse config: Invalid label: {', '.join(unknown)}")
        wanted = {name.lower() for name in config["cap_add"]}
        if refused := wanted - self.allow_caps:
            raise TaskFailed(
                f"driver does not allow the following capabilities: {', '.join(sorted(refused))}"
            )
        try:
            if await self._images.find(config["image"]) is None:
                raise TaskFailed(
                    f"Failed to pull `{config['image']}`: Error response from daemon: pull access "
                    "denied, repository does not exist or may require 'docker login'"
                )
            body = self._body(alloc, task, config)
            made = await self.client.json("containers/create", "POST", data=body)
            await self.client.json(f"containers/{made['Id']}/start", "POST", data={})
        except TaskFailed:
            raise
        except Exception as error:
            raise TaskFailed(f"Failed to create container: {error}") from error
        return str(made["Id"])

    def _body(
        self, alloc: Allocation, task: dict[str, Any], config: dict[str, Any]
    ) -> dict[str, Any]:
        resources = task["Resources"]
        place = self._directory / "allocs" / alloc.alloc_id
        names = ("alloc", "local", "secrets")
        for name in names:
            (place / name).mkdir(parents=True)
        mounts = [(str(place / name), f"/{name}", False) for name in names]
        for each in config.get("mount") or ():
            assert each["type"] == "bind"
            mounts.append((each["source"], each["target"], each["readonly"]))
        for text in config.get("volumes") or ():
            source, target, mode = text.split(":")
            mounts.append((source, target, mode == "ro"))
        variables = {
            "NOMAD_ALLOC_ID": alloc.alloc_id,
            "NOMAD_JOB_ID": alloc.job_id,
            "NOMAD_SECRETS_DIR": "/secrets",
            "NOMAD_META_hermes_queue_worker": "x",
        }
        shm = config["shm_size"]
        shm_bytes = shm if isinstance(shm, int) else int(shm.removesuffix("m")) << 20
        # Podman's own would be kept.
        options = f"rw,nosuid,nodev,noexec,mode=1777,size={shm_bytes}"
        podman = self.name == "podman"
        return {
            "Image": config["image"],
            "Entrypoint": config["entrypoint"],
            "Cmd": config.get("args", []),
            "User": task.get("User", ""),
            "Env": [f"{name}={value}" for name, value in variables.items()],
            "Labels": {LABEL: alloc.job_id},
            "Healthcheck": {"Test": ["NONE"]},
            "HostConfig": {
                "NetworkMode": config["network_mode"],
                "NanoCpus": int(resources["CPU"] / CORE_MHZ * 1e9),
                "Memory": resources["MemoryMB"] << 20,
                "MemorySwap": resources["MemoryMB"] << 20,
                "PidsLimit": config["pids_limit"],
                **({"Tmpfs": {"/dev/shm": options}} if podman else {"ShmSize": shm_bytes}),
                "Ulimits": _ulimits(config["ulimit"]),
                "CapAdd": [name.upper() for name in config["cap_add"]],
                "CapDrop": config["cap_drop"],
                "SecurityOpt": config.get("security_opt", []),
                "Mounts": [
                    {"Type": "bind", "Source": source, "Target": target, "ReadOnly": read_only}
                    for source, target, read_only in mounts
                ],
                "LogConfig": {"Type": "none", "Config": {}},
            },
        }

    @asynccontextmanager
    async def exec(self, container: str, command: list[str]) -> AsyncIterator[RunningExec]:
        async with self._engine.exec(container, command, user="", env={}, stdin=True) as program:
            yield program

    async def signal(self, container: str, signal: str) -> None:
        await self.client.json(f"containers/{container}/kill", "POST", params={"signal": signal})

    async def wait(self, container: str) -> tuple[int, bool]:
        found = await self.client.json(
            f"containers/{container}/wait", "POST", data={}, timeout_s=1e6
        )
        try:
            state = await self._engine.state(container)
        except SandboxError:
            return int(found["StatusCode"]), False
        return int(found["StatusCode"]), state.out_of_memory

    async def stop(self, container: str) -> None:
        with contextlib.suppress(TrajectoryFailure):
            await self._engine.remove(container)

    async def clean(self) -> None:
        """Remove all containers."""
        filters = json.dumps({"label": [LABEL]})
        found = await self.client.json("containers/json", params={"all": "1", "filters": filters})
        for each in found or ():
            await self.stop(each["Id"])


def _ulimits(config: list[dict[str, str]]) -> list[dict[str, Any]]:
    """Never above what this host may set: real nodes may raise their limits."""
    kinds = {
        "nofile": resource.RLIMIT_NOFILE,
        "nproc": resource.RLIMIT_NPROC,
        "core": resource.RLIMIT_CORE,
    }
    limits = []
    for name, text in config[0].items():
        hard = resource.getrlimit(kinds[name])[1]
        soft, most = (int(part) for part in text.split(":"))
        if hard != resource.RLIM_INFINITY:
            soft, most = min(soft, hard), min(most, hard)
        limits.append({"Name": name, "Soft": soft, "Hard": most})
    return limits


@asynccontextmanager
async def engine_server(name: str, address: str, **options: Any) -> AsyncIterator[NomadServer]:
    """A Nomad-compatible server over an engine; at its end no container is left."""
    directory = Path(tempfile.mkdtemp(prefix="hq-nomad-", dir="/tmp"))
    directory.chmod(0o755)
    tasks = EngineTasks(name, address, directory)
    await tasks.client.open()
    try:
        yield NomadServer(tasks, **options)
    finally:
        await tasks.clean()
        await tasks.client.close()
        shutil.rmtree(directory, ignore_errors=True)
