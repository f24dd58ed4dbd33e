"""The services of one slot: started in order, waited for, ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from hermes_plugins.containers.host import ContainerHost
from hermes_plugins.containers.services.networks import ContainerNetworks
from hermes_plugins.images.containers.host import ContainerSpec, ContainerState
from hermes_plugins.images.containers.plan import PlannedService
from hermes_plugins.images.containers.process import run_small
from hermes_queue.cancellation import end_tasks
from hermes_queue.errors import EnvInfraError, SandboxError, SlotLost
from hermes_queue.sandbox.services import Readiness, ServiceHealthcheck

LOOK_S = 0.3
"""Between looks at a container that has to end."""
PROBE_S = 1.0
"""Longest pause between checks of a service that is still starting."""
PATIENCE_S = 20.0
"""Failures in this time after a start never count: many slots may be starting on the host."""
PROBE_LIMIT_S = 3600.0
"""Longer than services are waited for."""
STOP_GRACE_S = 5
"""For a service to write what it holds in memory, when it is restarted."""
SHOWN_CHARS = 1500

MakeService = Callable[[ContainerSpec], Awaitable[str]]
"""Makes a container that is known to the ledger; returns its id."""


@dataclass(slots=True)
class ServiceGroup:
    """What belongs to one slot beside its own container."""

    host: ContainerHost
    networks: ContainerNetworks
    network: str
    services: tuple[PlannedService, ...]
    specs: dict[str, ContainerSpec] = field(default_factory=dict)
    """Of each service, with its place in the network."""
    volumes: dict[str, str] = field(default_factory=dict)
    """The host's names of the volumes."""
    containers: dict[str, str] = field(default_factory=dict)
    """Ids, by the service's name."""
    slots: list[str] = field(default_factory=list)
    """Ids of slots that stand for services."""
    _events: dict[tuple[str, Readiness], asyncio.Event] = field(default_factory=dict)

    async def start(self, make: MakeService, timeout_s: float) -> None:
        """Make all services, and return when they are ready.

        Raises:
            EnvInfraError: one does not become ready; with the end of its output.
            SandboxError: the host failed.
        """
        await self._all(timeout_s, lambda planned: self._make(planned, make))

    async def restart(self, timeout_s: float) -> None:
        """End all processes of the services that still run, and start them again in order.

        Raises as `start`.
        """
        halted = set(await asyncio.gather(*map(self._halt, self.containers)))

        async def begin(planned: PlannedService) -> None:
            if planned.service.name in halted:
                await self.networks.begin(self.containers[planned.service.name])

        await self._all(timeout_s, begin)

    async def _all(
        self, timeout_s: float, begin: Callable[[PlannedService], Awaitable[None]]
    ) -> None:
        self._events.clear()
        try:
            async with asyncio.timeout(timeout_s), asyncio.TaskGroup() as tasks:
                for planned in self.services:
                    tasks.create_task(self._bring_up(planned, begin))
        except TimeoutError as error:
            late = [each.service.name for each in self.services if not self._is_up(each)]
            raise EnvInfraError(
                f"services {', '.join(late)} were not ready after {timeout_s:g} s: see to their "
                "healthchecks, or raise HERMES_QUEUE_DOCKER_SERVICES_TIMEOUT_S"
            ) from error
        except BaseExceptionGroup as group:
            raise _first(group) from group

    def _event(self, name: str, readiness: Readiness) -> asyncio.Event:
        return self._events.setdefault((name, readiness), asyncio.Event())

    def _is_up(self, planned: PlannedService) -> bool:
        return self._event(planned.service.name, "healthy").is_set()

    def _has_to_end(self, name: str) -> bool:
        """Whether another service waits for its end."""
        waits = (each for other in self.services for each in other.service.depends_on)
        return any(each.service == name and each.readiness == "completed" for each in waits)

    async def _bring_up(
        self, planned: PlannedService, begin: Callable[[PlannedService], Awaitable[None]]
    ) -> None:
        service = planned.service
        for needed in service.depends_on:
            await self._event(needed.service, needed.readiness).wait()
        await begin(planned)
        self._event(service.name, "started").set()
        container = self.containers[service.name]
        if self._has_to_end(service.name):
            await self._completed(service.name, container)
            self._event(service.name, "completed").set()
        elif service.healthcheck is not None:
            await self._healthy(service.name, container, service.healthcheck)
        else:
            await self._check_alive(service.name, container)
        self._event(service.name, "healthy").set()

    async def _make(self, planned: PlannedService, make: MakeService) -> None:
        name = planned.service.name
        self.containers[name] = await make(self.specs[name])

    async def _halt(self, name: str) -> str | None:
        """End a service; its name, unless it has ended by itself.

        Then it has done its work, and once more might undo that of others.

        Raises SlotLost: it was killed from outside.
        """
        container = self.containers[name]
        if not (state := await self.host.state(container)).running:
            check_not_killed(name, state)
            return None
        await self.networks.halt(container, STOP_GRACE_S)
        return name

    # --- readiness --------------------------------------------------------------------

    async def _completed(self, name: str, container: str) -> None:
        state = await self.host.state(container)
        while state.running:
            await asyncio.sleep(LOOK_S)
            state = await self.host.state(container)
        if state.exit_code:
            raise await self._failure(name, container, state.how_it_ended())

    async def _check_alive(self, name: str, container: str) -> None:
        state = await self.host.state(container)
        if not state.running and state.exit_code:
            raise await self._failure(name, container, state.how_it_ended())

    async def _healthy(self, name: str, container: str, check: ServiceHealthcheck) -> None:
        """Check as an engine would, but more often at first: nothing else can go on meanwhile.

        A check that takes longer than it may is a failure, and is waited for all the same: on a
        busy host, further ones beside it would take still longer.
        """
        starting_s = max(check.start_period_s + check.interval_s, PATIENCE_S)
        starting_ends = time.monotonic() + starting_s
        failures, pause_s = 0, min(check.interval_s, LOOK_S)
        probe: asyncio.Task[str] | None = None
        try:
            while True:
                probe = probe or asyncio.create_task(self._probe(name, container, check))
                await asyncio.wait({probe}, timeout=check.timeout_s)
                problem = f"took more than {check.timeout_s:g} s"
                if probe.done():
                    problem, probe = probe.result(), None
                if not problem:
                    return
                starting = time.monotonic() < starting_ends
                pause_s = min(check.interval_s, PROBE_S, 2 * pause_s)
                if not starting:
                    failures, pause_s = failures + 1, check.interval_s
                if failures >= check.retries:
                    why = f"is not healthy after {failures} checks, the last one: {problem}"
                    raise await self._failure(name, container, why)
                await asyncio.sleep(0 if probe else pause_s)
        finally:
            if probe is not None:
                await end_tasks(probe)

    async def _probe(self, name: str, container: str, check: ServiceHealthcheck) -> str:
        """Check once; what the check said if the service is not healthy, else ""."""
        user = self.specs[name].user
        try:
            result = await run_small(
                self.host, container, check.argv, user=user, timeout_s=PROBE_LIMIT_S
            )
            return "" if result.ok else _shown(result.output)
        except SlotLost:
            state = await self.host.state(container)
            why = f"{state.how_it_ended()} before it was healthy"
            raise await self._failure(name, container, why) from None
        except SandboxError as error:
            if not (await self.host.state(container)).running:
                raise await self._failure(name, container, "ended before it was healthy") from error
            raise

    async def _failure(self, name: str, container: str, why: str) -> EnvInfraError:
        """What to raise. Raises SlotLost: the service was killed from outside."""
        check_not_killed(name, await self.host.state(container))
        try:
            log = _shown(await self.networks.log_tail(container))
        except SandboxError:
            log = ""
        said = f"; its output ends with: {log}" if log else ""
        return EnvInfraError(f"service {name} {why}{said}")


def check_not_killed(name: str, state: ContainerState) -> None:
    """Raise SlotLost if somebody outside has ended a service: that is nobody's doing in it."""
    if state.was_killed:
        raise SlotLost(f"service {name} {state.how_it_ended()}")


def _shown(text: str) -> str:
    return text.strip()[-SHOWN_CHARS:] or "no output"


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The failure that came first: what follows from it was cancelled."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
