"""All checks of a backend."""

from hermes_plugins.selfcheck import (
    assets,
    commands,
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
        snapshots,
        images,
    )
    for value in vars(module).values()
    if isinstance(value, Check)
)
"""All checks, in the order of their modules."""
