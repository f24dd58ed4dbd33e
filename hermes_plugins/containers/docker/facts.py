"""What an engine enforces, and what it lacks, as it says itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from hermes_plugins.containers.host import HostFacts
from hermes_plugins.containers.images.client import EngineClient, translated
from hermes_plugins.containers.settings import DockerSettings
from hermes_queue.errors import IsolationUnavailable
from hermes_queue.sandbox.offers import Condition

LIMITS = {"MemoryLimit": "memory", "PidsLimit": "processes", "CpuCfsQuota": "cores"}
"""Fields of `/info` that tell whether the kernel can limit something, and what."""


async def read_facts(client: EngineClient) -> HostFacts:
    """The facts of an open engine. Raises SandboxError."""
    with translated("asking the container engine for its state"):
        version = await client.json("version")
        info = await client.json("info")
    return facts_of(version or {}, info or {}, shares_files=client.is_local)


def facts_of(
    version: Mapping[str, Any], info: Mapping[str, Any], *, shares_files: bool
) -> HostFacts:
    """The facts in the engine's answers."""
    options = [str(each) for each in info.get("SecurityOptions") or ()]
    rootless = any("rootless" in each for each in options)
    parts = [str(each.get("Name", "")) for each in version.get("Components") or () if each]
    kind = "Podman" if any("podman" in part.lower() for part in parts) else "Docker Engine"
    lacks = [what for key, what in LIMITS.items() if info.get(key) is False]
    if rootless and str(info.get("CgroupVersion", "2")) == "1":
        # Podman says there that it limits memory, and ignores the limit.
        lacks = list(LIMITS.values())
    return HostFacts(
        name=f"{kind} {version.get('Version', '?')}",
        limits=tuple(lacks),
        shares_files=shares_files,
        remote=not shares_files,
        rootless=rootless,
        closes_streams=True,  # Podman at once, Docker Engine after two seconds
        private_networks=kind != "Podman",
    )


def check_limits(facts: HostFacts, settings: DockerSettings) -> str:
    """A warning about limits that are missing, or "". Raises IsolationUnavailable."""
    if not facts.limits:
        return ""
    what = f"{facts.name} cannot limit {', '.join(facts.limits)} of slots"
    if facts.rootless:
        what += " (rootless on cgroup v1, or without delegated controllers)"
    if settings.limits == "required":
        raise IsolationUnavailable(
            f"{what}: use an engine with root or cgroup v2, or accept that a slot can use up the "
            "machine with HERMES_QUEUE_DOCKER_LIMITS=none"
        )
    return what


async def conditions(settings: DockerSettings) -> AsyncIterator[Condition]:
    """See `Offer.check`."""
    client = EngineClient(settings.host)
    try:
        await client.open()
        facts = await read_facts(client)
        warning = check_limits(facts, settings)
        yield Condition("sandbox.docker", f"{facts.name} answers at {client.address}")
        if warning:
            yield Condition("sandbox.docker.limits", warning, "use root, or cgroup v2")
    finally:
        await client.close()
