"""What every producer shares: flags, validation, enqueueing, progress, summary.

A producer is one module that describes its source as a `Producer`, its `PRODUCER`, and calls
`main`. In file order, below `run/`: `options.py` -> `selection.py` reads and validates every row
-> `plan.py` turns them into jobs -> `hermes_queue.broker.enqueue`; where results are
wanted, `follow.py` consumes them. Nothing is enqueued before all rows were validated.
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


def _as_it_is(row: dict[str, Any], _: Any) -> dict[str, Any]:
    return row


def _keep(_: dict[str, Any], __: Any) -> str | None:
    return None


def _no_check(_: Sequence[SelectedItem], __: ProducerOptions) -> int | None:
    return None


@dataclass(frozen=True)
class Producer:
    """A source of rows and the env that takes them."""

    name: str
    """Of the module: `python -m producers.<name>`."""
    env: str
    description: str
    """First sentence of `--help`."""
    dataset: str = BUNDLED
    """What `--dataset` means when it is not given."""
    options: type[Options] = Options
    """Flags of this producer alone, as a class of `producers.run.flags.Options`."""
    prepare: Callable[[dict[str, Any], Any], dict[str, Any]] = _as_it_is
    """Adapt a raw row to the env's `Item`, given an instance of `options`. Must not change its
    argument."""
    skip_reason: Callable[[dict[str, Any], Any], str | None] = _keep
    """Why a prepared row is no task, or None, given an instance of `options`; such rows are counted
    and passed over."""
    check: Callable[[Sequence[SelectedItem], ProducerOptions], int | None] = _no_check
    """Instead of a run: examine the selected rows and return the exit code. None = run."""
    examples: str = ""
    """Lines before the shared examples of `--help`."""

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
