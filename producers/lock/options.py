"""Options about lock files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from producers.run.flags import Options, flag, switch


@dataclass(frozen=True)
class LockOptions(Options):
    """The lock file that a run writes, or is made from."""

    title: ClassVar[str] = "lock file: what a run is made from (docs/runs.md)"
    lock: Path | None = flag(
        "write the run's lock file (`hermes-queue run lock` prints that of any run)",
        type=Path,
        metavar="FILE",
    )
    from_lock: Path | None = flag(
        "take all flags from a lock file; those of this command line take precedence. Refused if"
        " rows, env or versions differ",
        type=Path,
        metavar="FILE",
    )
    allow_differences: bool = switch("with --from-lock: say what differs, and go on")
