"""The checks that every sandbox backend passes: `hermes-queue sandboxes check NAME`.

bench.py         the backend under test; checks, their results and building blocks
victim.py        a worker to be killed
commands.py      input and results of commands
processes.py     time limits and process trees
leases.py        waiting, releasing, renewing, resizing
files.py         reading and writing a slot's files
listening.py     ports that the worker serves
isolation.py     files and processes that slots must not reach
assets.py        built once, complete, read-only
dead_workers.py  leftovers of dead workers
snapshots.py     copies of slots' files
images.py        slots with an image of their own
"""

from hermes_queue.sandbox.selfcheck import (
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
from hermes_queue.sandbox.selfcheck.bench import (
    Check,
    CheckResult,
    NotApplicable,
    Subject,
    outcomes,
)

__all__ = ["CHECKS", "Check", "CheckResult", "NotApplicable", "Subject", "outcomes"]

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
