"""Run every command that only shows, in one process."""

from __future__ import annotations

import sys

from hermes_queue.cli import cli

for command in (
    f"run list|run show {sys.argv[1]}|groups list|lanes show train|limits list|"
    f"sandboxes list|workers|workers list|status|status --json|status {sys.argv[1]}|top --once"
).split("|"):
    cli(command.split(), standalone_mode=False)
