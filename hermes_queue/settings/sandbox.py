"""Sections of the sandbox backends, and lists of hosts: `host` or `host:port`, with commas."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from hermes_queue.settings.section import PREFIX, Section

HOST_AND_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]{1,253})(?::([0-9]{1,5}))?")


def split_hosts(text: str) -> list[str]:
    """The hosts of a comma-separated list.

    Raises:
        ValueError: one is not `host` or `host:port`.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        match = HOST_AND_PORT.fullmatch(word)
        if match is None or not 0 < int(match.group(2) or 1) < 65536:
            raise ValueError(
                f"{word!r} is neither a host such as files.example.com nor host:port; "
                "give no scheme and no path"
            )
    return words


def _of_hosts(text: str) -> str:
    split_hosts(text)
    return text


HostList = Annotated[str, AfterValidator(_of_hosts)]
"""A setting with such a list."""


class LocalSandboxSettings(Section, env_prefix=PREFIX + "LOCAL_"):
    """The local backend: one bubblewrap per slot."""

    isolation: Literal["bwrap", "none"] = "bwrap"
    """"none" runs agent commands unfenced as the worker's user: only for trusted agents."""
    slots: int = Field(default=0, ge=0)
    """Slots of a worker, which limit its concurrent jobs; 0 = its concurrency."""
    memory_mb: int = Field(default=2048, ge=0)
    """Memory of a slot; 0 = unlimited."""
    max_pids: int = Field(default=512, ge=0)
    """Processes of a slot; 0 = unlimited."""
    reap_s: float = Field(default=30.0, gt=0)
    """Interval at which sandboxes of dead workers of this host are removed."""
    network: bool = False
    """Whether slots have the host's network, including its loopback. Asset builds never do."""
    first_uid: int = Field(default=0x7001_0000, ge=1000)
    """First of the host's uids as which slots run if the worker is root; each slot has its own."""
    uids: int = Field(default=65536, ge=0)
    """Number of these uids; a worker takes 256 at a time. 0 = its slots share uid 65534."""
    snapshot_max_mb: int = Field(default=256, ge=1)
    """Largest snapshot of a slot's files, from which another worker of this host continues a
    trajectory. A slot with more has no snapshot."""
    snapshots_mb: int = Field(default=8192, ge=0)
    """Disk space of all snapshots of this host, in the cache; 0 = none are made."""
    image_disk_mb: int = Field(default=10_240, ge=1)
    """Disk space for the files of a slot with an image, beside the image, if its task names none. A
    slot that takes more is ended."""
    build_hosts: HostList = ""
    """Comma-separated `host` or `host:port` that asset builds may reach besides pip's indexes, and
    builds of images besides public addresses."""


class ModalSettings(Section, env_prefix=PREFIX + "MODAL_"):
    """The Modal backend: the account's app, the fleet's creation rate, and the default profile.

    The fields from `image` on describe a profile; a YAML file may define further ones.
    """

    app: str = "hermes-queue"
    """Modal app of the sandboxes; created if it does not exist."""
    environment: str | None = None
    """Modal environment. Unset: the token's default."""
    profiles: Path | None = None
    """YAML file of profiles: name -> the settings below, in lower case; see docs/modal.md."""
    creates_per_s: float = Field(default=4.0, gt=0)
    """Sandboxes that the fleet creates per second; accounts are limited to about 5."""
    max_starting: int = Field(default=32, ge=1)
    """Sandboxes of the fleet that may be starting at once."""
    patience_s: float = Field(default=300.0, ge=0)
    """Time for which a job waits while Modal refuses sandboxes because of a quota; then it is
    handed back."""
    image: str = "python:3.11"
    """Registry name, or the id (im-...) of a Modal image. Needs bash and coreutils."""
    dockerfile: Path | None = None
    """Build the image from this file instead."""
    build_commands: tuple[str, ...] = ()
    """Shell commands run, in order, on top of the image or Dockerfile."""
    cpu: float = Field(default=2.0, gt=0)
    """Cores reserved per sandbox."""
    cpu_limit: float | None = Field(default=None, gt=0)
    """Upper limit of cores. Unset: the reserved cores."""
    memory_mb: int = Field(default=4096, ge=128)
    """Memory reserved per sandbox."""
    memory_limit_mb: int | None = Field(default=None, ge=128)
    """Upper limit of memory. Unset: enough for all slots, and at least the reserved memory."""
    gpu: str | None = None
    """Modal's name of a GPU, e.g. "A10G" or "H100:2"."""
    secrets: tuple[str, ...] = ()
    """Names of Modal secrets; their variables are visible to commands."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the sandbox."""
    volumes: dict[str, str] = Field(default_factory=dict)
    """Absolute path -> name of a Modal volume, mounted read-only."""
    region: str | None = None
    """Where sandboxes run. Unset: anywhere, which is cheaper."""
    network: Literal["blocked", "allowlist", "open"] = "blocked"
    """Network of slots. Assets are built in a sandbox with open network."""
    grading_network: Literal["blocked", "same"] = "blocked"
    """Network during grading. If it is more restricted than `network`, grading uses another
    sandbox."""
    allow_domains: tuple[str, ...] = ()
    """With network=allowlist: domains reachable by TLS on port 443."""
    allow_cidrs: tuple[str, ...] = ()
    """With network=allowlist: IPv4 ranges."""
    slots_per_sandbox: int = Field(default=10, ge=1, le=1000)
    """Trajectories that share a sandbox."""
    share_root: bool = False
    """Accept several slots in an image that cannot keep them apart (it has no setpriv)."""
    min_sandboxes: int = Field(default=0, ge=0)
    """Sandboxes kept running while the worker lives, even without work."""
    max_sandboxes: int = Field(default=0, ge=0)
    """Sandboxes per worker, without those about to be replaced. 0 = as many as its concurrency
    needs."""
    slot_memory_mb: int = Field(default=2048, ge=0)
    """Address space of each process in a slot; 0 = unlimited, so that one process can end the
    sandbox."""
    slot_pids: int = Field(default=512, ge=0)
    """Processes of a slot; 0 = unlimited."""
    snapshot_max_mb: int = Field(default=256, ge=1, le=10_000)
    """Size of one copy of a slot's files (see docs/resume.md); a slot with more has none."""
    start_timeout_s: float = Field(default=900.0, gt=0)
    """Time limit for the start of a sandbox, including its image."""
    lifetime_s: int = Field(default=14_400, ge=1, le=86_400)
    """Age at which Modal ends a sandbox."""
    lease_s: int = Field(default=3600, ge=1)
    """Remaining lifetime that leasing a slot requires: setup, agent and verify together."""
    idle_timeout_s: int = Field(default=150, ge=1)
    """Time after which Modal ends the sandbox of a dead worker; living workers touch theirs."""
    scale_down_s: float = Field(default=120.0, ge=0)
    """Time without a lease after which a sandbox is ended, down to `min_sandboxes`."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.lifetime_s <= self.lease_s:
            raise ValueError(f"lifetime_s={self.lifetime_s} must exceed lease_s={self.lease_s}")
        if self.max_sandboxes and self.max_sandboxes < self.min_sandboxes:
            raise ValueError("max_sandboxes is below min_sandboxes")
        if self.network != "allowlist" and (self.allow_domains or self.allow_cidrs):
            raise ValueError("allow_domains and allow_cidrs need network=allowlist")
        if self.network == "allowlist" and not (self.allow_domains or self.allow_cidrs):
            raise ValueError("network=allowlist needs allow_domains or allow_cidrs")
        slots_mb = self.slots_per_sandbox * self.slot_memory_mb
        if self.memory_limit_mb is not None and self.memory_most_mb < slots_mb:
            raise ValueError(
                f"slots_per_sandbox={self.slots_per_sandbox} times slot_memory_mb="
                f"{self.slot_memory_mb} is more than the sandbox may use: raise memory_limit_mb="
                f"{self.memory_limit_mb} to {slots_mb}, or lower slot_memory_mb to "
                f"{self.memory_most_mb // self.slots_per_sandbox}"
            )
        return self

    @property
    def memory_most_mb(self) -> int:
        """Memory that a sandbox may use."""
        limit = self.memory_limit_mb
        if limit is None:
            limit = self.slots_per_sandbox * self.slot_memory_mb
        return max(self.memory_mb, limit)


class SandboxSettings(Section, env_prefix=PREFIX + "SANDBOX_"):
    """The choice of a sandbox backend, and the reaper."""

    backend: str = "local"
    """local, modal, the name of a plugin, or `package.module:BACKEND`."""
    direct_urls: bool = False
    """Whether rows may require packages by URL or path (`name @ https://...`) instead of by
    version."""
    reap_s: float = Field(default=30.0, gt=0)
    """Interval at which one worker of the deployment looks for sandboxes of dead workers."""
    reap_grace_s: float = Field(default=40.0, ge=0)
    """Time for which a sandbox must have been without an owner before it is ended."""
