"""The job of one container: a batch job of one task, which runs once and never elsewhere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hermes_plugins.images.containers.host import ContainerSpec
from hermes_plugins.images.containers.scripts import WAIT
from hermes_plugins.nomad.settings import NomadSettings

PREFIX = "hermes-queue-"
"""Of the names of our jobs: the backend names its containers so."""
TASK = "slot"
"""Name of the group, too."""
LABEL = "hermes_queue_"
"""Prefix of our labels in a job's meta block."""
SECOND_NS = 10**9
NOFILE, NPROC = 65_536, 30_000
RESET, ALIVE = "SIGUSR2", "SIGUSR1"
"""Signals for the first process: kill all others; the worker lives."""
UNBLOCK = (
    "for f in /etc/passwd /etc/group; do "
    "[ -f $f ] && continue; [ -p $f ] && exec 9<>$f; rm -f $f; exec 9>&-; done"
)
"""Removes a pipe, on which every program that a node starts in the container would wait."""
FIRST = (
    "trap 'kill -9 -1; " + UNBLOCK + "' USR2; "
    "seen() {{ read -r heard _ </proc/uptime; heard=${{heard%.*}}; }}; seen; trap seen USR1; "
    "while :; do command eval 'sleep {idle_s} & pid=$!; wait $pid; kill $pid'; "
    "read -r now _ </proc/uptime; "
    "[ $((${{now%.*}} - heard)) -lt {idle_s} ] || exit 0; done 2>/dev/null"
)
"""What the first process of a container does. Each signal that it has a trap for ends its waiting,
not its sleep; it collects orphans. Root of the slot may kill, signal and replace what it likes,
`sleep` too: the container ends by the kernel's clock only, or from outside. See `WAIT`."""


def first_process(spec: ContainerSpec, settings: NomadSettings) -> list[str]:
    """The argv of a container's first process, which answers to our signals besides."""
    *shell, text = spec.command
    waits = FIRST.format(idle_s=settings.idle_timeout_s)
    return [*shell, text.removesuffix(WAIT) + waits]


def job_of(spec: ContainerSpec, settings: NomadSettings) -> dict[str, Any]:
    """The body of `POST /v1/jobs` (api-docs/json-jobs)."""
    resources = {
        "CPU": math.ceil(spec.cpus * settings.core_mhz),
        "MemoryMB": spec.memory_mb,
    }
    task = {
        "Name": TASK,
        "Driver": settings.driver,
        "Config": driver_config(spec, settings),
        "Resources": resources,
        "KillTimeout": SECOND_NS,
        "KillSignal": "SIGKILL",
        "LogConfig": {"MaxFiles": 1, "MaxFileSizeMB": 1},
        **({"User": spec.user} if spec.user else {}),
    }
    group = {
        "Name": TASK,
        "Count": 1,
        # A task that ended is a slot that is lost, and nothing takes its place.
        "RestartPolicy": {
            "Attempts": 0,
            "Mode": "fail",
            "Interval": 3600 * SECOND_NS,
            "Delay": SECOND_NS,
        },
        "ReschedulePolicy": {"Attempts": 0, "Unlimited": False},
        "EphemeralDisk": {"SizeMB": 20, "Sticky": False, "Migrate": False},
        "Tasks": [task],
    }
    job = {
        "ID": spec.name,
        "Name": spec.name,
        "Type": "batch",
        "Priority": settings.priority,
        "Datacenters": list(settings.datacenters),
        "Meta": {LABEL + name: value for name, value in spec.labels.items()},
        "Constraints": _constraints(settings.constraints),
        "TaskGroups": [group],
        **({"NodePool": settings.node_pool} if settings.node_pool else {}),
    }
    return {"Job": job}


def _constraints(wanted: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"LTarget": name, "RTarget": value, "Operand": "="} for name, value in wanted.items()]


def driver_config(spec: ContainerSpec, settings: NomadSettings) -> dict[str, Any]:
    """The task's `config` block, as the driver's documentation describes it."""
    capabilities = spec.capabilities
    if capabilities is not None and not settings.ptrace:
        capabilities = tuple(name for name in capabilities if name != "SYS_PTRACE")
    common = {
        "image": spec.image,
        "entrypoint": first_process(spec, settings),
        "network_mode": spec.network,
        "cap_drop": [] if capabilities is None else ["ALL"],
        "cap_add": [name.lower() for name in capabilities or ()],
        "cpu_hard_limit": True,
        "pids_limit": spec.pids,
        "image_pull_timeout": f"{math.ceil(settings.pull_timeout_s)}s",
    }
    own = _podman(spec) if settings.driver == "podman" else _docker(spec, settings)
    return common | own


def _docker(spec: ContainerSpec, settings: NomadSettings) -> dict[str, Any]:
    """Of the driver `docker`, which gives no swap beside the memory."""
    security = ["no-new-privileges"] if spec.no_new_privileges else []
    config: dict[str, Any] = {
        "shm_size": spec.shm_mb << 20,
        "ulimit": [{"nofile": f"{NOFILE}:{NOFILE}", "core": "0:0"}],
        "security_opt": security,
        "mount": [
            {
                "type": "bind",
                "source": mount.source,
                "target": mount.target,
                "readonly": not mount.writable,
            }
            for mount in spec.mounts
        ],
    }
    if settings.disk_mb:  # only then the engines' storage driver is known to be able to
        config["storage_opt"] = {"size": f"{spec.disk_mb or settings.disk_mb}M"}
    if settings.runtime:
        config["runtime"] = settings.runtime
    return config


def _podman(spec: ContainerSpec) -> dict[str, Any]:
    """Of the driver `podman`, which has no `security_opt`."""
    return {
        "shm_size": f"{spec.shm_mb}m",
        "memory_swap": f"{spec.memory_mb}m",
        "ulimit": [{"nofile": f"{NOFILE}:{NOFILE}", "nproc": f"{NPROC}:{NPROC}", "core": "0:0"}],
        "volumes": [
            f"{mount.source}:{mount.target}:{'rw' if mount.writable else 'ro'}"
            for mount in spec.mounts
        ],
    }


def labels_of(meta: Mapping[str, Any] | None) -> dict[str, str]:
    """Our labels in a job's meta block."""
    found = meta if isinstance(meta, Mapping) else {}
    return {
        str(name).removeprefix(LABEL): str(value)
        for name, value in found.items()
        if str(name).startswith(LABEL)
    }


def has_labels(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Whether all of the wanted ones are there."""
    return all(labels.get(name) == value for name, value in wanted.items())


def driver_says(events: Sequence[Any]) -> list[str]:
    """What a driver has reported of a task, oldest first (`TaskStates.slot.Events`)."""
    found = []
    for event in events:
        if not isinstance(event, Mapping):
            continue
        text = event.get("DisplayMessage") or event.get("Message") or event.get("DriverError")
        found.append(f"{event.get('Type', '')}: {text or ''}".strip(": "))
    return [each for each in found if each]
