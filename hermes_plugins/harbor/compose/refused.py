"""Keys of a compose file that no service here can have, and those that change nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_HOST = "no service gets rights on its host: remove the key"
_OWN_NETWORK = "all services of a task share one network of their own: remove the key"

REFUSED: Mapping[str, str] = {
    "privileged": _HOST,
    "cap_add": _HOST,
    "devices": _HOST,
    "device_cgroup_rules": _HOST,
    "security_opt": _HOST,
    "sysctls": _HOST,
    "cgroup": _HOST,
    "cgroup_parent": _HOST,
    "userns_mode": _HOST,
    "group_add": _HOST,
    "runtime": _HOST,
    "credential_spec": _HOST,
    "use_api_socket": _HOST,
    "gpus": "services have no GPU: remove the key",
    "pid": "services do not share processes: remove the key",
    "ipc": "services do not share memory: remove the key",
    "uts": "services do not share host names: remove the key",
    "network_mode": _OWN_NETWORK,
    "ports": "nothing is published on the host; services reach each other without: use `expose`",
    "extra_hosts": _OWN_NETWORK,
    "dns": _OWN_NETWORK,
    "external_links": _OWN_NETWORK,
    "mac_address": _OWN_NETWORK,
    "volumes_from": "name the volume in both services",
    "env_file": "write the variables into `environment`",
    "secrets": "write a test value into `environment`, or COPY a file into an image",
    "configs": "COPY the file into an image",
    "extends": "write the keys of the other service here",
    "profiles": "all services of a task run: remove the key, or the service",
    "develop": "remove the key",
    "provider": "a service is a container: remove the key",
    "post_start": "put it into the command",
    "pre_stop": "remove the key",
}
"""Of a service, each with what to do instead."""
ALLOWED_VALUES: Mapping[str, tuple[Any, ...]] = {
    "network_mode": ("bridge", "default"),
    "ipc": ("private", "none"),
    "cgroup": ("private",),
}
"""Values of refused keys that ask for what every service has anyway."""
WITHOUT_EFFECT = frozenset(
    "attach annotations container_name expose init labels logging platform pull_policy stdin_open "
    "stop_grace_period stop_signal tty".split()
)
"""Of a service: keys that change nothing of what a task can see."""
BUILD_REFUSED: Mapping[str, str] = {
    "dockerfile_inline": "write it into a Dockerfile, in a folder of its own",
    "additional_contexts": "COPY from the folder of the build alone",
    "secrets": REFUSED["secrets"],
    "ssh": "builds have no keys: remove the key",
    "entitlements": _HOST,
    "privileged": _HOST,
}
"""Of `build`: without them, another image would be built."""
TOP_REFUSED: Mapping[str, str] = {
    "include": "write the services of the other file here",
    "secrets": REFUSED["secrets"],
    "configs": REFUSED["configs"],
}
TOP_KNOWN = frozenset({"services", "volumes", "networks", "version", "name"})


def refusals(name: str, service: Mapping[str, Any]) -> Iterator[str]:
    """Yield why keys of a service cannot be had, each with its place and the fix."""
    for key, fix in REFUSED.items():
        value = service.get(key)
        if value and value not in ALLOWED_VALUES.get(key, ()):
            yield f"services.{name}.{key}: {fix}"
    if _replicas(service) != 1:
        yield f"services.{name}: a service is one container: remove `scale` and `deploy.replicas`"
    resources = _mapping(_mapping(service.get("deploy")).get("resources"))
    if _mapping(resources.get("reservations")).get("devices"):
        yield f"services.{name}.deploy.resources.reservations.devices: {REFUSED['gpus']}"


def top_refusals(document: Mapping[str, Any]) -> Iterator[str]:
    """The same of the file's other tables."""
    for key, fix in TOP_REFUSED.items():
        if document.get(key):
            yield f"{key}: {fix}"
    for key in ("volumes", "networks"):
        for name, table in _mapping(document.get(key)).items():
            table = _mapping(table)
            if table.get("external"):
                yield f"{key}.{name}.external: tasks share nothing with others: remove the key"
            if table.get("driver") not in (None, "local", "bridge", "default"):
                yield f"{key}.{name}.driver: remove the key"
            if table.get("driver_opts"):
                yield f"{key}.{name}.driver_opts: remove the key"
            if table.get("ipam"):
                yield f"{key}.{name}.ipam: addresses are chosen here: use names, remove the key"


def _replicas(service: Mapping[str, Any]) -> Any:
    scale = service.get("scale")
    return _mapping(service.get("deploy")).get("replicas", 1 if scale is None else scale)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
