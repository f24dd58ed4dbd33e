"""The checks that every sandbox backend passes: `hermes-queue sandboxes check NAME`.

bench.py         the backend under test, and what checks are made of
report.py        runs them and reports the results
victim.py        a worker that is killed
commands.py      what commands receive and what they return
processes.py     time limits and process trees
leases.py        waiting, releasing, renewing, resizing
files.py         reading and writing a slot's files
isolation.py     what slots cannot see or do
assets.py        built once, whole, read-only
dead_workers.py  what is left when a worker dies
"""

from hermes_queue.sandbox.selfcheck import (
    assets,
    commands,
    dead_workers,
    files,
    isolation,
    leases,
    processes,
)
from hermes_queue.sandbox.selfcheck.bench import Check, NotApplicable, Subject, trial
from hermes_queue.sandbox.selfcheck.report import CheckResult, outcomes

__all__ = ["CHECKS", "Check", "CheckResult", "NotApplicable", "Subject", "outcomes", "trial"]

CHECKS: tuple[Check, ...] = tuple(
    value
    for module in (commands, processes, leases, files, isolation, assets, dead_workers)
    for value in vars(module).values()
    if isinstance(value, Check)
)
"""All of them, in the order of their modules."""
