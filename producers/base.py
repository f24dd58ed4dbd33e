"""Definition and command line of a producer: flags, validation, enqueueing, progress, summary.

A producer is one module that describes its source as a `Producer` named `PRODUCER` and calls
`main`. The steps, all below `run/`: `options.py` parses flags, `selection.py` reads and
validates every row, `plan.py` turns rows into jobs, `hermes_queue.broker.enqueue` sends them,
and `follow.py` consumes the results if they are requested. Nothing is enqueued before all rows
have been validated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from producers.command import run_command
from producers.run.dataset import BUNDLED
from producers.run.flags import Options
from producers.run.options import ProducerOptions, parse

if TYPE_CHECKING:
    from producers.run.selection import SelectedItem


def _unchanged(row: dict[str, Any], _: Any) -> dict[str, Any]:
    return row


def _keep(_: dict[str, Any], __: Any) -> str | None:
    return None


def _no_check(_: Sequence[SelectedItem], __: ProducerOptions) -> int | None:
    return None


@dataclass(frozen=True)
class Producer:
    """A source of rows and the env that runs them."""

    name: str
    """Name of the module: `python -m producers.<name>`."""
    env: str
    description: str
    """First sentence of `--help`."""
    dataset: str = BUNDLED
    """Default of `--dataset`."""
    options: type[Options] = Options
    """Flags that only this producer has, as a subclass of `producers.run.flags.Options`."""
    prepare: Callable[[dict[str, Any], Any], dict[str, Any]] = _unchanged
    """Adapt a raw row to the env's `Item`; the second argument is an instance of `options`. Must
    not modify the row."""
    skip_reason: Callable[[dict[str, Any], Any], str | None] = _keep
    """The reason why a prepared row is not a task, or None; the second argument is an instance of
    `options`. Such rows are counted and skipped."""
    check: Callable[[Sequence[SelectedItem], ProducerOptions], int | None] = _no_check
    """Examine the selected rows instead of running them, and return the exit code; None to run
    them."""
    examples: str = ""
    """Text before the shared examples of `--help`."""

    @property
    def bundled(self) -> Path:
        """The rows that are part of this package."""
        return Path(__file__).parent / "data" / f"{self.name}.jsonl"


def main(producer: Producer, argv: Sequence[str] | None = None) -> int:
    """Run a producer's command line and return its exit code (see `hermes_queue.errors`).

    Raises:
        SystemExit: for `--help` and for flags that cannot be parsed (exit code 2).
    """
    options = parse(producer, argv)

    def command() -> int:
        from producers.run.launch import run

        return run(producer, options)

    return run_command(command, interrupted="interrupted")
