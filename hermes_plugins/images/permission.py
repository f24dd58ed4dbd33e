"""What a task may have from this worker, as its operator allows in `ImageSettings`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

from hermes_plugins.images.settings import ImageSettings
from hermes_queue.errors import SandboxRejected
from hermes_queue.images.spec import Network

VARIABLE = "HERMES_QUEUE_IMAGES_"
DOCKER_HUB = "docker.io"
SCRATCH = "scratch"
"""The name of the empty image in FROM lines."""
MAX_NAME_CHARS = 500
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_NAME = re.compile(
    r"(?:(?P<host>(?:localhost|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+|[A-Za-z0-9-]+(?=:)|"
    r"\[[0-9A-Fa-f:]+\])(?::[0-9]{1,5})?)/)?"
    rf"(?P<path>{_PART}(?:/{_PART})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?"
    r"(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)


def full_name(reference: str) -> str:
    """The whole name of an image: `ubuntu` is `docker.io/library/ubuntu:latest`.

    Raises:
        SandboxRejected: it is not the name of an image.
    """
    found = _NAME.fullmatch(reference) if len(reference) <= MAX_NAME_CHARS else None
    if found is None:
        raise SandboxRejected(
            f"{reference[:200]!r} is not the name of an image such as ubuntu:24.04, "
            "ghcr.io/org/name:tag or name@sha256:<64 hex digits>"
        )
    host, path = found["host"] or DOCKER_HUB, found["path"]
    host = DOCKER_HUB if host in ("index.docker.io", "registry-1.docker.io") else host
    if host == DOCKER_HUB and "/" not in path:
        path = f"library/{path}"
    tag = found["tag"] or ("" if found["digest"] else "latest")
    return f"{host}/{path}" + (f":{tag}" if tag else "") + _after("@", found["digest"])


def short_name(reference: str) -> str:
    """A name as people write it: without Docker Hub's host, `library/` and without `:latest`."""
    name = full_name(reference)
    name = name.removeprefix(f"{DOCKER_HUB}/library/").removeprefix(f"{DOCKER_HUB}/")
    return name if "@" in name else name.removesuffix(":latest")


def substitute(reference: str, settings: ImageSettings) -> str | None:
    """The image that the operator uses in place of this one, or None."""
    wanted = full_name(reference)
    for name, other in settings.base_images.items():
        if full_name(name) == wanted:
            return other
    return None


def check_name(reference: str, settings: ImageSettings) -> None:
    """Refuse images that this worker may not use; the empty image is always allowed.

    A pattern is matched against the name as written, its short and its whole form, so that
    `ubuntu:*`, `alexgshaw/*` and `docker.io/alexgshaw/*` do what they say.

    Raises:
        SandboxRejected: says which setting allows it.
    """
    if reference == SCRATCH:
        return
    names = {reference, short_name(reference), full_name(reference)}
    if not any(fnmatchcase(name, each) for each in settings.allowed for name in names):
        allowed = list(settings.allowed)
        raise SandboxRejected(
            f"the task wants the image {reference}, and this worker allows {allowed}; to allow it, "
            f"set {VARIABLE}ALLOWED={json.dumps([*allowed, reference])}"
        )


def check_names(references: Iterable[str], settings: ImageSettings) -> None:
    """As `check_name`, for all FROM lines."""
    for reference in references:
        check_name(reference, settings)


def check_resources(
    settings: ImageSettings,
    *,
    cpus: float | None,
    memory_mb: int | None,
    disk_mb: int | None,
    network: Network,
) -> None:
    """Refuse a slot that wants more than this worker gives; None = the backend's default.

    Raises:
        SandboxRejected: says which settings allow it, all of them.
    """
    wanted = {"cores": cpus, "MB of memory": memory_mb, "MB of disk space": disk_mb}
    for what, amount in wanted.items():
        if amount is not None and not amount > 0:
            raise SandboxRejected(f"the task wants {amount} {what}: not above 0")
    refused = []
    if cpus is not None and not cpus <= settings.max_cpus:
        refused.append(
            f"the task wants {cpus:g} cores, and this worker gives at most {settings.max_cpus:g}; "
            f"to allow it, set {VARIABLE}MAX_CPUS={cpus:g}"
        )
    if memory_mb is not None and memory_mb > settings.max_memory_mb:
        refused.append(
            f"the task wants {memory_mb} MB of memory, and this worker gives at most "
            f"{settings.max_memory_mb} MB; to allow it, set {VARIABLE}MAX_MEMORY_MB={memory_mb}"
        )
    if disk_mb is not None and disk_mb > settings.max_disk_mb:
        refused.append(
            f"the task wants {disk_mb} MB of disk space, and this worker gives at most "
            f"{settings.max_disk_mb} MB; to allow it, set {VARIABLE}MAX_DISK_MB={disk_mb}"
        )
    if network == "open" and settings.network != "open":
        refused.append(
            "the task wants the network, and slots of this worker have none; to allow it, set "
            f"{VARIABLE}NETWORK=open"
        )
    if refused:
        raise SandboxRejected("; ".join(refused))


def _after(mark: str, text: str | None) -> str:
    return f"{mark}{text}" if text else ""
