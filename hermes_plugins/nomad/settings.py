"""The section of the backend `nomad`."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, SecretStr, field_validator

from hermes_plugins.containers.settings import HOST_NETWORK
from hermes_queue.settings.sandbox import HostList
from hermes_queue.settings.section import PREFIX, Section

UNFIT_NETWORKS = (HOST_NETWORK, "none")


class NomadSettings(Section, env_prefix=PREFIX + "NOMAD_"):
    """The backend `nomad`: one batch job with one container per slot, on the nodes of a cluster."""

    address: str | None = None
    """http://, https:// or unix:// address of an agent. Unset: `NOMAD_ADDR`, else
    http://127.0.0.1:4646."""
    token: SecretStr | None = None
    """ACL token. Unset: `NOMAD_TOKEN`."""
    namespace: str | None = None
    """Unset: `NOMAD_NAMESPACE`, else that of the token."""
    region: str | None = None
    """Unset: `NOMAD_REGION`, else that of the agent."""
    datacenters: tuple[str, ...] = ("*",)
    """Datacenters for the slots, with wildcards. Nomad before 1.5 knows no wildcards."""
    node_pool: str | None = None
    """Pool of nodes for the slots, for Nomad 1.6 and later. Unset: the namespace's default."""
    constraints: dict[str, str] = Field(default_factory=dict)
    """Attributes that nodes must have, e.g. {"${node.class}": "sandbox"}."""
    priority: int = Field(default=50, ge=1, le=100)
    """Of the jobs, as Nomad counts it: higher ones are placed first."""
    driver: Literal["docker", "podman"] = "docker"
    """Task driver. Drivers that isolate nothing, such as raw_exec, are not supported."""
    ca_file: Path | None = None
    """PEM file of the authority that signed the agent's certificate. Unset: `NOMAD_CACERT`."""
    client_cert: Path | None = None
    """PEM file of our certificate, where agents want one. Unset: `NOMAD_CLIENT_CERT`."""
    client_key: Path | None = None
    """PEM file of its key. Unset: `NOMAD_CLIENT_KEY`."""
    tls_server_name: str | None = None
    """Name in the agent's certificate, e.g. "server.global.nomad". Unset:
    `NOMAD_TLS_SERVER_NAME`, else the address's."""
    image: str = "python:3.11"
    """Image of slots whose tasks bring none. Needs bash, git, Python, coreutils and setpriv."""
    images_file: Path | None = None
    """What `docker image inspect` prints of images that the nodes have, for those that no registry
    has. All others are looked up in their registry."""
    build_engine: str | None = None
    """Address of the container engine that builds tasks' folders with a Dockerfile, e.g.
    unix:///run/docker.sock. Unset: such tasks are refused."""
    push: str | None = None
    """Repository for the images that it builds, from which nodes pull them, e.g.
    "registry.example.com/agents/tasks". Unset: the nodes use the engine that builds."""
    cpus: float = Field(default=2.0, gt=0)
    """Cores of a slot, if its task names none."""
    core_mhz: int = Field(default=2000, ge=1)
    """What counts as one core: Nomad shares out megahertz. See `cpu.frequency` of the nodes."""
    memory_mb: int = Field(default=2048, ge=64)
    """Memory of a slot, swap included, if its task names none."""
    max_pids: int = Field(default=512, ge=16)
    """Processes of a slot."""
    shm_mb: int = Field(default=64, ge=1)
    """Size of /dev/shm in a slot; counts as memory."""
    disk_mb: int = Field(default=0, ge=0)
    """Size of a slot's root file system if its task names none, where the driver `docker` can limit
    it (`storage_opt`). 0 = it cannot, and that of no task is limited."""
    network: str = ""
    """Network of the engines on the nodes for tasks whose slots may reach others. Empty: such
    tasks are refused."""
    runtime: str | None = None
    """OCI runtime by its name at the engines, e.g. "runsc"; only with the driver `docker`. Unset:
    their default."""
    ptrace: bool = False
    """Whether root of slots without an image of their own may have SYS_PTRACE, to see all that
    their commands run: add it to `allow_caps` of the driver on all nodes."""
    shared_cache: bool = False
    """Whether all nodes have this worker's cache directory at the same path, and their driver
    allows volumes: needed for tasks with assets."""
    warm: bool = True
    """Whether the next container of an image is made while a job waits for a slot with it."""
    max_starting: int = Field(default=8, ge=1)
    """Containers that a worker makes at once."""
    placement_timeout_s: float = Field(default=120.0, gt=0)
    """Time for which a job waits while no node has room; then it is handed back."""
    start_timeout_s: float = Field(default=120.0, gt=0)
    """Time limit for the start of a placed container, its image being there."""
    pull_timeout_s: float = Field(default=1800.0, gt=0)
    """Time limit for the start if a node has to pull the image."""
    idle_timeout_s: int = Field(default=180, ge=60)
    """A container ends by itself after this time without a sign of life from its worker."""
    reap_s: float = Field(default=30.0, gt=0)
    """Interval at which containers of dead workers of this host are removed."""
    # Nomad has no services of tasks.
    max_services: ClassVar[int] = 0
    services_timeout_s: ClassVar[float] = 0.0
    services_subnet: ClassVar[str] = ""
    build_hosts: HostList = ""
    """Comma-separated `host` or `host:port` that asset builds may reach besides pip's indexes."""

    @field_validator("network")
    @classmethod
    def _is_no_hosts(cls, value: str) -> str:
        if value in UNFIT_NETWORKS or value.partition(":")[0] in ("container", "task"):
            raise ValueError(
                f"{value!r} is no network of slots: name a network of the engines on the nodes, in "
                "which containers do not reach each other"
            )
        return value

    @field_validator("address")
    @classmethod
    def _is_address(cls, value: str | None) -> str | None:
        if value is not None and value.partition("://")[0] not in ("http", "https", "unix"):
            raise ValueError("must start with http://, https:// or unix://")
        return value
