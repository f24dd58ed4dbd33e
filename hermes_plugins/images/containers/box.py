"""One container, which is one slot, and the commands in it."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
import secrets
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hermes_plugins.images.containers.host import ROOT_USERS, ExecFacts, ExecHost
from hermes_plugins.images.containers.plan import ContainerPlan
from hermes_plugins.images.containers.process import (
    BACKSTOP_S,
    ContainerCommand,
    EndedCommand,
    run_command,
    run_small,
)
from hermes_plugins.images.containers.scripts import kill, wrapper
from hermes_plugins.images.containers.wire import ContainerWire, open_wire
from hermes_queue.errors import SandboxError, SandboxRejected, SlotKilled, SlotLost
from hermes_queue.sandbox.base import (
    MAX_OUTPUT_BYTES,
    SLOT_ENVIRONMENT,
    ExecutionResult,
    Slot,
    SlotSpec,
)
from hermes_queue.sandbox.commands.arguments import is_no_argument
from hermes_queue.sandbox.commands.deadline import KillAttempt
from hermes_queue.sandbox.listening.relayed import RelayedListening

logger = logging.getLogger(__name__)

KILL_S = 25.0
"""For the program that kills: two of them fit into the patience of `kill_until_ended`."""
MOST_FAILED_KILLS, MOST_KILLS = 2, 4
"""Then all processes of the slot are ended from outside; its files stay. A kill fails, or says that
it has not while the command goes on: root of a slot can replace what it runs."""
OWN_ENDS = frozenset({*range(1, 125), 254})
"""Exit codes of first processes that have ended by themselves, which root of a slot can bring about
with ptrace. From outside they end by a signal; engines say 125 to 127 of what they cannot start, 0
of what they do not remember, and 255 of what has ended while they were away."""
OUT_OF_MEMORY = "the kernel has killed a process of this slot: its memory limit is {memory_mb} MB"


@dataclass(slots=True)
class SlotBox:
    """A container with, at most, one lease."""

    host: ExecHost
    container: str
    plan: ContainerPlan
    slot_id: str = ""
    spent: bool = False
    """Whether it is lost or was ended."""
    why_spent: str = ""
    ended_itself: bool = False
    """Whether it was ended, or cannot be used, because of what its commands have done."""
    listening: list[RelayedListening] = field(default_factory=list)
    commits: list[str] = field(default_factory=list)

    def lease(self) -> str:
        """Begin a lease, or continue it under a new id, which is returned."""
        self.slot_id = f"slot-{uuid.uuid4().hex[:16]}"
        return self.slot_id

    def slot(self, trajectory_id: str, spec: SlotSpec) -> Slot:
        """The slot of a lease that begins, or continues under a new id."""
        return Slot(
            self.lease(),
            trajectory_id,
            self.container,
            self.plan.workdir,
            spec,
            image=self.plan.description,
            image_config=self.plan.config,
        )

    def check(self, slot_id: str) -> None:
        """Raises SlotLost: the lease has ended, or the container has."""
        if self.slot_id != slot_id:
            raise SlotLost(f"slot {slot_id} was released")
        if self.spent or self.ended_itself:
            kind = SlotKilled if self.ended_itself else SlotLost
            raise kind(f"slot {slot_id} is lost{': ' if self.why_spent else ''}{self.why_spent}")

    async def run(
        self,
        slot_id: str,
        argv: Sequence[str],
        *,
        script: str | None = None,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str,
        timeout_s: float,
        max_output_bytes: int = MAX_OUTPUT_BYTES,
        user: str | None = None,
    ) -> ExecutionResult:
        """Run `argv` as a command of the slot, with `script` as bash's command line.

        Raises:
            SlotLost: the lease or the container has ended.
            SlotKilled: it was ended because of what its commands have done.
            SandboxError: the host does not answer.
        """
        self.check(slot_id)
        command_id, seal = uuid.uuid4().hex, secrets.token_hex(16)
        user = user or self.plan.user
        uid = "" if self.plan.uid is None else str(self.plan.uid)
        merged = {**({} if self.plan.config else SLOT_ENVIRONMENT), **(env or {})}
        variables = [f"{name}={value}" for name, value in merged.items()]
        words, first = list(argv), b""
        if script is not None:
            encoded = script.encode("utf-8", "surrogatepass")
            if len(encoded) > self.host.facts.argument_bytes or is_no_argument(script):
                first = encoded
            else:
                words += ["-c", script]
        has_input = str(int(bool(stdin)))
        limit_s = str(math.ceil(timeout_s + BACKSTOP_S))
        drain = str(int(self.host.facts.closes_streams))
        fixed = [uid, limit_s, command_id, cwd, has_input, str(len(first)), drain]
        fixed.append(str(len(variables)))
        _check_arguments([*fixed, *variables, *words], self.host.facts)
        command = ContainerCommand(
            [*wrapper(), *fixed, *variables, *words],
            timeout_s,
            user="0" if uid else user,
            env={"HQ_SEAL": seal, "HQ_WRAPPER": command_id},
            stdin=first + stdin,
            max_output_bytes=max_output_bytes,
            mark=f"\0{seal}\0".encode(),
        )
        ended = await self._ended(slot_id, command, _Killing(self, command_id, user).attempt)
        if not ended.out_of_memory:
            return ended.result
        notice = OUT_OF_MEMORY.format(memory_mb=self.plan.spec.memory_mb)
        return dataclasses.replace(ended.result, notice=notice)

    async def _ended(
        self, slot_id: str, command: ContainerCommand, kill_it: KillAttempt
    ) -> EndedCommand:
        """Raises as `run`."""
        try:
            ended = await run_command(self.host, self.container, command, kill=kill_it)
        except SlotLost:
            self.check(slot_id)  # knows better why
            await self._check_end()
            raise
        self.check(slot_id)
        return ended

    async def _check_end(self) -> None:
        """Raise SlotKilled if the container is gone and its first process ended by itself."""
        try:
            state = await self.host.state(self.container)
        except SandboxError:
            return
        if not state.running and not state.out_of_memory and state.exit_code in OWN_ENDS:
            raise SlotKilled(
                f"slot {self.slot_id} is lost: its first process ended with {state.exit_code}"
            )

    async def kill(self, command_id: str, user: str) -> None:
        """Kill a command. Raises SandboxError: it may be running."""
        if self.spent or not self.slot_id:
            return
        if why := await self.host.trap_in(self.container):
            raise self.killed(f"no command can start in it: {why}")
        # Root reads the environments of others only with a right that engines do not give.
        if user in ROOT_USERS:
            sees_all = self.plan.uid is None or self.host.facts.ptrace
            users = ["0"] if sees_all else [f"{self.plan.uid}:{self.plan.uid}", "0"]
        else:
            users = [user, "0"]
        for each in users:
            argv = kill(command_id)
            done = await run_small(self.host, self.container, argv, user=each, timeout_s=KILL_S)
            if done.exit_code != 0:
                raise SandboxError(f"a command cannot be killed: {done.output.strip()[-300:]}")

    def killed(self, why: str) -> SlotKilled:
        """Give the slot up because of what its commands have done; returns what to raise."""
        self.ended_itself, self.why_spent = True, why
        return SlotKilled(f"slot {self.slot_id} is lost: {why}")

    # --- ports ------------------------------------------------------------------------

    async def listen(
        self, slot_id: str, factory: Callable[[], asyncio.BaseProtocol]
    ) -> RelayedListening:
        """See `SandboxBackend.listen`."""
        self.check(slot_id)
        listening = RelayedListening(slot_id, lambda port: self._open_wire(slot_id, port), factory)
        try:
            await listening.start()
        except SandboxError as error:
            if "no python3" in str(error):
                raise SandboxRejected(
                    f"image {self.plan.name} has no python3: ports in its slots need 3.7 or newer"
                ) from error
            raise
        self.listening.append(listening)
        if self.slot_id != slot_id or self.spent:
            await self.end_ports(stop=not self.spent)
            self.check(slot_id)
        return listening

    async def _open_wire(self, slot_id: str, port: int) -> ContainerWire:
        self.check(slot_id)
        return await open_wire(
            self.host,
            self.container,
            uid=self.plan.uid or 0,
            port=port,
            kill=lambda command_id: _Killing(self, command_id, "0").attempt(),
        )

    async def end_ports(self, *, stop: bool, slot_id: str = "") -> None:
        """End what listens in the slot; `stop`: the container goes on. Never raises."""
        error = SlotLost(f"slot {slot_id or self.slot_id} was released")
        ended, self.listening = self.listening, []
        await asyncio.gather(*(each.lose(error, stop=stop) for each in ended))


@dataclass(slots=True)
class _Killing:
    """The attempts to kill one command, with ever stronger means."""

    box: SlotBox
    command_id: str
    user: str
    kills: int = 0
    failed: int = 0
    has_emptied: bool = False
    """Whether everything in the slot was killed."""

    async def attempt(self) -> None:
        """See `KillAttempt`. Raises SlotKilled, too: the slot's programs keep it from ending."""
        box = self.box
        if self.has_emptied:
            raise box.killed("its commands cannot be ended: root has replaced what ends them")
        self.kills += 1
        try:
            await box.kill(self.command_id, self.user)
            if self.kills <= MOST_KILLS:
                return
            why = "a command goes on that was killed"
        except SlotLost:
            raise
        except SandboxError as error:
            # A slot with as many processes as it may have cannot start the one that kills.
            self.failed += 1
            if self.failed < MOST_FAILED_KILLS:
                raise
            why = str(error)
        extra = {"action": "slot_restarted"}
        logger.warning("slot %s is restarted: %s", box.slot_id, why, extra=extra)
        await box.host.restart(box.container)
        self.has_emptied = True


def _check_arguments(words: Sequence[str], facts: ExecFacts) -> None:
    """Refuse what does not fit a command line. Raises SandboxError."""
    sizes = [len(word.encode("utf-8", "surrogatepass")) + 1 for word in words]
    if (
        any(map(is_no_argument, words))
        or max(sizes) > facts.argument_bytes + 100
        or sum(sizes) > facts.arguments_bytes
    ):
        raise SandboxError("the command's environment or arguments do not fit a command line")
