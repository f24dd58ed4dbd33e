"""The steps of a build, and what runs them: the boundary between images and sandboxes.

A layer is a directory in the format of overlayfs (`userxattr`): whiteouts are character devices
0/0, opaque directories have the attribute `user.overlay.opaque`. Its files belong to the ids
inside a user namespace with a range of 65,536 ids, so that only a process in such a namespace can
make, read and delete all of them. Whoever has namespaces gives the store a `StepRunner`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

from hermes_queue.images.spec import ImageConfig


@dataclass(frozen=True, slots=True)
class Rootfs:
    """An image on this host's disk, to start slots from."""

    layers: tuple[Path, ...]
    """Directories for overlayfs, lowest first, see above."""
    config: ImageConfig
    digest: str
    """Hex SHA-256 over what the image was made from."""
    description: str
    """For people and the trajectory: its name and origin, with substitutions."""


@dataclass(frozen=True, slots=True)
class LayerStack:
    """A root file system to change: layers that stay as they are, and where changes go."""

    lower: tuple[Path, ...]
    """Finished layers, lowest first; at most 120."""
    upper: Path | None
    """Existing directory that gets the changes; belongs to root inside. None: nothing is kept."""


@dataclass(frozen=True, slots=True)
class BuildStep:
    """A program of the image, as a RUN line starts it."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    """All of its variables, but those for the network, and HOME (of the user) unless it is here."""
    user: str = ""
    """As `ImageConfig.user`; looked up in the image."""
    workdir: str = "/"
    """Exists in the image."""
    timeout_s: float = 600.0
    network: bool = True
    """Reach package indexes and public hosts through the worker's build proxy. Variables, index
    settings and certificates for this are added for the step, and leave nothing in its layer."""
    memory_mb: int | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """How a step ended."""

    exit_code: int
    """128 + number if a signal ended it."""
    output: bytes
    """stdout and stderr as they came, at most the first and last 64 KiB."""
    timed_out: bool = False


class StepRunner(Protocol):
    """Runs steps in a user namespace with a range of ids; nothing of a step outlives its call."""

    @property
    def host_id(self) -> int:
        """User and group, on the host, of root inside. Raises IsolationUnavailable: no range."""
        ...

    async def run(self, stack: LayerStack, step: BuildStep) -> StepResult:
        """Run a program of the image, with the stack as its root file system.

        /proc, /dev and /sys are provided, /tmp is the image's. /etc/resolv.conf, /etc/hosts and
        /etc/hostname are those of the build, and not changed in the layer.

        Raises:
            IsolationUnavailable: no range of ids, or no overlayfs, here; says what to install.
            SandboxError: the step could not be run; nothing is known about its program.
        """
        ...

    async def edit(
        self,
        stack: LayerStack,
        program: str,
        arguments: Sequence[str],
        *,
        stdin: IO[bytes] | None = None,
        stdout: IO[bytes] | None = None,
        timeout_s: float = 600.0,
    ) -> StepResult:
        """Run a program of ours as root of the range, on the host's files; it has no network.

        Args:
            stack: What it works on. The path of the tree is its first argument: the overlay, or
                without lower layers `upper` itself, where whiteouts can be made.
            program: Source text in Python, for `python -I -S -c`; needs the standard library alone.
            arguments: Further arguments, at most 64 KiB.
            stdin: An open file; None: empty.
            stdout: An open file; None: part of the result's output.
            timeout_s: Wall-clock seconds; then it is killed.

        Raises: as `run`.
        """
        ...
