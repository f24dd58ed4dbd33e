"""`hermes-queue tasks export|import`: the memory of tasks as a file, read and written once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import IO

import click

from hermes_queue.errors import InputError
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.tasks import TaskMemory
from hermes_queue.ledger.tasks.lines import LINE_BYTES, line_of, tasks_in
from hermes_queue.terminal.output import echo


@click.command("export")
@click.argument("file", type=click.File("wb"), default="-", metavar="[FILE]")
@click.option("--env", default="", metavar="NAME", help="Only of this env.")
def export_tasks(file: IO[bytes], env: str) -> None:
    """Write all that is remembered of tasks to a JSON lines file, or to stdout."""
    written = 0
    with closing(Ledger.connect()) as ledger:
        for task in TaskMemory(ledger).every():
            if env in ("", task.env):
                file.write(line_of(task).encode() + b"\n")
                written += 1
    echo(f"wrote {written} tasks", err=True)


@click.command("import")
@click.argument("path", type=click.Path(dir_okay=False, allow_dash=True), metavar="FILE")
@click.option(
    "--add",
    is_flag=True,
    help="Add the counts of another deployment to those here; a second import adds them again.",
)
def import_tasks(path: str, add: bool) -> None:
    """Remember the tasks of an exported file; `-` = stdin.

    A task of the file replaces what is known here if that was seen less lately, so the same file
    can be imported twice. Of more tasks than HERMES_QUEUE_TASKS_MAX_ENTRIES, those seen least
    lately are forgotten.
    """
    try:
        opened = click.open_file(path, "rb")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; name an exported file") from error
    with opened as file, closing(Ledger.connect()) as ledger:
        tasks = tasks_in(_lines(file), path)
        taken = TaskMemory(ledger).take_over(tasks, add=add)
    echo(f"imported {taken} tasks")


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    """Lines; of a longer one than any task has, no more than that it is one."""
    while line := file.readline(LINE_BYTES + 2):
        yield line
