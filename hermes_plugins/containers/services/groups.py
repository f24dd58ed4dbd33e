"""The services of one backend's slots: made before a slot's container, ended after it."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
import uuid
from collections.abc import Awaitable, Callable, Mapping
from ipaddress import IPv4Network

from hermes_plugins.containers.box import ContainerBox
from hermes_plugins.containers.host import ContainerHost, ContainerOptions
from hermes_plugins.containers.services.group import ServiceGroup, check_not_killed
from hermes_plugins.containers.services.networks import (
    NETWORK_PREFIX,
    ContainerNetworks,
    SubnetTaken,
)
from hermes_plugins.containers.services.plan import linked
from hermes_plugins.containers.stock import Stock
from hermes_plugins.images.containers.host import ContainerSpec, NetworkLink
from hermes_plugins.images.containers.plan import ContainerPlan, PlannedService
from hermes_queue.cancellation import unbroken
from hermes_queue.errors import (
    EnvInfraError,
    SandboxError,
    SandboxRejected,
    SandboxUnavailable,
    SlotLost,
)
from hermes_queue.sandbox.base import Slot
from hermes_queue.sandbox.services import ServiceEnded

logger = logging.getLogger(__name__)

MAIN = "main"
"""The name of a slot's own container among its services."""
PREFIX_BITS, FIRST_ADDRESS = 28, 2
"""Sixteen addresses; those before are the network's own and its host's."""
SUBNET_TRIES = 20
TAKEN_RETRY_S = 30.0

MakeServiceContainer = Callable[[ContainerSpec, Mapping[str, str]], Awaitable[str]]
"""Makes a container with these labels beside ours, known to the ledger."""


class ServiceGroups:
    """Gives slots their containers, with services where a task has some."""

    def __init__(
        self,
        host: ContainerHost,
        networks: ContainerNetworks | None,
        stock: Stock,
        make: MakeServiceContainer,
        settings: ContainerOptions,
    ) -> None:
        self._host = host
        self._networks = networks
        self._stock = stock
        self._make = make
        self._settings = settings
        self._boxes: dict[str, ContainerBox] = {}
        """Services that stand as slots, by the ids of these."""
        self._left: set[tuple[str, tuple[str, ...]]] = set()
        """Networks and volumes that could not be removed yet."""

    @property
    def networks(self) -> ContainerNetworks | None:
        """None: the host makes no networks for slots."""
        return self._networks

    @property
    def are_possible(self) -> bool:
        """Whether slots can have services here."""
        return self._networks is not None and self._host.facts.private_networks

    async def take(
        self, plan: ContainerPlan, labels: Mapping[str, str], every: Mapping[str, str]
    ) -> ContainerBox:
        """A slot's container; its services are ready then.

        Args:
            plan: of the slot's container.
            labels: of the containers.
            every: labels of networks and volumes.

        Raises:
            EnvInfraError: a service does not become ready.
            SandboxError: the host failed.
        """
        if not plan.services:
            return await self._stock.take(plan, labels)
        if self._networks is None:
            raise SandboxRejected("this host of containers makes no networks for services")
        group = ServiceGroup(
            self._host, self._networks, f"{NETWORK_PREFIX}{uuid.uuid4().hex}", plan.services
        )
        try:
            own = await self._lay_out(group, plan, {**every, **labels})
            await group.start(
                lambda spec: self._begin(spec, labels), self._settings.services_timeout_s
            )
            box = await self._stock.new(dataclasses.replace(plan, spec=own), labels)
        except BaseException:
            await unbroken(self._end(group))
            raise
        box.group = group
        return box

    async def _begin(self, spec: ContainerSpec, labels: Mapping[str, str]) -> str:
        async with self._stock.starting:
            return await self._make(spec, labels)

    async def _lay_out(
        self, group: ServiceGroup, plan: ContainerPlan, labels: Mapping[str, str]
    ) -> ContainerSpec:
        """Make network and volumes; the slot's own container with its place in them."""
        networks, is_open = group.networks, plan.wanted.network == "open"
        subnet = await self._network(group, labels, is_open=is_open)
        volumes = [*plan.wanted.volumes]
        volumes += [each for planned in plan.services for each in planned.service.volumes]
        for name in sorted({volume.name for volume in volumes}):
            group.volumes[name] = f"{group.network}-{len(group.volumes)}"
            await networks.make_volume(group.volumes[name], labels)
        named = [(MAIN, *plan.wanted.aliases), *map(_names, plan.services)]
        places = {
            names[0]: str(subnet[FIRST_ADDRESS + number]) for number, names in enumerate(named)
        }
        hosts = tuple((name, places[names[0]]) for names in named for name in names)

        def link(names: tuple[str, ...]) -> NetworkLink:
            return NetworkLink(group.network, places[names[0]], names, hosts, is_open)

        for planned, names in zip(plan.services, named[1:], strict=True):
            group.specs[names[0]] = linked(
                planned.plan.spec, link(names), planned.service.volumes, group.volumes
            )
        return linked(plan.spec, link(named[0]), plan.wanted.volumes, group.volumes)

    async def _network(
        self, group: ServiceGroup, labels: Mapping[str, str], *, is_open: bool
    ) -> IPv4Network:
        whole = IPv4Network(self._settings.services_subnet)
        count = 1 << (PREFIX_BITS - whole.prefixlen)
        for _ in range(SUBNET_TRIES):
            number = random.randrange(count)  # noqa: S311 - no secret: the next free one would do
            first = int(whole.network_address) + (number << (32 - PREFIX_BITS))
            subnet = IPv4Network((first, PREFIX_BITS))
            try:
                await group.networks.make_network(
                    group.network, labels, subnet=str(subnet), is_open=is_open
                )
            except SubnetTaken:
                continue
            return subnet
        raise SandboxUnavailable(
            f"{SUBNET_TRIES} subnets of {whole} are taken: remove networks of the engine that "
            "nothing uses, or set HERMES_QUEUE_DOCKER_SERVICES_SUBNET to a larger one",
            retry_after_s=TAKEN_RETRY_S,
        )

    # --- the end ----------------------------------------------------------------------

    async def end(self, box: ContainerBox, *, was_spent: bool = False) -> None:
        """End a slot's container, unless that was done, and its services. Never raises."""
        if not was_spent:
            await self._stock.drop(box)
        if (group := box.group) is not None:
            box.group = None
            await self._end(group)

    async def _end(self, group: ServiceGroup) -> None:
        for slot_id in group.slots:
            if (box := self._boxes.pop(slot_id, None)) is not None:
                box.slot_id, box.spent = "", True
        await asyncio.gather(*(self._stock.end(each) for each in group.containers.values()))
        await self._remove(group.networks, group.network, tuple(group.volumes.values()))

    async def _remove(
        self, networks: ContainerNetworks, network: str, volumes: tuple[str, ...]
    ) -> None:
        """Remove a network and its volumes; if that is not possible now, later. Never raises."""
        try:
            for volume in volumes:
                await networks.remove_volume(volume)
            await networks.remove_network(network)
        except SandboxError as error:
            self._left.add((network, volumes))
            extra = {"action": "sandbox_left"}
            logger.warning("network %s is removed later: %s", network, error, extra=extra)
        else:
            self._left.discard((network, volumes))

    async def tend(self) -> None:
        """Remove what was left. Never raises."""
        if self._networks is not None:
            for network, volumes in list(self._left):
                await self._remove(self._networks, network, volumes)

    # --- while a slot is leased -------------------------------------------------------

    async def restart(self, box: ContainerBox) -> None:
        """End all processes of a slot's services, keep their files, and start them again.

        One that is not ready then has files that its clients have spoilt: for them to see.

        Raises SandboxError: the host failed.
        """
        if box.group is None:
            return
        try:
            await box.group.restart(self._settings.services_timeout_s)
        except EnvInfraError as error:
            extra = {"action": "service_broken"}
            logger.warning("slot %s: %s", box.slot_id, error, extra=extra)

    async def slot(self, slot: Slot, box: ContainerBox, name: str) -> Slot:
        """See `ServiceSlots.service`."""
        group = box.group
        planned = {each.service.name: each for each in group.services} if group else {}
        if group is None or name not in planned:
            known = ", ".join(planned) or "none"
            raise SandboxRejected(f"the slot has no service {name!r}; it has: {known}")
        plan, state = planned[name].plan, await self._host.state(group.containers[name])
        if not state.running:
            check_not_killed(name, state)
            raise ServiceEnded(f"service {name} {state.how_it_ended()}")
        own = ContainerBox(self._host, group.containers[name], plan)
        service = own.slot(slot.trajectory_id, plan.wanted)
        self._boxes[service.slot_id] = own
        group.slots.append(service.slot_id)
        return service

    def box(self, slot_id: str) -> ContainerBox | None:
        """The service that stands as this slot."""
        return self._boxes.get(slot_id)

    async def remove_sandbox(self, container: str) -> None:
        """Remove any worker's container, and the network of its slot with the last one.

        Raises SandboxError.
        """
        network = None
        if self._networks is not None:
            try:
                network = await self._networks.network_of(container)
            except SlotLost:
                return
        await self._host.remove(container)
        if network is not None and self._networks is not None:
            try:
                await self._networks.remove_network(network)
            except SandboxError:  # another container of the slot is in it, which is ended next
                logger.debug("network %s has more containers", network)


def _names(planned: PlannedService) -> tuple[str, ...]:
    return (planned.service.name, *planned.service.aliases)
