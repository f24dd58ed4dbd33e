"""`hermes-queue tasks ...`: the group of its commands."""

from __future__ import annotations

import click

from hermes_queue.cli.tasks.carried import export_tasks, import_tasks
from hermes_queue.cli.tasks.remembered import forget, list_tasks, show
from hermes_queue.cli.tasks.validate import validate

_HELP = """Validate tasks in the Harbor format; look at what is remembered of tasks across runs.

\b
hermes-queue tasks list --env swe_smith --pass-rate 0-0.1
hermes-queue tasks show swe_smith:HASH
hermes-queue tasks export memory.jsonl
hermes-queue tasks import memory.jsonl
hermes-queue tasks forget --env swe_smith --yes
"""

tasks = click.Group("tasks", help=_HELP)
for _command in (validate, list_tasks, show, export_tasks, import_tasks, forget):
    tasks.add_command(_command)
