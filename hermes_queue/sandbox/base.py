"""The contract every sandbox backend implements.

A backend turns compute (a Modal sandbox, a local bubblewrap) into *slots*: isolated workspaces
that serve one trajectory at a time. Workers see only this module, so a new backend is one new
file next to it, found by name; `tests/sandbox/test_conformance.py` then runs the same checks
against it as against the others.

Two kinds of failure never mix. A command that exits non-zero or runs out of time is a result
(`ExecutionResult`), because the model must see it. A sandbox that cannot run commands raises
`SandboxError`, because no score may be derived from it.

*Assets* are directories that are expensive to make and equal for many trajectories (a dependency
environment, a downloaded sdist): built once per key in a separate sandbox that reaches package
indexes, then mounted read-only into slots that ask for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from hermes_queue.errors import SandboxError
from hermes_queue.images.spec import ImageConfig, ImageSpec, Network
from hermes_queue.sandbox.services import ServiceSpec, ServiceVolume

if TYPE_CHECKING:
    import asyncio

MAX_OUTPUT_BYTES = 1 << 20
"""Default cap per stream. Longer output keeps its head and tail (half each)."""

MAX_FILE_BYTES = 64 << 20
"""Default cap of `read_file`."""

WORKSPACE = "/workspace"
"""Usual path of a slot's workspace; `Slot.workspace` has the actual one. The prompt of an env names
this path, and the agent is shown the slot's."""

SLOT_ENVIRONMENT: Mapping[str, str] = {"LANG": "C.UTF-8", "USER": "agent", "LOGNAME": "agent"}
"""Variables that every backend sets for commands, beside PATH, HOME, TMPDIR, PWD and HQ_COMMAND_ID.
An image may add further ones."""

DROPPED_VARIABLES = ("MODAL_*", "PYTHONHASHSEED", "*_NUM_THREADS", "UV_BREAK_SYSTEM_PACKAGES")
"""Shell patterns of variables that a provider sets for its own purposes. They are removed: tests
that depend on the order of hashes or the number of threads would get other scores there."""

MAX_CONNECTIONS = 64
"""Open connections of one `Listening`; further ones wait."""

LOOPBACK = "127.0.0.1"

TIMEOUT_EXIT_CODE = 124
"""The same code as coreutils `timeout`."""


@dataclass(frozen=True, slots=True)
class AssetSpec:
    """A directory made once by `script` and then mounted read-only at `mount`.

    The script runs under `bash -eu` in a fresh sandbox whose only writable persistent directory
    is `mount`, which is also its working directory. `python3` is the version in `python`, and
    `$HQ_PIP` runs pip with it (`$HQ_PIP download ...`; a script that does not mention it may get
    none), with the worker's own index settings. The network may reach only these indexes. The
    result must not depend on anything but the script's text.
    """

    kind: str
    """Short word for messages and directory names: "venv", "sdist"."""
    key: str
    """Hex digest over everything the content depends on. Equal (kind, key) = equal content."""
    script: str
    mount: str
    """Absolute path in the sandbox, below /opt/assets; the same while building and using."""
    python: str | None = None
    """Interpreter version such as "3.11"; None = the worker's own."""
    timeout_s: float = 600.0


@dataclass(frozen=True, slots=True)
class SlotSpec:
    """A trajectory's requirements for its slot."""

    profile: str = "default"
    """Kind of sandbox, by a name that the worker's settings describe."""
    assets: tuple[AssetSpec, ...] = ()
    python: str | None = None
    """Version of the `python3` on the slot's PATH, e.g. "3.11"; None = the worker's own."""
    conceal: tuple[str, ...] = ()
    """Python packages and modules, by import name, that the slot must not see in the image: the
    subject of the task. A backend that cannot hide one from its slots refuses the lease."""
    alone: bool = False
    """Whether no other slot may share the sandbox, even if the profile allows it: earlier sandboxes
    died under this job."""
    image: ImageSpec | None = None
    """The slot's root file system; see `hermes_queue.sandbox.image_slots`. None = the backend's
    own, and then the fields below are not used."""
    user: str | None = None
    """Name or uid of the image's user who runs commands; None = the image's USER."""
    env: tuple[tuple[str, str], ...] = ()
    """Variables beside those of the image."""
    cpus: float | None = None
    """Cores; None = the backend's default."""
    memory_mb: int | None = None
    """None = the backend's default."""
    disk_mb: int | None = None
    """What it may write beside its image; None = the backend's default. A slot that writes more is
    ended by its own fault. Where a backend bounds no disk space, this bounds none either."""
    network: Network = "none"
    workdir: str | None = None
    """Absolute path of the workspace, made if it is missing; None = the image's WORKDIR."""
    services: tuple[ServiceSpec, ...] = ()
    """Containers beside the slot; see `hermes_queue.sandbox.services`."""
    aliases: tuple[str, ...] = ()
    """With `services`: host names by which they find the slot."""
    volumes: tuple[ServiceVolume, ...] = ()
    """With `services`: directories that the slot shares with them."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A leased workspace. Opaque to callers: only its backend interprets `handle`."""

    slot_id: str
    """Never reused; `renew` returns a slot with a new one."""
    trajectory_id: str
    sandbox_id: str
    workspace: str
    """Absolute path inside the sandbox; empty when the slot is acquired or renewed."""
    spec: SlotSpec
    handle: object = None
    image: str | None = None
    """Description of the image, for the record; equal only for equal sandboxes. With
    `spec.image`: its name and digest, and substitutions of base images."""
    image_config: ImageConfig | None = None
    """With `spec.image`: what the image says about its programs."""
    usd_per_s: float | None = None
    """Price of holding it; None = by `PriceSettings.slot_hour_usd`."""


@dataclass(frozen=True, slots=True)
class ExecutionRequest:
    """One bash command line to run in one slot."""

    slot: Slot
    command: str
    timeout_s: float = 120.0
    """Wall-clock seconds; then the command's whole process tree is killed."""
    stdin: bytes = b""
    cwd: str | None = None
    """Absolute path; None = the workspace."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the slot's clean environment."""
    max_output_bytes: int = MAX_OUTPUT_BYTES
    """Per stream."""
    user: str | None = None
    """In a slot with an image: name or uid, in place of the slot's user."""


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """The result of a command."""

    exit_code: int
    """As a shell reports it: 128 + N after signal N; 124 when `timed_out`."""
    stdout: bytes
    stderr: bytes
    duration_s: float
    timed_out: bool = False
    truncated: bool = False
    """Whether a stream was longer than the cap, or its end did not arrive; a marker line replaces
    missing bytes."""
    cpu_s: float | None = None
    """Processor seconds that the slot used meanwhile, counted by the kernel: for the command, for
    entering the slot, and for other processes in it. Without a control group: for the processes
    that were left under the command or that it waited for. None = unknown."""
    notice: str = ""
    """A message of the backend to the command's caller, beside its output."""

    @property
    def ok(self) -> bool:
        """Whether the command finished in time with exit code 0."""
        return self.exit_code == 0 and not self.timed_out

    @property
    def output(self) -> str:
        """Both streams as text, stdout first, undecodable bytes replaced."""
        return (self.stdout + self.stderr).decode(errors="replace")


@dataclass(frozen=True, slots=True)
class SandboxInfo:
    """One live sandbox as the provider lists it."""

    sandbox_id: str
    labels: Mapping[str, str]
    """At least deployment and worker."""
    created: float


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Properties of a backend that workers must know beyond the contract."""

    isolation: bool
    """Slots cannot read, signal or trace each other."""
    remote: bool = False
    """Sandboxes outlive the worker's host and may bill: the deployment's reaper ends those of dead
    workers. Other backends clean up themselves, each host its own."""
    snapshot: bool = False
    """The backend keeps copies of a slot's files, see `hermes_queue.sandbox.snapshots`."""
    images: bool = False
    """Slots can have an image of their own, see `hermes_queue.sandbox.image_slots`."""
    commits: bool = True
    """With `images`: `ImageSlots.commit` works."""
    outside_changes: bool = True
    """With `images`: `ImageSlots.changes` is seen from outside. Otherwise the slot itself answers,
    and root of it can answer what it likes."""
    services: bool = False
    """Slots with an image can have services, see `hermes_queue.sandbox.services`. A spec with some
    never reaches another backend."""


class Listening(Protocol):
    """A port inside one slot whose connections reach this worker; see `SandboxBackend.listen`."""

    @property
    def host(self) -> str:
        """The address for programs in the slot: `LOOPBACK`."""
        ...

    @property
    def port(self) -> int:
        """Chosen by the kernel; the same until the end."""
        ...

    @property
    def lost(self) -> asyncio.Future[SandboxError]:
        """Done when it has ended without `close`, with the failure to raise.

        That is `SlotLost` if its slot has died, or was released or renewed, or the backend stopped.
        `close` cancels the future. Await it through `asyncio.wait` or `asyncio.shield`.
        """
        ...

    async def close(self) -> None:
        """Reset all connections and close the port. Idempotent, never raises.

        On return each protocol has seen `connection_lost`, and connecting to the port is refused.
        """


class SandboxBackend(Protocol):
    """Lease workspaces and run commands in them.

    Workers make one by name, with the keywords `slots` (leases at once), `labels` (of every
    sandbox: deployment, worker) and `fleet` (`hermes_queue.sandbox.fleet.Fleet`); see
    `BackendFactory` there.

    Safe for concurrent tasks on one event loop, not for several threads. Paths are absolute
    paths inside the sandbox.
    """

    @property
    def capabilities(self) -> Capabilities:
        """The current ones; a constant is enough."""
        ...

    @property
    def free_slots(self) -> int:
        """Number of `acquire` calls that would succeed at once."""
        ...

    def resize(self, slots: int) -> None:
        """Set the maximum of leased slots. On the event loop; returns at once.

        Excess slots stay leased until they are released.
        """

    async def start(self) -> None:
        """Check that this backend can work and provision its minimum. Idempotent.

        Raises:
            IsolationUnavailable: slots cannot be isolated here; the message has the fix.
            SandboxError: the provider refused, e.g. missing credentials or quota.
        """

    async def stop(self) -> None:
        """Kill every slot and free everything that bills. Idempotent, never raises."""

    async def prepare(self, spec: SlotSpec) -> None:
        """Build the assets of `spec` unless they exist; concurrent calls build each one once.

        Holds no slot. Raises:
            SandboxRejected: this worker has no such profile; the message lists the known ones.
            EnvInfraError: an asset's script failed or ran out of time (its output's tail is in
                the message), or the required Python is not available.
            SandboxError: the sandbox for the build could not run.
        """

    async def read_asset(self, asset: AssetSpec, path: str, *, max_bytes: int = ...) -> bytes:
        """Bytes of the regular file `path`, relative to the asset.

        Foreign code made the asset, so links are not followed.

        Raises:
            FileNotFoundError: not there, or not a regular file inside the asset.
            SandboxError: larger than `max_bytes`, or unreadable.
        """
        ...

    async def acquire(self, trajectory_id: str, spec: SlotSpec) -> Slot:
        """Lease an empty workspace; waits for one without a limit.

        The assets of `spec` are built first if `prepare` was not called.

        Raises:
            SandboxError: a new slot was needed and could not be provisioned.
        """
        ...

    async def execute_batch(
        self, requests: Sequence[ExecutionRequest]
    ) -> list[ExecutionResult | SandboxError]:
        """Run the commands concurrently; `results[i]` answers `requests[i]`.

        One dead sandbox must not cost the rest of the batch, so a transport failure is returned
        *in place* as a `SandboxError` instead of being raised. If the call is cancelled, the
        commands' process trees are killed.
        """
        ...

    async def read_file(self, slot: Slot, path: str, *, max_bytes: int = ...) -> bytes:
        """The content of a regular file, read with the slot's own rights.

        Raises:
            FileNotFoundError: missing, a directory or unreadable.
            OSError: larger than `max_bytes` (errno EFBIG); or the slot's own programs, which read
                it on some backends, did not end in time (TimeoutError).
            SandboxError: the sandbox could not answer.
        """
        ...

    async def write_file(self, slot: Slot, path: str, data: bytes) -> None:
        """Create or replace a file, parents included, with the slot's own rights.

        Raises:
            OSError: the slot may not write there, or its own programs did not end in time.
            SandboxError: the sandbox could not answer.
        """

    async def listen(self, slot: Slot, factory: Callable[[], asyncio.BaseProtocol]) -> Listening:
        """Open a port inside the slot, on its loopback interface, and serve it in this process.

        Each connection gets a protocol from `factory` (an aiohttp `web.Server` is one) with a
        transport like that of a TCP connection: either side can end its direction first, and a
        side that does not read makes the other one wait. `get_write_buffer_size()` does not
        count what the kernel of the slot has taken for the program. The protocol must not be
        exchanged (`set_protocol`).

        At most `MAX_CONNECTIONS` are open; further ones wait. Nothing else becomes reachable from
        the slot. Other slots are refused, as far as the backend can tell who connects: so
        let programs authenticate themselves. It ends with `close`, with the lease and with the
        slot.

        Raises:
            SlotLost: the slot is not leased or has died.
            SandboxRejected: the image lacks what is needed; the message says what.
            SandboxError: the sandbox did not open a port.
        """
        ...

    async def renew(self, slot: Slot, spec: SlotSpec | None = None) -> Slot:
        """Kill everything in the slot, empty it and give it a new identity, in place.

        The old `Slot` is void afterwards; the lease continues under the new one. It meets
        `spec` from now on, e.g. with the image of a verifier; None = the same as before.

        Raises:
            SandboxError: it could not be cleaned; the lease is gone, the slot retired.
        """
        ...

    async def release(self, slot: Slot) -> None:
        """Return the lease and reset the slot. Releasing twice is a no-op; never raises.

        A slot whose reset fails is retired instead of returned, so that the next trajectory can
        never see this one's files.
        """

    async def list_sandboxes(self, labels: Mapping[str, str]) -> list[SandboxInfo]:
        """Live sandboxes of the provider that carry all of `labels`, also of dead workers."""
        ...

    async def terminate(self, sandbox_id: str) -> None:
        """End a sandbox of any worker by id. No-op if it is gone."""
