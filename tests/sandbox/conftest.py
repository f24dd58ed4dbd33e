"""Backends under test. A new backend is one more line in `BACKENDS`."""

from __future__ import annotations

import dataclasses
import os
import random
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest

from hermes_queue.errors import SandboxError
from hermes_queue.sandbox.base import (
    ExecutionRequest,
    ExecutionResult,
    SandboxBackend,
    Slot,
    SlotSpec,
)
from hermes_queue.sandbox.fleet import Fleet, SandboxObserver
from hermes_queue.sandbox.local.backend import LocalBackend
from hermes_queue.sandbox.modal.backend import ModalBackend
from hermes_queue.settings import LocalSandboxSettings, ModalSettings
from hermes_queue.testing import ModalTestServer, localmodal, localmodal_server

__all__ = ["localmodal", "localmodal_server"]  # fixtures that we ship


@dataclass(frozen=True)
class Candidate:
    """How to make one backend, and what it promises."""

    make: Callable[..., SandboxBackend]
    isolated: bool = True
    """Slots cannot read, signal or trace each other."""
    own_image: bool = False
    """What lies in the image is the user's choice, not ours."""
    shared_names: bool = False
    """Names of processes and in /tmp are visible in other slots; what they stand for is not."""
    named_streams: bool = True
    """A command can open its own output as /dev/stdout and /dev/stderr."""


def local(isolation: Literal["bwrap", "none"]) -> Callable[..., SandboxBackend]:
    # Its reaper must not come between a worker that a test has killed and what the test then sees.
    settings = LocalSandboxSettings(isolation=isolation, memory_mb=256, max_pids=400, reap_s=3600.0)
    return partial(LocalBackend, settings)


def modal(slots_per_sandbox: int) -> Callable[..., SandboxBackend]:
    def make(**options: Any) -> SandboxBackend:
        settings = ModalSettings(
            slots_per_sandbox=slots_per_sandbox, slot_memory_mb=256, creates_per_s=1000.0
        )
        return ModalBackend(settings, **options)

    return make


BACKENDS = {
    "local": Candidate(local("bwrap")),
    "local-unfenced": Candidate(local("none"), isolated=False),
    # Without root nobody may map a range of uids: commands are then root of a box of their own.
    "modal-slots-1": Candidate(modal(1), isolated=os.geteuid() == 0, own_image=True),
}

if os.geteuid() == 0:
    BACKENDS["modal-slots-10"] = Candidate(modal(10), own_image=True, shared_names=True)
    # As above, where root inside has the rights that Docker gives by default.
    BACKENDS["modal-docker"] = Candidate(modal(10), own_image=True, shared_names=True)
    # As above, inside gVisor.
    BACKENDS["modal-gvisor"] = Candidate(
        modal(10), own_image=True, shared_names=True, named_streams=False
    )

REPEATED = {"modal-slots-1"} if os.geteuid() == 0 and not os.environ.get("REPETITIONS") else set()
"""As root, ten slots try all that one slot does, and as an ordinary user (test_ordinary_user.py)
one slot is what is tried: here only `make test-modal-oldest` repeats it."""
VARIANTS = {"modal-docker": {"capabilities": "docker"}, "modal-gvisor": {"runtime": "gvisor"}}
"""Of the Modal-compatible server. What depends on root's rights is tried in test_modal_kernels.py;
all the rest by `make test-modal-docker` and `make test-gvisor`, which name them in BACKENDS."""
WANTED = set(os.environ.get("BACKENDS", "").split()) or BACKENDS.keys() - REPEATED - VARIANTS.keys()
TRIED = {name: candidate for name, candidate in BACKENDS.items() if name in WANTED}


class Bench:
    """A started backend with one-line access to commands."""

    def __init__(self, backend: SandboxBackend, candidate: Candidate) -> None:
        self.backend = backend
        self.candidate = candidate
        # Tests count their sleeping processes. Without namespaces they would count those of
        # tests that run beside them too, so every bench sleeps for a time of its own.
        self._nap = str(random.randint(10**6, 10**7))

    async def slot(self, spec: SlotSpec | None = None) -> Slot:
        return await self.backend.acquire("trajectory", spec or SlotSpec())

    async def sh(self, slot: Slot, command: str, **options: Any) -> ExecutionResult:
        command = command.replace("4242", self._nap)
        [answer] = await self.backend.execute_batch([ExecutionRequest(slot, command, **options)])
        assert isinstance(answer, ExecutionResult), answer
        return answer

    async def answer(self, slot: Slot, command: str) -> ExecutionResult | SandboxError:
        [answer] = await self.backend.execute_batch([ExecutionRequest(slot, command)])
        return answer

    async def out(self, slot: Slot, command: str, **options: Any) -> str:
        result = await self.sh(slot, command, **options)
        assert result.exit_code == 0, result
        return result.stdout.decode().rstrip("\n")


@pytest.fixture(scope="session")
def cache() -> Iterator[Path]:
    """A cache that slots of a root worker can reach, which pytest's own directories are not."""
    directory = Path(tempfile.mkdtemp(prefix="hermes-queue-test-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def provider(request: pytest.FixtureRequest) -> None:
    """What the test's backend talks to: a Modal-compatible server, where it is Modal's."""
    callspec = getattr(request.node, "callspec", None)
    names = [str(value) for value in callspec.params.values()] if callspec else []
    if any(name in BACKENDS and name.startswith("modal") for name in names):
        request.getfixturevalue("localmodal")
        for name in VARIANTS.keys() & set(names):
            request.getfixturevalue("server_variant")(**VARIANTS[name])


@pytest.fixture
def server_variant(localmodal: ModalTestServer) -> Iterator[Callable[..., None]]:
    """Let the sandboxes of the Modal-compatible server be of another kind."""
    store = localmodal._background.server.store
    limits = store.limits

    def vary(**changes: str) -> None:
        store.limits = dataclasses.replace(store.limits, **changes)

    yield vary
    store.limits = limits


@pytest.fixture
async def make_bench(cache: Path, provider: None) -> AsyncIterator[Callable[..., Any]]:
    """Start backends by name; they are stopped after the test."""
    started: list[SandboxBackend] = []

    async def make(name: str, **options: Any) -> Bench:
        backend = BACKENDS[name].make(cache=cache, **options)
        started.append(backend)
        await backend.start()
        return Bench(backend, BACKENDS[name])

    yield make
    for backend in started:
        await backend.stop()


@pytest.fixture(params=list(TRIED))
def backend_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def bench(make_bench: Callable[..., Any], backend_name: str) -> Bench:
    """Every backend, two slots."""
    return await make_bench(backend_name, slots=2)


@pytest.fixture(params=[name for name, candidate in TRIED.items() if candidate.isolated])
def isolated_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def fenced(make_bench: Callable[..., Any], isolated_name: str) -> Bench:
    """Every backend that promises isolation, two slots."""
    return await make_bench(isolated_name, slots=2)


@pytest.fixture
async def start_modal(localmodal, cache, tmp_path, server_variant):
    """Start Modal backends with these settings; they are stopped after the test."""
    for name in WANTED & VARIANTS.keys():
        server_variant(**VARIANTS[name])
    started = []

    async def make(*, slots=4, observer=None, profiles=None, **settings):
        if profiles is not None:
            settings["profiles"] = tmp_path / "profiles.yaml"
            settings["profiles"].write_text(profiles)
        section = ModalSettings(**{"creates_per_s": 1000.0, **settings})
        fleet = Fleet(observer or SandboxObserver())
        backend = ModalBackend(section, slots=slots, cache=cache, fleet=fleet)
        started.append(backend)
        await backend.start()
        return backend

    yield make
    for backend in started:
        await backend.stop()
