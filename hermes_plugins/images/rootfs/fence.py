"""The isolation of one slot with an image: a bubblewrap over its layers, which a spawner enters.

Root inside has root's rights over the files, users and processes inside, with the capabilities
below, and no others: mounts and limits belong to an outer user namespace (`UserNamespaces`), which
no process inside can enter, and which allows no further user namespaces. Layers are shared by all
slots and never written: overlayfs keeps a slot's changes in a directory of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hermes_plugins.images.rootfs import boot_process
from hermes_plugins.images.rootfs.place import SlotPlace
from hermes_queue.sandbox.host.bubblewrap import INIT_PLACE
from hermes_queue.sandbox.host.cgroups import ControlGroups, ProcessLimit
from hermes_queue.sandbox.host.execution import memory_file
from hermes_queue.sandbox.host.isolation import FencePrograms
from hermes_queue.sandbox.host.spawned import SpawnedBubblewrap
from hermes_queue.sandbox.host.spawner import Confinement, SlotAccount, Spawners
from hermes_queue.sandbox.host.user_namespaces import IdMap, UserNamespaces
from hermes_queue.sandbox.local.fence import Bind

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CAPABILITIES = {
    **{"chown": 0, "dac_override": 1, "fowner": 3, "fsetid": 4, "kill": 5, "setgid": 6},
    **{"setuid": 7, "setpcap": 8, "net_bind_service": 10, "sys_chroot": 18, "setfcap": 31},
}
"""Capabilities of root inside, see capabilities(7): those that Docker gives, without the ones for
raw sockets, device nodes and the audit log."""
KEPT = sum(1 << number for number in CAPABILITIES.values())
POINTS = ("/proc", "/dev", "/sys")
PROCESSORS = ("/sys/devices/system/cpu", "/sys/devices/system/node")
"""What programs read to count processors; the rest of /sys is empty."""


@dataclass(frozen=True, slots=True)
class RootfsOptions:
    """Equipment of a slot with an image."""

    layers: tuple[Path, ...]
    """Lowest first."""
    ids: IdMap
    environment: Mapping[str, str]
    """Of commands, beside PATH and HOME."""
    workdir: str = "/"
    binds: tuple[Bind, ...] = ()
    network: bool = False
    """Whether it has the host's network, and not a loopback of its own."""
    groups: ControlGroups | None = None
    limits: tuple[ProcessLimit, ...] = ()
    upper: Path | None = None
    """Where changes go; None = the place's own directory."""

    @property
    def uid(self) -> int:
        """Host uid of root inside."""
        return self.ids.host_id


class RootfsFence(SpawnedBubblewrap):
    """Holds the commands of one slot with an image together."""

    def __init__(
        self,
        slot_id: str,
        tools: FencePrograms,
        place: SlotPlace,
        options: RootfsOptions,
        spawners: Spawners,
    ) -> None:
        super().__init__(f"slot {slot_id}", tools, groups=options.groups, drop=())
        self.slot_id = slot_id
        self.directories = place
        self.options = options
        self.account: SlotAccount | None = SlotAccount(0, 0, (), "/root", options.uid)
        """Whom commands run as, unless they say otherwise."""
        self._spawners = spawners
        self._users: UserNamespaces | None = None
        self._request = -1

    async def begin(self) -> None:
        """Start it. Raises SandboxError or OSError."""
        self._users = users = await asyncio.to_thread(UserNamespaces, self.options.ids)
        self._request = memory_file(b"")
        try:
            await self.start(
                self._layout(users),
                environment={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"},
                pass_fds=(users.outer, users.nested, self._request),
            )
            with self.namespaces() as namespaces:
                confinement = Confinement(
                    namespaces=namespaces,
                    uid=self.options.uid if self.options.ids.drop else None,
                    groups=self.options.groups,
                    limits=self.options.limits,
                    capabilities=KEPT,
                )
                self._spawner = await self._spawners.make(confinement)
        finally:
            users.close()
            os.close(self._request)

    def _layout(self, users: UserNamespaces) -> list[str]:
        arguments = ["--userns2", str(users.nested), "--unshare-pid", "--unshare-ipc"]
        arguments += ["--unshare-uts", "--unshare-cgroup-try", "--hostname", "slot"]
        arguments += ["--bind", str(self.directories.merged), "/", "--proc", "/proc"]
        arguments += ["--dev", "/dev", "--perms", "1777", "--tmpfs", "/dev/shm"]  # noqa: S108
        arguments += ["--ro-bind", str(self.directories.init), INIT_PLACE, "--tmpfs", "/sys"]
        for path in PROCESSORS:
            arguments += ["--ro-bind-try", path, path]
        return [*arguments, "--remount-ro", "/sys"]

    def _starter(self, options: list[str]) -> list[str]:
        """See `Bubblewrap`: our program mounts the layers and then becomes bubblewrap."""
        assert self._users is not None  # noqa: S101 - begun
        chosen = self.options
        binds = [*self.directories.etc_binds(network=chosen.network), *chosen.binds]
        request = {
            **boot_request(chosen.ids, self._users, self.directories.root),
            "network": "host" if chosen.network else "nested",
            "layers": list(map(str, chosen.layers)),
            "upper": str(chosen.upper or self.directories.upper),
            "points": [(path, True) for path in POINTS],
            "directories": [chosen.workdir],
            "binds": binds,
            "program": self._tools.bwrap,
            "words": [self._tools.bwrap, *options],
            "end": ["--chdir", "/", "--", INIT_PLACE],
        }
        os.pwrite(self._request, json.dumps(request).encode(), 0)
        return boot_command(self._request)

    def mount_points(self) -> list[str]:
        """Paths inside at which something other than the slot's own files is mounted."""
        binds = [*self.directories.etc_binds(network=False), *self.options.binds]
        return [*POINTS, *(target for _, target, _ in binds)]

    @property
    def workspace(self) -> str:
        """Where commands run."""
        return self.options.workdir

    @property
    def uid(self) -> int:
        """Host uid of its commands."""
        return self.account.host_uid if self.account else self.options.uid

    def environment(self) -> dict[str, str]:
        """The clean environment that commands start with; HOME is the account's."""
        return {"PATH": PATH, **self.options.environment}

    async def _sweep(self) -> None:
        # Not with a program of the slot, which may be an agent's.
        self.spawner.kill_all()


def boot_request(ids: IdMap, users: UserNamespaces, place: Path) -> dict[str, Any]:
    """The fields of a request to `boot_process` that are always the same."""
    return {
        "uid": ids.host_id if ids.drop else -1,
        "outer": users.outer,
        "nested": users.nested,
        "place": str(place),
        "env": {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"},
    }


def boot_command(request: int) -> list[str]:
    """The command line that serves the request in the file at a descriptor."""
    return [sys.executable, "-I", "-S", str(boot_process.__file__), str(request)]
