"""The agent's patch on its way from the worker of the agent to the one that grades it."""

from __future__ import annotations

import os
from dataclasses import dataclass

import msgpack

from envs.swe.patch import AgentPatch
from hermes_queue.errors import EnvBug

NAMED_PATHS = 100
"""Number of dropped paths that a report names."""


@dataclass(frozen=True, slots=True)
class TakenPatch:
    """What the agent has left, or why that cannot be graded."""

    data: bytes = b""
    paths: tuple[str, ...] = ()
    """Paths of the files that `data` changes."""
    dropped: tuple[str, ...] = ()
    """The first paths whose changes do not count."""
    dropped_count: int = 0
    rejected: tuple[str, str] | None = None
    """Reason and detail of a result that cannot be graded, by the agent's own fault."""
    trees: tuple[str, ...] = ()
    """Ids of the trees that it was made for; () = an older release did not say."""

    @classmethod
    def of(cls, patch: AgentPatch) -> TakenPatch:
        """With as much of the patch as its verdict needs."""
        return cls(patch.data, patch.paths, patch.dropped[:NAMED_PATHS], len(patch.dropped))

    def packed(self) -> bytes:
        """As bytes; inverse: `unpacked`."""
        names = [[os.fsencode(path) for path in paths] for paths in (self.paths, self.dropped)]
        facts = [self.data, *names, self.dropped_count, self.rejected, self.trees]
        packed: bytes = msgpack.packb(facts)
        return packed

    @classmethod
    def unpacked(cls, packed: bytes) -> TakenPatch:
        """Raises EnvBug: another version of the env has packed it."""
        try:
            data, paths, dropped, count, rejected, *rest = msgpack.unpackb(packed)
            reason = (str(rejected[0]), str(rejected[1])) if rejected else None
            changed, named = (tuple(map(os.fsdecode, each)) for each in (paths, dropped))
            trees = tuple(map(str, rest[0])) if rest else ()
            return cls(bytes(data), changed, named, int(count), reason, trees)
        except (ValueError, TypeError, IndexError, msgpack.UnpackException) as error:
            raise EnvBug(f"the patch that was handed over cannot be read: {error}") from error
