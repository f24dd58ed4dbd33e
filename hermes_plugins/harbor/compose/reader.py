"""A task's compose file, checked, as the services of a slot.

The file is laid over what the format has already: the service `main` is the task's own box, and
all others are started beside it, healthy before the agent begins.

Named volumes live as long as the services; folders of the host are refused. The format mounts
folders of the host at the logs' places of the task's own box. These are made there anyway; other
services do not get them.
"""

from __future__ import annotations

import os
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import ValidationError

from hermes_plugins.harbor.compose.document import MAX_FILE_BYTES, read_document
from hermes_plugins.harbor.compose.models import ComposeHealthcheck, ComposeService
from hermes_plugins.harbor.compose.refused import (
    BUILD_REFUSED,
    TOP_KNOWN,
    WITHOUT_EFFECT,
    refusals,
    top_refusals,
)
from hermes_plugins.harbor.config import MAIN, EnvironmentTable, Healthcheck, unknown_keys
from hermes_plugins.harbor.settings import HarborSettings
from hermes_queue.errors import EnvBug
from hermes_queue.images.spec import ImageSpec
from hermes_queue.sandbox.base import SlotSpec
from hermes_queue.sandbox.services import (
    Readiness,
    ServiceDependency,
    ServiceHealthcheck,
    ServiceSpec,
    ServiceVolume,
    check_services,
)

MAIN_IMAGE = "hermes-queue/main"
"""Stands for the image of the task's own box."""
CONTEXT_MARK = "/hermes-queue-context"
"""Stands for the folder of the file: where that is on the worker is nothing that boxes need."""
MAX_SERVICES, MAX_NOTES, MAX_SHOWN_CHARS = 50, 50, 3000
_LOGS = ("verifier", "agent")
_READINESS: Mapping[str, Readiness] = {
    "service_started": "started",
    "service_healthy": "healthy",
    "service_completed_successfully": "completed",
}
_IDLE = (("sleep", "infinity"), ("tail", "-f", "/dev/null"), ("cat",), ("bash",), ("sh",))
"""Commands of `main` that only keep it alive."""

_LOGS_MARK = "/hermes-queue-logs"
"""Where the format's variables for folders of logs lead on the host; there is no such folder."""
_OF_ALL = re.compile(r"/|/(?:proc|sys|dev)(?:/.*)?")
"""Places that no container can have something else at."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_PROGRAMS = re.compile(r"/|/(?:usr|bin|sbin|lib\w*|etc|proc|sys|dev|logs|tests|solution)(?:/.*)?")
"""Places of a task's own box where volumes would hide what the agent has changed."""


@dataclass(frozen=True, slots=True)
class ComposeTask:
    """A compose file, read."""

    name: str
    """Of the file."""
    table: EnvironmentTable
    """`[environment]` of the task, completed by the service `main`."""
    context: Path | None
    """The folder from which the image of `main` is built, if the file names one."""
    user: str | None
    """Who runs commands in `main`."""
    program: tuple[tuple[str, ...] | None, tuple[str, ...] | None]
    """ENTRYPOINT and command of `main`; None = the image's, and none."""
    aliases: tuple[str, ...]
    """Further names of `main`."""
    volumes: tuple[ServiceVolume, ...]
    """Of `main`."""
    services: tuple[ServiceSpec, ...]
    """All others. `MAIN_IMAGE` stands for the image of `main`."""
    notes: tuple[str, ...] = ()
    """What was left out."""

    def services_for(self, main: ImageSpec) -> tuple[ServiceSpec, ...]:
        """The services beside a box with this image."""
        return tuple(
            replace(each, image=main) if each.image.reference == MAIN_IMAGE else each
            for each in self.services
        )


def read_compose(path: Path, table: EnvironmentTable) -> ComposeTask:
    """Read a task's compose file. Blocking.

    Args:
        path: the file, in the folder that is the build context.
        table: `[environment]` of the task.

    Raises:
        EnvBug: it cannot be used here; names every key with its fix.
    """
    with path.open("rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    return _Reader(path, table).read(read_document(data, _variables(table), path.name))


def _variables(table: EnvironmentTable) -> dict[str, str]:
    """The format's variables, and those of the worker that tasks may read."""
    known = {name: os.environ[name] for name in HarborSettings().env if name in os.environ}
    for name in _LOGS:
        known[f"HOST_{name.upper()}_LOGS_PATH"] = f"{_LOGS_MARK}/{name}"
        known[f"ENV_{name.upper()}_LOGS_PATH"] = f"/logs/{name}"
    return known | {
        "HOST_ARTIFACTS_PATH": f"{_LOGS_MARK}/artifacts",
        "ENV_ARTIFACTS_PATH": "/logs/artifacts",
        "CONTEXT_DIR": CONTEXT_MARK,
        "MAIN_IMAGE_NAME": MAIN_IMAGE,
        "PREBUILT_IMAGE_NAME": table.docker_image or MAIN_IMAGE,
        "TEST_DIR": "/tests",
        "CPUS": f"{table.cpus or 1:g}",
        "MEMORY": f"{table.memory_mb or 2048}M",
    }


class _Reader:
    def __init__(self, path: Path, table: EnvironmentTable) -> None:
        self._path = path
        self._table = table
        self._problems: list[str] = []
        self._notes: list[str] = []

    def read(self, document: Mapping[str, Any]) -> ComposeTask:
        services = self._services(document)
        main = services.pop(MAIN, ComposeService())
        self._check_networks({MAIN: main, **services})
        declared = document.get("volumes") or {}
        own = self._mounts(MAIN, main, declared)
        if own.tmpfs:
            self._notes.append(f"services.{MAIN}: a tmpfs is a folder of the container here")
        made = tuple(self._service(name, each, declared) for name, each in services.items())
        context, table = self._main(main)
        self._check_order({MAIN: main, **services}, made)
        if self._problems:
            raise EnvBug(f"{self._path}: {'; '.join(self._problems)[:MAX_SHOWN_CHARS]}")
        return ComposeTask(
            self._path.name,
            table,
            context,
            (main.user or "").partition(":")[0] or None,
            (main.entrypoint, None if _is_idle(main.command) else main.command),
            _aliases(MAIN, main),
            tuple(own.volumes),
            made,
            tuple(f"{self._path.name}: {note[:200]}" for note in self._notes[:MAX_NOTES]),
        )

    def _services(self, document: Mapping[str, Any]) -> dict[str, ComposeService]:
        self._problems += top_refusals(document)
        for key in document.keys() - TOP_KNOWN:
            if not key.startswith("x-"):
                self._notes.append(f"unknown key {key}")
        tables = document.get("services")
        if not isinstance(tables, Mapping) or len(tables) > MAX_SERVICES:
            raise EnvBug(f"{self._path}: services: is no table of 1 to {MAX_SERVICES} services")
        found = {}
        for name, table in tables.items():
            table = {} if table is None else table
            if not isinstance(table, Mapping):
                raise EnvBug(f"{self._path}: services.{name[:100]}: is no table")
            self._problems += refusals(name, table)
            try:
                found[name] = ComposeService.model_validate(table)
            except ValidationError as error:
                first = error.errors(include_url=False, include_input=False)[0]
                key = ".".join(map(str, first["loc"]))
                self._problems.append(f"services.{name}.{key}: {first['msg']}")
                continue
            known = (*WITHOUT_EFFECT, *(key for key in table if key.startswith("x-")))
            unknown = (key for key in unknown_keys(found[name]) if key not in known)
            self._notes += (f"key services.{name}.{key} has no effect here" for key in unknown)
        return found

    def _check_networks(self, services: Mapping[str, ComposeService]) -> None:
        """Refuse networks that keep services apart: here they share one."""
        groups = {name: set(each.networks) or {"default"} for name, each in services.items()}
        for name, service in services.items():
            for network, attachment in service.networks.items():
                if attachment.ipv4_address or attachment.ipv6_address:
                    self._problems.append(
                        f"services.{name}.networks.{network}: addresses are chosen here: use names"
                    )
        for one, other in combinations(groups, 2):
            if not groups[one] & groups[other]:
                self._problems.append(
                    f"services.{other}.networks: {one} and {other} are kept apart, and all services"
                    " of a task share one network here: give them a network together"
                )

    def _check_order(
        self, services: Mapping[str, ComposeService], made: tuple[ServiceSpec, ...]
    ) -> None:
        healthy = {each.name for each in made if each.healthcheck}
        for name, service in services.items():
            for other, needed in service.depends_on.items():
                if other not in services:
                    self._problems.append(f"services.{name}.depends_on: there is no {other!r}")
                elif needed.condition == "service_healthy" and other not in {*healthy, MAIN}:
                    self._problems.append(
                        f"services.{other}.healthcheck: is missing, and {name} waits for it"
                    )
        aliases = _aliases(MAIN, services[MAIN])
        try:
            check_services(SlotSpec(services=made, aliases=(MAIN, *aliases)), MAX_SERVICES)
        except ValueError as error:
            self._problems.append(f"services: {error}")

    def _mounts(self, name: str, service: ComposeService, declared: Any) -> _Mounted:
        try:
            found = _mounted(service.volumes, place=f"services.{name}", is_main=name == MAIN)
            found.tmpfs += _temporary(service.tmpfs, f"services.{name}")
        except ValueError as error:
            self._problems.append(str(error))
            return _Mounted()
        for volume in found.volumes:
            if not isinstance(declared, Mapping) or volume.name not in declared:
                self._problems.append(f"volumes.{volume.name}: is used, and not declared")
        self._notes += found.notes
        return found

    def _context(self, name: str, service: ComposeService) -> Path | None:
        """The folder from which the image of a service is built."""
        if (build := service.build) is None:
            return None
        place, root = f"services.{name}.build", self._path.parent
        named = build.context
        if named == CONTEXT_MARK or named.startswith(f"{CONTEXT_MARK}/"):
            named = named.removeprefix(CONTEXT_MARK).lstrip("/") or "."
        context = Path(os.path.normpath(root / named))
        if context != root and root not in context.parents:
            self._problems.append(f"{place}.context: {build.context!r} is outside of {root.name}/")
        elif not (context / "Dockerfile").is_file():
            self._problems.append(f"{place}.context: {build.context!r} has no Dockerfile")
        if os.path.normpath(build.dockerfile) != "Dockerfile":
            self._problems.append(
                f"{place}.dockerfile: must be called Dockerfile, in a folder of its own: move it"
            )
        for key in BUILD_REFUSED.keys() & (build.model_extra or {}).keys():
            self._problems.append(f"{place}.{key}: {BUILD_REFUSED[key]}")
        if build.args:
            self._problems.append(
                f"{place}.args: write them into the Dockerfile, as ARG NAME=value"
            )
        if build.target:
            self._problems.append(f"{place}.target: the last stage is built: remove the others")
        return context

    def _main(self, main: ComposeService) -> tuple[Path | None, EnvironmentTable]:
        context = self._context(MAIN, main)
        named = main.image if main.image != MAIN_IMAGE and context is None else None
        check = self._healthcheck(MAIN, main.healthcheck)
        found = {
            "docker_image": named,
            "cpus": main.cores,
            "memory_mb": main.memory_mb,
            "workdir": main.working_dir,
            "healthcheck": _shell_check(check) if check else None,
        }
        update: dict[str, Any] = {key: value for key, value in found.items() if value is not None}
        if context is not None:
            update["docker_image"] = None
        update["env"] = {**self._table.env, **main.environment}
        return context, self._table.model_copy(update=update)

    def _service(self, name: str, service: ComposeService, declared: Any) -> ServiceSpec:
        context, found = self._context(name, service), self._mounts(name, service, declared)
        if context is None and service.image is None:
            self._problems.append(f"services.{name}: has neither build nor image")
        return ServiceSpec(
            name=name,
            image=ImageSpec(
                reference=service.image if context is None else None,
                context=str(context) if context else None,
                build_timeout_s=self._table.build_timeout_s,
            ),
            aliases=_aliases(name, service),
            entrypoint=service.entrypoint,
            command=service.command,
            env=tuple(sorted(service.environment.items())),
            healthcheck=self._healthcheck(name, service.healthcheck),
            depends_on=tuple(self._dependencies(name, service)),
            user=service.user,
            workdir=service.working_dir,
            cpus=service.cores,
            memory_mb=service.memory_mb,
            volumes=tuple(found.volumes),
            tmpfs=tuple(found.tmpfs),
        )

    def _dependencies(self, name: str, service: ComposeService) -> Iterator[ServiceDependency]:
        for other, needed in service.depends_on.items():
            if other != MAIN:
                yield ServiceDependency(other, _READINESS[needed.condition])
            elif needed.condition != "service_started":
                self._problems.append(
                    f"services.{name}.depends_on.{MAIN}: the task's own box starts last: remove it"
                )

    def _healthcheck(
        self, name: str, check: ComposeHealthcheck | None
    ) -> ServiceHealthcheck | None:
        try:
            argv = check.argv if check else ()
        except ValueError as error:
            self._problems.append(f"services.{name}.healthcheck.test: {error}")
            return None
        if check is None or not argv:
            return None
        return ServiceHealthcheck(
            argv, check.interval or 1.0, check.timeout or 30.0, check.start_period, check.retries
        )


def _aliases(name: str, service: ComposeService) -> tuple[str, ...]:
    named = [service.hostname, service.container_name]
    named += [alias for each in service.networks.values() for alias in each.aliases]
    return tuple(sorted({alias for alias in named if alias and alias != name}))


def _is_idle(command: tuple[str, ...] | None) -> bool:
    """Whether a command of `main` does nothing."""
    if not command:
        return True
    if len(command) == 3 and command[1] in ("-c", "-lc") and command[0].endswith("sh"):
        command = tuple(command[2].removeprefix("exec ").split())
    return command in _IDLE


def _shell_check(check: ServiceHealthcheck) -> Healthcheck:
    """The healthcheck of `main`, which is a command line in the format's own table."""
    return Healthcheck(
        command=shlex.join(check.argv),
        interval_s=check.interval_s,
        timeout_s=check.timeout_s,
        start_period_s=check.start_period_s,
        retries=check.retries,
    )


@dataclass(slots=True)
class _Mounted:
    """What a service mounts."""

    volumes: list[ServiceVolume] = field(default_factory=list)
    tmpfs: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def _mounted(entries: tuple[Any, ...], *, place: str, is_main: bool) -> _Mounted:
    """Read `volumes` of a service. Raises ValueError: an entry cannot be had; with the fix."""
    found = _Mounted()
    for number, entry in enumerate(entries):
        where = f"{place}.volumes.{number}"
        table = _long(entry) if isinstance(entry, str) else entry
        if not isinstance(table, Mapping):
            raise ValueError(f"{where}: is neither a text nor a table")
        _add(found, table, where, is_main=is_main)
    return found


def _add(found: _Mounted, table: Mapping[str, Any], where: str, *, is_main: bool) -> None:
    source, target = str(table.get("source") or ""), _target(table.get("target"), where)
    kind = table.get("type") or ("volume" if _NAME.fullmatch(source) or not source else "bind")
    if source.startswith(_LOGS_MARK):
        if not is_main:
            found.notes.append(f"{where}: folders of logs are only in the task's own box")
    elif kind == "tmpfs":
        found.tmpfs.append(target)
    elif kind == "volume" and not source:
        found.notes.append(f"{where}: a volume without a name is a folder of the container here")
    elif kind == "volume" and _NAME.fullmatch(source):
        if is_main and _PROGRAMS.fullmatch(target):
            raise ValueError(f"{where}: the agent's box cannot have a volume at {target}: move it")
        found.volumes.append(ServiceVolume(source, target, table.get("read_only") is True))
    else:
        raise ValueError(
            f"{where}: folders and files of the host are not mounted: COPY them into an image, or "
            "use a named volume"
        )


def _long(entry: str) -> dict[str, Any]:
    """SOURCE:TARGET:OPTIONS as a table."""
    parts = entry.split(":")
    if len(parts) == 1:
        return {"target": parts[0]}
    options = parts[2].split(",") if len(parts) > 2 else []
    return {"source": parts[0], "target": parts[1], "read_only": "ro" in options}


def _target(value: Any, where: str) -> str:
    path = PurePosixPath(str(value or ""))
    if not path.is_absolute() or ".." in path.parts or "\0" in str(path):
        raise ValueError(f"{where}: {str(value)[:100]!r} is no absolute path in the container")
    target = posixpath.normpath(f"/{str(path).strip('/')}")
    if _OF_ALL.fullmatch(target):
        raise ValueError(f"{where}: nothing can be mounted at {target[:100]}: move it to a folder")
    return target


def _temporary(entries: tuple[str, ...], place: str) -> tuple[str, ...]:
    """Paths of `tmpfs`, without options. Raises ValueError."""
    return tuple(_target(entry.partition(":")[0], f"{place}.tmpfs") for entry in entries)
