"""What waits in a worker's spool, as its files say."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgpack

from workers.spool import SUFFIX, waiting


def spooled(spool: Path) -> list[str]:
    """Ids of the trajectories whose records are in the files below `spool`."""
    found: list[str] = []
    for path in waiting(spool):
        with suppress(FileNotFoundError):  # published just now
            names = [path.name]
            if path.suffix != SUFFIX:
                names = [name for name, _ in msgpack.unpackb(path.read_bytes())]
            found += [name.removesuffix(SUFFIX) for name in names]
    return found
