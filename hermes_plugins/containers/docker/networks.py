"""Networks and volumes of an engine, for slots with services."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from hermes_plugins.containers.images.client import EngineClient, translated
from hermes_plugins.containers.services.networks import NETWORK_PREFIX, SubnetTaken
from hermes_plugins.images.containers.host import ContainerSpec
from hermes_queue.errors import SandboxError

LABEL = "hermes-queue."
"""Prefix of our labels at the engine."""
BRIDGE = "com.docker.network.bridge."
LOG_BYTES = 64 << 10
LOG_LINES = "50"
REMOVAL_TRIES, REMOVAL_PAUSE_S = 5, 0.2
"""An engine frees a container's place in a network a little after it has removed the container."""


class EngineNetworks:
    """See `ContainerNetworks`."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client

    async def make_network(
        self, name: str, labels: Mapping[str, str], *, subnet: str, is_open: bool
    ) -> None:
        """See `ContainerNetworks`."""
        body = {
            "Name": name,
            "Driver": "bridge",
            "Internal": not is_open,
            "CheckDuplicate": True,
            "Labels": prefixed(labels),
            "IPAM": {"Driver": "default", "Config": [{"Subnet": subnet}]},
            # Without an address in it, the host cannot be reached from an internal network.
            "Options": {} if is_open else {f"{BRIDGE}inhibit_ipv4": "true"},
        }
        with translated("making a network", making=True):
            try:
                await self._client.json("networks/create", "POST", data=body)
            except Exception as error:
                if getattr(error, "status", None) in (400, 403, 409, 500) and _overlaps(error):
                    raise SubnetTaken(f"{subnet}: {error}") from error
                raise

    async def make_volume(self, name: str, labels: Mapping[str, str]) -> None:
        """See `ContainerNetworks`."""
        body = {"Name": name, "Driver": "local", "Labels": prefixed(labels)}
        with translated("making a volume", making=True):
            await self._client.json("volumes/create", "POST", data=body)

    async def remove_network(self, name: str) -> None:
        """See `ContainerNetworks`."""
        await self._remove(f"networks/{quote(name)}")

    async def remove_volume(self, name: str) -> None:
        """See `ContainerNetworks`."""
        await self._remove(f"volumes/{quote(name)}")

    async def _remove(self, path: str) -> None:
        for attempt in range(REMOVAL_TRIES):
            try:
                with translated(f"removing {path}"):
                    await self._delete(path)
                return
            except SandboxError:
                if attempt + 1 == REMOVAL_TRIES:
                    raise
                await asyncio.sleep(REMOVAL_PAUSE_S * (attempt + 1))

    async def _delete(self, path: str) -> None:
        try:
            await self._client.json(path, "DELETE")
        except Exception as error:
            if getattr(error, "status", None) != 404:
                raise

    async def list_networks(self, labels: Mapping[str, str]) -> dict[str, Mapping[str, str]]:
        """See `ContainerNetworks`."""
        with translated("listing networks"):
            found = await self._client.json("networks", params=filters(labels))
        return {str(each["Name"]): unprefixed(each.get("Labels") or {}) for each in found or ()}

    async def list_volumes(self, labels: Mapping[str, str]) -> dict[str, Mapping[str, str]]:
        """See `ContainerNetworks`."""
        with translated("listing volumes"):
            found = await self._client.json("volumes", params=filters(labels))
        volumes = (found or {}).get("Volumes") or ()
        return {str(each["Name"]): unprefixed(each.get("Labels") or {}) for each in volumes}

    async def network_of(self, container: str) -> str | None:
        """See `ContainerNetworks`."""
        with translated("looking at a container", gone=True):
            found = await self._client.json(f"containers/{container}/json")
        names = (found.get("NetworkSettings") or {}).get("Networks") or {}
        own = (name for name in names if str(name).startswith(NETWORK_PREFIX))
        return next(own, None)

    async def halt(self, container: str, grace_s: int) -> None:
        """See `ContainerNetworks`."""
        with translated("halting a service", gone=True):
            params = {"t": str(grace_s)}
            await self._client.json(f"containers/{container}/stop", "POST", params=params)

    async def begin(self, container: str) -> None:
        """See `ContainerNetworks`."""
        with translated("starting a service", gone=True):
            await self._client.json(f"containers/{container}/start", "POST", data={})

    async def log_tail(self, container: str) -> str:
        """See `ContainerNetworks`."""
        params = {"stdout": "1", "stderr": "1", "tail": LOG_LINES}
        data = b""
        with translated("reading a service's output", gone=True):
            async with self._client.request(
                f"containers/{container}/logs", params=params, timeout_s=20.0
            ) as response:
                async for chunk in response.content.iter_chunked(1 << 14):
                    data = (data + chunk)[: 4 * LOG_BYTES]
                    if len(data) == 4 * LOG_BYTES:
                        break
        return _unframed(data)[-LOG_BYTES:].decode(errors="replace")


def _overlaps(error: Exception) -> bool:
    return "overlap" in str(getattr(error, "message", "") or error).lower()


def _unframed(data: bytes) -> bytes:
    """Output without the engine's frames: a stream's number, three zeros, the length."""
    text, at = b"", 0
    while at + 8 <= len(data):
        length = int.from_bytes(data[at + 4 : at + 8], "big")
        text += data[at + 8 : at + 8 + length]
        at += 8 + length
    return text


def prefixed(labels: Mapping[str, str]) -> dict[str, str]:
    """Our labels as the engine has them."""
    return {LABEL + name: value for name, value in labels.items()}


def unprefixed(labels: Mapping[str, str]) -> dict[str, str]:
    """Our own ones among the engine's labels."""
    return {
        name.removeprefix(LABEL): value for name, value in labels.items() if name.startswith(LABEL)
    }


def filters(labels: Mapping[str, str], **more: str) -> dict[str, str]:
    """A query for what has these labels."""
    words = [f"{LABEL}{name}={value}" for name, value in labels.items()]
    return {"filters": json.dumps({"label": words}), **more}


def link_body(spec: ContainerSpec) -> dict[str, Any]:
    """The part of a request that puts a container into the network of a slot; {} without one."""
    if (link := spec.link) is None:
        return {}
    endpoint = {"IPAMConfig": {"IPv4Address": link.address}, "Aliases": list(link.names)}
    return {
        "Hostname": link.names[0],
        "NetworkingConfig": {"EndpointsConfig": {link.network: endpoint}},
    }


def link_host_config(spec: ContainerSpec) -> dict[str, Any]:
    """The same of the part for the host: network, names, volumes, output."""
    if (link := spec.link) is None:
        return {}
    found: dict[str, Any] = {
        "NetworkMode": link.network,
        "ExtraHosts": [f"{name}:{address}" for name, address in link.hosts],
        "Tmpfs": {path: "rw,nosuid,nodev,size=256m" for path in spec.tmpfs},
    }
    if not link.is_open:
        # An engine would pass on to the host's resolver what it does not know itself.
        found |= {"Dns": ["127.0.0.1"], "DnsOptions": ["timeout:1", "attempts:1"]}
    if spec.keeps_log:
        found["LogConfig"] = {
            "Type": "json-file",
            "Config": {"max-size": "1m", "max-file": "1"},
        }
    return found


def volume_mounts(spec: ContainerSpec) -> list[dict[str, Any]]:
    """Volumes as the engine's mounts."""
    return [
        {
            "Type": "volume",
            "Source": volume.name,
            "Target": volume.target,
            "ReadOnly": volume.read_only,
        }
        for volume in spec.volumes
    ]
