"""All checks of a backend."""

from hermes_plugins.selfcheck import (
    assets,
    commands,
    dead_workers,
    files,
    images,
    isolation,
    leases,
    listening,
    processes,
    snapshots,
)
from hermes_plugins.selfcheck.bench import Check

CHECKS: tuple[Check, ...] = tuple(
    value
    for module in (
        commands,
        processes,
        leases,
        files,
        listening,
        isolation,
        assets,
        dead_workers,
        snapshots,
        images,
    )
    for value in vars(module).values()
    if isinstance(value, Check)
)
"""All checks, in the order of their modules."""
