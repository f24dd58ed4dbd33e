"""The section of the backend `docker`."""

from __future__ import annotations

from ipaddress import IPv4Network
from typing import Literal

from pydantic import Field, field_validator

from hermes_queue.settings.sandbox import HostList
from hermes_queue.settings.section import PREFIX, Section

HOST_NETWORK = "host"


class DockerSettings(Section, env_prefix=PREFIX + "DOCKER_"):
    """The backend `docker`: one container per slot, of Docker Engine or Podman."""

    host: str | None = None
    """Address of the engine: unix://PATH, tcp://HOST:PORT or ssh://HOST. Unset: `DOCKER_HOST`, else
    the first of the usual sockets that there is, Podman's included."""
    image: str = "python:3.11"
    """Image of slots whose tasks bring none. Needs bash, git, Python, coreutils and setpriv."""
    limits: Literal["required", "none"] = "required"
    """"required" refuses an engine that enforces no limits, as one without root on cgroup v1;
    "none" accepts it: a slot can then use up the machine."""
    cpus: float = Field(default=2.0, gt=0)
    """Cores of a slot, if its task names none."""
    memory_mb: int = Field(default=2048, ge=64)
    """Memory of a slot, swap included, if its task names none."""
    max_pids: int = Field(default=512, ge=16)
    """Processes of a slot."""
    shm_mb: int = Field(default=64, ge=1)
    """Size of /dev/shm in a slot; counts as memory."""
    disk_mb: int = Field(default=10_240, ge=0)
    """What a slot may write to its root file system if its task names no limit, looked at every
    half minute; a slot beyond it is ended. 0 = unlimited."""
    network: str = "hermes-queue"
    """Network of the engine for tasks whose slots may reach others; made if it does not exist."""
    services_subnet: str = "198.18.0.0/15"
    """Addresses (CIDR, /8 to /24) from which the network of a slot with services takes sixteen; no
    host that tasks must reach may have one of them. The default is reserved for such uses."""
    max_services: int = Field(default=8, ge=0, le=12)
    """Services that a task may have beside its box, each with limits of its own."""
    services_timeout_s: float = Field(default=300.0, gt=0)
    """Time limit for a slot's services to become ready."""
    build_network: str = ""
    """Network of image builds, e.g. "host". Empty: the engine's default."""
    runtime: str | None = None
    """OCI runtime by the engine's name for it, e.g. "runsc" or "kata". Unset: its default."""
    warm: bool = True
    """Whether the next container of an image is made while a job waits for a slot with it."""
    max_starting: int = Field(default=8, ge=1)
    """Containers that a worker makes at once."""
    start_timeout_s: float = Field(default=120.0, gt=0)
    """Time limit for the start of a container."""
    pull_timeout_s: float = Field(default=1800.0, gt=0)
    """Time limit for pulling an image."""
    reap_s: float = Field(default=30.0, gt=0)
    """Interval at which containers of dead workers of this host are removed."""
    build_hosts: HostList = ""
    """Comma-separated `host` or `host:port` that asset builds may reach besides pip's indexes."""

    @field_validator("services_subnet")
    @classmethod
    def _is_a_subnet(cls, value: str) -> str:
        if not 8 <= IPv4Network(value).prefixlen <= 24:
            raise ValueError(f"{value!r} must have a prefix of 8 to 24 bits")
        return value

    @field_validator("network")
    @classmethod
    def _is_no_hosts(cls, value: str) -> str:
        if value == HOST_NETWORK or value.startswith("container:"):
            raise ValueError(
                f"{value!r} would give slots the network of others, with all that listens there; "
                "name a network of the engine"
            )
        return value
