"""A backend under test, checks and their results, and building blocks of checks.

Works without pytest and under `python -O`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import secrets
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from inspect import signature
from typing import Any, Literal

from hermes_queue.errors import SandboxError
from hermes_queue.images.spec import ImageSpec
from hermes_queue.sandbox import make_backend
from hermes_queue.sandbox.base import (
    ExecutionRequest,
    ExecutionResult,
    SandboxBackend,
    Slot,
    SlotSpec,
)

Files = Literal["either", "backend", "image"]


class CheckFailed(Exception):
    """The backend does not fulfil the contract."""


class NotApplicable(Exception):
    """The check does not apply to this backend."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The backend to check."""

    name: str
    """Name for `make_backend`; everything else is in its settings."""
    memory_mb: int | None = None
    """Memory limit of one slot; None = unknown, so that the limit is not checked."""
    image: str | None = None
    """Name of an image for the slots, which has bash, coreutils and findutils; None = slots have
    the backend's own files."""

    @property
    def spec(self) -> SlotSpec:
        """What slots are leased with."""
        return SlotSpec(image=None if self.image is None else ImageSpec(reference=self.image))


class SlotBench:
    """A started backend with one-line access to commands."""

    def __init__(self, backend: SandboxBackend, spec: SlotSpec | None = None) -> None:
        """`spec`: of slots, unless another one is given."""
        self.backend = backend
        self.spec = spec or SlotSpec()
        # Checks count their sleeping processes. Without namespaces they would also count those of
        # concurrent checks, so every bench sleeps for a different time.
        self._nap = str(random.randint(10**6, 10**7))  # noqa: S311 - no secret

    async def slot(self, spec: SlotSpec | None = None) -> Slot:
        """Lease a slot."""
        return await self.backend.acquire("trajectory", spec or self.spec)

    async def answer(
        self, slot: Slot, command: str, **options: Any
    ) -> ExecutionResult | SandboxError:
        """The result of one command; the word 4242 in it becomes this bench's sleeping time."""
        command = re.sub(r"\b4242\b", self._nap, command)
        [answer] = await self.backend.execute_batch([ExecutionRequest(slot, command, **options)])
        return answer

    async def sh(self, slot: Slot, command: str, **options: Any) -> ExecutionResult:
        """The result of one command in a sandbox that lives. Raises CheckFailed."""
        answer = await self.answer(slot, command, **options)
        if not isinstance(answer, ExecutionResult):
            raise CheckFailed(f"{command[:80]!r} was answered by {answer!r}")
        return answer

    async def out(self, slot: Slot, command: str, **options: Any) -> str:
        """The standard output of a successful command. Raises CheckFailed."""
        result = await self.sh(slot, command, **options)
        if result.exit_code != 0:
            raise CheckFailed(f"{command[:80]!r} ended with {result}")
        return result.stdout.decode().rstrip("\n")


class Trial(SlotBench):
    """A bench for one check, which can make further backends of the same subject."""

    def __init__(
        self,
        subject: Subject,
        labels: dict[str, str],
        *,
        slots: int,
        stack: contextlib.AsyncExitStack,
    ) -> None:
        super().__init__(make_backend(subject.name, slots=slots, labels=labels), subject.spec)
        self.subject = subject
        self.labels = labels
        self.slots = slots
        self._stack = stack

    async def start(self) -> None:
        """Start the backend; it is stopped at the end of the trial."""
        self._stack.push_async_callback(self.backend.stop)
        await self.backend.start()

    async def another(self) -> SlotBench:
        """Another backend of this kind with as many slots, like that of a second worker."""
        trial = Trial(self.subject, self.labels, slots=self.slots, stack=self._stack)
        await trial.start()
        return trial

    def victim(self, worker: str) -> tuple[list[str], dict[str, str]]:
        """Command and environment of a worker of this kind that will be killed."""
        command = [sys.executable, "-m", f"{__package__}.victim", self.subject.name, worker]
        command += [] if self.subject.image is None else [self.subject.image]
        return command, {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@dataclass(frozen=True, slots=True)
class Check:
    """One requirement of the contract."""

    name: str
    """A sentence with underscores."""
    demand: str
    """What a backend must do to pass."""
    body: Callable[..., Awaitable[None]]
    """Takes a `Trial`, and a leased slot if it has a parameter `slot`."""
    slots: int
    isolated: bool
    """Whether it applies only to backends with isolation."""
    image: Files = "either"
    """Slots to which it applies: with the backend's files, or with those of an image."""

    @property
    def title(self) -> str:
        """The name, for people."""
        return self.name.replace("_", " ")

    async def run(self, subject: Subject) -> None:
        """Raises CheckFailed, NotApplicable, or any error of the backend."""
        if self.image == "image" and subject.image is None:
            raise NotApplicable("no image was given")
        if self.image == "backend" and subject.image is not None:
            raise NotApplicable("it is about slots without an image")
        name = f"selfcheck-{secrets.token_hex(6)}"
        labels = {"deployment": name, "worker": name}
        async with contextlib.AsyncExitStack() as stack:
            trial = Trial(subject, labels, slots=self.slots, stack=stack)
            await trial.start()
            if self.isolated:
                await trial.backend.release(await trial.slot())  # some know it only with a slot
                if not trial.backend.capabilities.isolation:
                    raise NotApplicable("the backend has no isolation")
            takes_slot = "slot" in signature(self.body).parameters
            await self.body(trial, **({"slot": await trial.slot()} if takes_slot else {}))


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one check."""

    check: Check
    verdict: Literal["passed", "failed", "skipped"]
    why: str
    """Empty if it passed."""
    duration_s: float


async def outcomes(
    checks: Iterable[Check], subject: Subject, *, timeout_s: float
) -> AsyncIterator[CheckResult]:
    """Yield the result of each check as soon as it is known. Raises no error of the backend.

    Args:
        checks: the checks to run.
        subject: the backend to check.
        timeout_s: for one check, the start of its backend included.
    """
    for check in checks:
        began = time.monotonic()
        verdict, why = await _verdict(check, subject, timeout_s)
        yield CheckResult(check, verdict, why, time.monotonic() - began)


async def _verdict(
    check: Check, subject: Subject, timeout_s: float
) -> tuple[Literal["passed", "failed", "skipped"], str]:
    try:
        async with asyncio.timeout(timeout_s):
            await check.run(subject)
    except NotApplicable as reason:
        return "skipped", str(reason)
    except CheckFailed as failure:
        return "failed", str(failure)
    except TimeoutError:
        return "failed", f"it took longer than {timeout_s:g} s"
    except Exception as error:  # noqa: BLE001 - foreign code may raise anything
        return "failed", f"{type(error).__name__}: {error}"
    return "passed", ""


def check(
    *, slots: int = 2, isolated: bool = False, image: Files = "either"
) -> Callable[[Callable[..., Awaitable[None]]], Check]:
    """Make a `Check` of a function, whose docstring is the requirement."""

    def made(body: Callable[..., Awaitable[None]]) -> Check:
        demand = " ".join((body.__doc__ or "").split())
        return Check(body.__name__, demand, body, slots, isolated, image)

    return made


def expect(condition: bool, problem: object) -> None:
    """Raise CheckFailed with `problem` unless `condition` holds."""
    if not condition:
        raise CheckFailed(str(problem))


def same(found: object, expected: object, of: str = "") -> None:
    """Raise CheckFailed unless both are equal."""
    if found != expected:
        raise CheckFailed(
            f"{of + ': ' if of else ''}found {found!r:.500}, expected {expected!r:.500}"
        )


@contextlib.contextmanager
def raising(kind: type[BaseException], pattern: str = "", *, of: str = "") -> Iterator[list[Any]]:
    """Raise CheckFailed unless the block raises `kind` with a message that matches `pattern`.

    The yielded list contains the error afterwards.
    """
    caught: list[Any] = []
    try:
        yield caught
    except kind as error:
        if not re.search(pattern, str(error)):
            raise CheckFailed(f"{of} {error!r} does not say {pattern!r}") from error
        caught.append(error)
        return
    raise CheckFailed(f"{of} no {kind.__name__} was raised".lstrip())
