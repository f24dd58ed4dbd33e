"""Command line of a producer: flags, validation, enqueueing, progress, summary.

A producer is one module that describes its source as a `Producer` named `PRODUCER` and calls
`main`. The steps, all below `run/`: `options.py` parses flags, `selection.py` reads and
validates every row, `plan.py` turns rows into jobs, `hermes_queue.broker.enqueue` sends them,
and `follow.py` consumes the results if they are requested. Nothing is enqueued before all rows
have been validated.
"""

from __future__ import annotations

from collections.abc import Sequence

from hermes_queue.errors import ConfigurationError
from producers.command import fail, run_command
from producers.run.options import parse
from producers.source import Producer

__all__ = ["Producer", "main"]


def main(producer: Producer, argv: Sequence[str] | None = None) -> int:
    """Run a producer's command line and return its exit code (see `hermes_queue.errors`).

    Raises:
        SystemExit: for `--help`.
    """
    try:
        options = parse(producer, argv)
    except ConfigurationError as error:
        return fail(str(error), error.exit_code)

    def command() -> int:
        from producers.run.launch import run

        return run(producer, options)

    return run_command(command, interrupted="interrupted", backend=options.sandbox.named)
