"""Backends under test, with the settings of `BACKENDS`."""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from localmodal import enclosure
from modal_server import ModalTestServer
from slot_bench import SlotBench

from hermes_queue.sandbox import make_backend
from hermes_queue.sandbox.base import SandboxBackend
from hermes_queue.sandbox.fleet import Fleet, SandboxObserver
from hermes_queue.sandbox.modal.backend import ModalBackend
from hermes_queue.settings import ModalSettings

MEMORY_MB = 256


@dataclass(frozen=True)
class Candidate:
    """A backend with settings, and what it does beyond the contract."""

    name: str
    environment: Mapping[str, str]
    isolated: bool = True
    """Slots cannot read, signal or trace each other."""
    own_image: bool = False
    """What lies in the image is the user's choice, not ours."""
    memory_mb: int = MEMORY_MB
    """What a slot may use."""
    keeps_snapshots: bool = False
    """What a slot has written can be brought back."""
    named_streams: bool = True
    """A command can open its own output as /dev/stdout and /dev/stderr."""


def local(isolation: str, **more: bool) -> Candidate:
    settings = {
        "HERMES_QUEUE_LOCAL_ISOLATION": isolation,
        "HERMES_QUEUE_LOCAL_MEMORY_MB": str(MEMORY_MB),
        "HERMES_QUEUE_LOCAL_MAX_PIDS": "400",
        # Its reaper must not come between a worker that is killed and what is then seen.
        "HERMES_QUEUE_LOCAL_REAP_S": "3600",
    }
    return Candidate("local", settings, **more)


def modal(
    slots_per_sandbox: int, *, isolated: bool = True, named_streams: bool = True
) -> Candidate:
    settings = {
        "HERMES_QUEUE_MODAL_SLOTS_PER_SANDBOX": str(slots_per_sandbox),
        "HERMES_QUEUE_MODAL_SLOT_MEMORY_MB": str(MEMORY_MB),
        "HERMES_QUEUE_MODAL_CREATES_PER_S": "1000",
    }
    return Candidate(
        "modal",
        settings,
        isolated=isolated,
        own_image=True,
        keeps_snapshots=isolated,
        named_streams=named_streams,
    )


BACKENDS = {
    "local": local("bwrap", keeps_snapshots=True),
    "local-unfenced": local("none", isolated=False),
    # Without root nobody may map a range of uids: commands are then root of a box of their own.
    "modal-slots-1": modal(1, isolated=os.geteuid() == 0),
}

if os.geteuid() == 0:
    BACKENDS["modal-slots-10"] = modal(10)
    # As above, where root inside has the rights that Docker gives by default.
    BACKENDS["modal-docker"] = modal(10)
    # As above, where root inside may mount: each slot has mounts of its own.
    BACKENDS["modal-mounts"] = modal(10)
    # As above, inside gVisor.
    BACKENDS["modal-gvisor"] = modal(10, named_streams=False)

REPEATED = {"modal-slots-1"} if os.geteuid() == 0 and not os.environ.get("REPETITIONS") else set()
"""As root, ten slots try all that one slot does, and as an ordinary user (test_ordinary_user.py)
one slot is what is tried: here only `make test-modal-oldest` repeats it."""
VARIANTS = {
    "modal-docker": {"capabilities": "docker"},
    "modal-mounts": {"capabilities": "mounts"},
    "modal-gvisor": {"runtime": "gvisor"},
}
"""Of the Modal-compatible server. What depends on root's rights is tried in test_modal_kernels.py;
all the rest by `make test-modal-docker` and `make test-gvisor`, which name them in BACKENDS."""
WANTED = set(os.environ.get("BACKENDS", "").split()) or BACKENDS.keys() - REPEATED - VARIANTS.keys()
TRIED = {name: candidate for name, candidate in BACKENDS.items() if name in WANTED}


class Bench(SlotBench):
    """A started backend with one-line access to commands."""

    def __init__(self, backend: SandboxBackend, candidate: Candidate) -> None:
        super().__init__(backend)
        self.candidate = candidate


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
def server_variant(
    localmodal: ModalTestServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., None]]:
    """Let the sandboxes of the Modal-compatible server be of another kind."""
    store = localmodal._background.server.store
    limits = store.limits
    # No option of the server: it opens more of the host's kernel.
    mounts = (*enclosure.CAPABILITIES["wide"], "sys_admin")
    monkeypatch.setitem(enclosure.CAPABILITIES, "mounts", mounts)

    def vary(**changes: str) -> None:
        store.limits = dataclasses.replace(store.limits, **changes)

    yield vary
    store.limits = limits


@pytest.fixture
def configure(cache: Path, provider: None, monkeypatch: pytest.MonkeyPatch):
    """Set the environment for a backend under test; its candidate."""

    def set_to(name: str) -> Candidate:
        monkeypatch.setenv("HERMES_QUEUE_PATHS_CACHE", str(cache))
        for variable, value in BACKENDS[name].environment.items():
            monkeypatch.setenv(variable, value)
        return BACKENDS[name]

    return set_to


@pytest.fixture
async def make_bench(configure: Callable[[str], Candidate]) -> AsyncIterator[Callable[..., Any]]:
    """Start backends by name; they are stopped after the test."""
    started: list[SandboxBackend] = []

    async def make(name: str, **options: Any) -> Bench:
        candidate = configure(name)
        backend = make_backend(candidate.name, **options)
        started.append(backend)
        await backend.start()
        return Bench(backend, candidate)

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
