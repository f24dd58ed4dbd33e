"""One sandbox: its abilities, its slots, and commands in them."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hermes_queue.errors import SandboxError, SandboxRejected, SlotLost
from hermes_queue.sandbox.base import (
    DROPPED_VARIABLES,
    MAX_OUTPUT_BYTES,
    SLOT_ENVIRONMENT,
    WORKSPACE,
    ExecutionResult,
)
from hermes_queue.sandbox.commands import shell
from hermes_queue.sandbox.commands.arguments import is_no_argument
from hermes_queue.sandbox.listening.relayed import RelayedListening
from hermes_queue.sandbox.modal.abilities import Abilities, cannot_hold_slots
from hermes_queue.sandbox.modal.failures import explained
from hermes_queue.sandbox.modal.process import BACKSTOP_S, run_process
from hermes_queue.sandbox.modal.wire import ExecWire, open_wire
from hermes_queue.settings import ModalSettings

logger = logging.getLogger(__name__)

ROOT = "/.hq"
SCRIPT = f"{ROOT}/slot.sh"
FIRST_UID, LAST_UID = 20_000, 59_999
"""One per lease. If they are used up, the sandbox is replaced."""
ARGUMENT_BYTES = 48 << 10
"""Our share of the service's 64 KiB per command; longer command lines go through a file."""
SCRIPT_TIMEOUT_S = 60.0
CONCEAL_TIMEOUT_S = 300.0
"""The first call walks all files of the image."""
PACKED_AT_ONCE = 2
KILLED = 137


@dataclass(slots=True)
class Lease:
    """A slot in use."""

    slot_id: str
    name: str
    """Of its directory below `ROOT`."""
    uid: int
    workspace: str
    """Path for its commands."""
    place: str
    """Path for root."""
    ended: bool = False
    listening: list[RelayedListening] = field(default_factory=list)


class ModalSandbox:
    """A running `modal.Sandbox`."""

    def __init__(self, sandbox: Any, profile: ModalSettings) -> None:
        self.sandbox = sandbox
        self.sandbox_id: str = sandbox.object_id
        self.profile = profile
        self.abilities = Abilities()
        self.leases: dict[str, Lease] = {}
        self.assets: dict[str, str] = {}
        """Mount point of an asset -> id of its image."""
        self.shown: dict[str, str] = {}
        """The same, for assets that all slots see: without mount namespaces they share one set."""
        self.reserved = 0
        """Number of leases about to be opened."""
        self.spent = False
        """Takes no further leases, because it is lost, too old, or not clean."""
        self.closing = False
        """Takes no further leases, because a waiting job needs other assets; it counts while it has
        leases."""
        self.created = self.touched = self.idle_since = time.monotonic()
        self.packing = asyncio.Semaphore(PACKED_AT_ONCE)
        """Held while a slot's files are packed."""
        self._next_uid = FIRST_UID
        self._names: set[str] = set()
        """Of the slots that have directories here."""
        self._mounting = asyncio.Lock()
        self._concealed: set[str] = set()
        self._warned = False
        """Whether it was logged that slots reach each other's ports."""
        self._seal = uuid.uuid4().hex
        """Commands do not know it, so none can fake its end."""

    # --- for the pool -----------------------------------------------------------------

    @property
    def capacity(self) -> int:
        """Maximum of leases."""
        apart = self.abilities.keeps_apart or self.profile.share_root
        return self.profile.slots_per_sandbox if apart else 1

    @property
    def is_empty(self) -> bool:
        """Whether it has no leases and no reservations."""
        return not self.leases and not self.reserved

    def has_room(self, mounts: Mapping[str, str]) -> bool:
        """Whether it can take one more lease, with these assets."""
        if self.spent or self.closing or len(self.leases) + self.reserved >= self.capacity:
            return False
        if self.abilities.mounts or self.shown == mounts:
            return True
        return self.is_empty and self.shown.items() <= mounts.items()

    def reserve(self, mounts: Mapping[str, str]) -> None:
        """Reserve a place for a lease with these assets; undone by `reserved -= 1`."""
        self.reserved += 1
        if not self.abilities.mounts:
            self.shown = dict(mounts)

    @property
    def is_fresh(self) -> bool:
        """Whether a lease that begins now ends before the sandbox does."""
        left_s = self.profile.lifetime_s - (time.monotonic() - self.created)
        return left_s >= self.profile.lease_s and self._next_uid <= LAST_UID

    # --- inside -----------------------------------------------------------------------

    async def furnish(self) -> None:
        """Install our script and find out what works here.

        Raises SandboxRejected: the image lacks what slots need; SandboxError: it did not start in
        time.
        """
        script = shell.script(__package__, "slot.sh")
        install = f'mkdir -p {ROOT} && printf %s "$1" >{SCRIPT} && shift && exec "$@"'
        probe = ["/bin/bash", SCRIPT, "probe", str(FIRST_UID), str(LAST_UID)]
        both = f"/bin/bash {SCRIPT} install && exec {' '.join(probe)}"
        done = await run_process(
            self.sandbox,
            ["/bin/bash", "-c", install, "install", script, "/bin/bash", "-c", both],
            timeout_s=self.profile.start_timeout_s,
            whole=True,
        )
        if done.exit_code != 0:
            raise SandboxRejected(cannot_hold_slots(self.profile.image, _tail(done)))
        facts = done.stdout.decode("utf-8", "replace")
        self.abilities = Abilities.parsed(facts, self.profile.image)
        if shortcoming := self.abilities.shortcoming(self.profile):
            extra = {"action": "slots_not_isolated"}
            logger.warning("sandbox %s %s", self.sandbox_id, shortcoming, extra=extra)
        await self.script(
            "configure",
            self._seal,
            "|".join(DROPPED_VARIABLES),
            f"mounts={self.abilities.mounts:d}",
            f"propagation={self.abilities.propagation}",
            f"environ={self.abilities.environ:d}",
            f"leaks={self.abilities.leaks:d}",
            f"memory_kib={self.profile.slot_memory_mb << 10}",
            f"pids={self.profile.slot_pids}",
        )

    async def script(
        self, *arguments: str, stdin: bytes = b"", timeout_s: float = SCRIPT_TIMEOUT_S
    ) -> bytes:
        """Run an action of slot.sh as root; returns its output. Raises SandboxError: it failed."""
        self.touched = time.monotonic()
        done = await run_process(
            self.sandbox,
            ["/bin/bash", SCRIPT, *arguments],
            stdin=stdin,
            timeout_s=timeout_s,
            whole=True,
        )
        if done.exit_code != 0:
            raise SandboxError(f"sandbox {self.sandbox_id}: {arguments[0]}: {_tail(done)}")
        return done.stdout

    async def touch(self) -> None:
        """Reset its idle time limit. Raises SlotLost or SandboxError: it does not answer."""
        self.touched = time.monotonic()
        await run_process(self.sandbox, ["/bin/true"], timeout_s=SCRIPT_TIMEOUT_S)

    async def mount(self, place: str, image: Any) -> None:
        """Mount a directory snapshot, once."""
        async with self._mounting:
            if place not in self.assets:
                with explained(f"mounting an asset at {place}", gone=True):
                    await self.sandbox.mount_image.aio(place, image)
                self.assets[place] = image.object_id

    async def conceal(self, names: Sequence[str]) -> None:
        """Hide Python packages of the image from all slots, by import name.

        Raises SandboxRejected: the image has one that cannot be hidden; SandboxError: it is gone.
        """
        async with self._mounting:
            if not (fresh := [name for name in names if name not in self._concealed]):
                return
            uids = str(int(self.abilities.uids))
            visible = await self.script("conceal", uids, *fresh, timeout_s=CONCEAL_TIMEOUT_S)
            if visible:
                raise SandboxRejected(
                    f"image {self.profile.image} shows slots the subject of the job, at "
                    f"{', '.join(visible.decode('utf-8', 'replace').splitlines()[:3])}: remove it "
                    "from the image or name another profile"
                )
            self._concealed.update(fresh)

    # --- slots ------------------------------------------------------------------------

    async def open_slot(self, trajectory_id: str, mounts: Sequence[str]) -> Lease:
        """Begin a lease; `mounts` are `place in sandbox=place in slot`. Raises SandboxError.

        All slots of a trajectory, in whatever sandbox, show its commands the same paths, except for
        two at once in the same one.
        """
        uid = 0
        if self.abilities.uids:
            uid, self._next_uid = self._next_uid, self._next_uid + 1
        slot_id = f"slot-{uuid.uuid4().hex[:16]}"
        name = hashlib.sha256(trajectory_id.encode(errors="surrogatepass")).hexdigest()[:10]
        if name in self._names:
            name = slot_id
        self._names.add(name)
        workspace = WORKSPACE
        if self.abilities.mounts:
            place = f"{ROOT}/slots/{name}/workspace"
        else:
            if self.capacity > 1:
                workspace = f"{WORKSPACE}/{name}"
            place = workspace
        lease = Lease(slot_id, name, uid, workspace, place)
        await self.script("open", name, str(uid), place, *mounts)
        self.leases[slot_id] = lease
        return lease

    async def close_slot(self, lease: Lease) -> None:
        """End a lease and remove every trace of it. Raises SandboxError: something is left."""
        lease.ended = True
        self.leases.pop(lease.slot_id, None)
        await self.end_ports(lease, stop=not self.spent)
        self.idle_since = time.monotonic()
        if not self.abilities.uids and not self.profile.share_root:
            self.spent = True  # commands were root here
            return
        try:
            await self.script("close", lease.name, str(lease.uid), lease.place)
        except BaseException:
            self.spent = True
            raise
        self._names.discard(lease.name)

    async def listen(
        self, lease: Lease, factory: Callable[[], asyncio.BaseProtocol]
    ) -> RelayedListening:
        """See `SandboxBackend.listen`."""
        if not self.abilities.python:
            raise SandboxRejected(
                f"image {self.profile.image} has no python3: ports in its slots need 3.7 or newer"
            )
        listening = RelayedListening(
            lease.slot_id, lambda port: self._open_wire(lease, port), factory
        )
        await listening.start()
        lease.listening.append(listening)
        if lease.ended:
            await self.end_ports(lease, stop=not self.spent)
            raise SlotLost(f"slot {lease.slot_id} was released")
        listening.lost.add_done_callback(lambda lost: self._note_lost(lease, lost))
        if self.capacity > 1 and not listening.knows_owners and not self._warned:
            self._warned = True
            why, extra = "does not tell who connects", {"action": "ports_not_isolated"}
            logger.warning(
                "sandbox %s %s: slots can connect to each other's ports",
                self.sandbox_id,
                why,
                extra=extra,
            )
        return listening

    async def _open_wire(self, lease: Lease, port: int) -> ExecWire:
        if lease.ended:
            raise SlotLost(f"slot {lease.slot_id} was released")
        return await open_wire(
            self.sandbox,
            uid=lease.uid,
            port=port,
            limit_s=self.profile.lifetime_s,
            kill=lambda command_id: self.script("kill", command_id, "0"),
        )

    def _note_lost(self, lease: Lease, lost: asyncio.Future[SandboxError]) -> None:
        if not lost.cancelled() and not lease.ended:
            self.spent = True  # whatever it was, a new sandbox is more likely to work

    async def end_ports(self, lease: Lease, *, stop: bool) -> None:
        """End what listens in a slot; `stop`: the sandbox goes on. Never raises."""
        error = SlotLost(f"slot {lease.slot_id} was released")
        await asyncio.gather(*(each.lose(error, stop=stop) for each in lease.listening))

    async def run(
        self,
        lease: Lease,
        argv: Sequence[str],
        *,
        script: str | None = None,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str,
        timeout_s: float,
        max_output_bytes: int = MAX_OUTPUT_BYTES,
        whole: bool = False,
    ) -> ExecutionResult:
        """Run `argv`, with `script` as bash's command line; `whole` as in `run_process`.

        Raises:
            SlotLost: the slot or its sandbox has ended.
            SandboxError: the sandbox does not answer, or killed the command.
        """
        command_id = uuid.uuid4().hex
        words = list(argv)
        merged = {**SLOT_ENVIRONMENT, **self.profile.env, **(env or {})}
        variables = [f"{name}={value}" for name, value in merged.items()]
        if script is not None:
            size = len(script) + sum(map(len, variables))
            if (size * 4 > ARGUMENT_BYTES and _too_long([script, *variables])) or is_no_argument(
                script
            ):
                data = script.encode("utf-8", "surrogatepass")
                await self.script("spill", lease.name, str(lease.uid), command_id, stdin=data)
                words.append(f"{ROOT}/slots/{lease.name}/spill-{command_id}")
            else:
                words += ["-c", script]
        limit_s = math.ceil(timeout_s + BACKSTOP_S)
        prefix = [lease.name, str(lease.uid), str(limit_s), command_id, cwd]
        prefix += [str(int(bool(stdin))), str(len(variables)), *variables]
        if is_no_argument("".join(variables) + cwd) or _too_long([*prefix, *words]):
            raise SandboxError("the command's environment or arguments do not fit a command line")
        self.touched = time.monotonic()
        done = await run_process(
            self.sandbox,
            ["/bin/bash", SCRIPT, "run", *prefix, *words],
            timeout_s=timeout_s,
            kill=lambda: self._kill(lease, command_id),
            stdin=stdin,
            max_output_bytes=max_output_bytes,
            whole=whole,
            end=f"\0{self._seal}{command_id}\0".encode(),
        )
        self.touched = time.monotonic()
        if lease.ended:
            raise SlotLost(f"slot {lease.slot_id} was released under a command")
        if done.exit_code == KILLED and not done.timed_out and self.capacity > 1:
            await self._check_own(lease, command_id)
        return done

    async def _kill(self, lease: Lease, command_id: str) -> None:
        if not lease.ended:  # otherwise the reset has killed everything
            await self.script("kill", command_id, str(lease.uid))

    async def _check_own(self, lease: Lease, command_id: str) -> None:
        """Raise SandboxError unless exit code 137 is the command's own doing.

        The wrapper of the command belongs to root: no command can kill it or write its note.
        """
        fate = (await self.script("fate", lease.name, command_id)).decode().strip()
        if fate == "memory":
            raise SandboxError(
                f"a command was killed when sandbox {self.sandbox_id}, which several slots share, "
                "was out of memory: raise memory_limit_mb, or lower slot_memory_mb or "
                "slots_per_sandbox"
            )
        if fate != "own":
            raise SandboxError(
                f"a command and its wrapper were killed in sandbox {self.sandbox_id}"
            )


def _too_long(words: Sequence[str]) -> bool:
    return sum(len(word.encode("utf-8", "surrogatepass")) + 1 for word in words) > ARGUMENT_BYTES


def _tail(done: ExecutionResult) -> str:
    output = (done.stderr or done.stdout).decode("utf-8", "replace").strip()[-500:]
    return f"exit code {done.exit_code}: {output or 'no output'}"
