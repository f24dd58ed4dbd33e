"""What a cluster offers to slots, as it says itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from hermes_plugins.containers.host import HostFacts
from hermes_plugins.nomad.client import NomadClient
from hermes_plugins.nomad.placement import rows
from hermes_plugins.nomad.settings import NomadSettings
from hermes_queue.errors import ConfigurationError, SandboxRejected
from hermes_queue.sandbox.offers import Condition

ASSET_ADVICE = (
    "nodes of Nomad do not have it: give all of them this worker's cache directory at the same "
    "path, and set HERMES_QUEUE_NOMAD_SHARED_CACHE=true; or use tasks with an image, or another "
    "backend"
)


async def read_facts(client: NomadClient, settings: NomadSettings) -> HostFacts:
    """The facts of a cluster.

    Raises:
        ConfigurationError: no node can hold slots.
        SandboxError: it does not answer, or refuses our token.
    """
    version = await _version(client)
    await client.request("jobs", params={"prefix": "hermes-queue-", "per_page": "1"})
    await _check_nodes(client, settings)
    return HostFacts(
        name=f"Nomad {version} (driver {settings.driver})",
        shares_files=settings.shared_cache,
        closes_streams=True,  # as the engines below the drivers do
        remote=True,
        commits=False,
        outside_changes=False,
        ptrace=settings.ptrace,
        asset_advice=ASSET_ADVICE,
        image_setting="HERMES_QUEUE_NOMAD_IMAGE",
    )


async def _version(client: NomadClient) -> str:
    """That of the agent, which only some tokens may see."""
    try:
        answer = await client.request("agent/self")
    except SandboxRejected:
        return "of unknown version"
    found = answer.body if isinstance(answer.body, Mapping) else {}
    config = found.get("config")
    version = config.get("Version") if isinstance(config, Mapping) else None
    text = version.get("Version") if isinstance(version, Mapping) else version
    return str(text or "of unknown version")[:50]


async def _check_nodes(client: NomadClient, settings: NomadSettings) -> None:
    """Refuse a cluster none of whose nodes has the driver, as far as the token may see nodes."""
    try:
        answer = await client.request("nodes")
    except SandboxRejected:
        return
    nodes = [node for node in rows(answer.body, "nodes") if _may_serve(node, settings)]
    if any(_has_driver(node, settings.driver) for node in nodes):
        return
    seen = sorted({name for node in nodes for name in _drivers(node)})
    raise ConfigurationError(
        f"no node of Nomad at {client.address} can hold slots: {len(nodes)} are ready in "
        f"HERMES_QUEUE_NOMAD_DATACENTERS={','.join(settings.datacenters)} and none has a healthy "
        f"driver {settings.driver!r} (HERMES_QUEUE_NOMAD_DRIVER; there are: "
        f"{', '.join(seen) or 'none'})"
    )


def _may_serve(node: Mapping[str, Any], settings: NomadSettings) -> bool:
    place = str(node.get("Datacenter") or "")
    in_pool = settings.node_pool in (None, "all", node.get("NodePool"))
    is_ready = node.get("Status") == "ready" and node.get("SchedulingEligibility") != "ineligible"
    return is_ready and in_pool and any(fnmatchcase(place, each) for each in settings.datacenters)


def _drivers(node: Mapping[str, Any]) -> Mapping[str, Any]:
    found = node.get("Drivers")
    return found if isinstance(found, Mapping) else {}


def _has_driver(node: Mapping[str, Any], driver: str) -> bool:
    state = _drivers(node).get(driver)
    return isinstance(state, Mapping) and bool(state.get("Detected") and state.get("Healthy"))


async def conditions(settings: NomadSettings) -> AsyncIterator[Condition]:
    """See `Offer.check`."""
    client = NomadClient(settings)
    try:
        await client.open()
        facts = await read_facts(client, settings)
        yield Condition("sandbox.nomad", f"{facts.name} answers at {client.address}")
        if client.address.startswith("http://") and "127.0.0.1" not in client.address:
            yield Condition(
                "sandbox.nomad.tls",
                "the token and all commands travel without encryption",
                "use https://",
            )
    finally:
        await client.close()
