"""`hermes-queue sink jsonl`, `parquet`, ...: consumers that build a dataset during runs."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import signal
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from hermes_queue import extensions
from hermes_queue.cli.sinks import options
from hermes_queue.cli.watch.finite import FiniteRange
from hermes_queue.disk import locked as files
from hermes_queue.errors import EXIT_INTERRUPTED, ConfigurationError, RedisUnavailable
from hermes_queue.sinks.base import START, DatasetSink, Format
from hermes_queue.sinks.feed import MAX_DELIVERIES, Fed, claim_consumer_group, feed
from hermes_queue.sinks.selection import Selection, counted
from hermes_queue.terminal.output import echo

_PROGRESS_S = 10.0


def _stream_flags() -> list[click.Option]:
    return [
        click.Option(["--run", "run_id"], metavar="ID", help="Write only this run."),
        click.Option(["--env"], metavar="NAME", help="Write only this env."),
        click.Option(
            ["--group"],
            metavar="NAME",
            help="Name of the consumer group.  [default: a name for this OUT, kept in a file "
            "beside it]",
        ),
        click.Option(["--start"], default="0", show_default=True, help=START),
        click.Option(
            ["--until-done"],
            is_flag=True,
            help="End when --run is done and all of its groups have been written.",
        ),
        click.Option(
            ["--idle-timeout"],
            type=FiniteRange(0, min_open=True),
            metavar="SECONDS",
            help="End after this many seconds without a new group.",
        ),
        click.Option(["--quiet"], is_flag=True, help="Do not show progress."),
        click.Option(
            ["--json", "as_json"], is_flag=True, help="Print a summary as JSON at the end."
        ),
    ]


class _Feeding:
    """Feeds one sink from the stream, reports progress, and decides when to end."""

    def __init__(self, name: str, out: Path, flags: dict[str, Any]) -> None:
        self.name = name
        self.out = out
        self.flags = flags
        self.fed = Fed()
        self.stop = asyncio.Event()
        self.interrupted = False
        self.identity = identity(out)
        self.group = flags["group"] or f"sink.{name}.{self.identity}"
        self._reported_at = time.monotonic()

    async def run(self, dataset: DatasetSink, selection: Selection) -> None:
        """Feed the sink until it is stopped."""
        from hermes_queue.results.consume import reading
        from hermes_queue.sinks.metering import metered

        await claim_consumer_group(self.group, self.identity)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.stop.set)
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        source = reading(
            self.group,
            consumer="sink",
            run=self.flags["run_id"],
            env=self.flags["env"],
            start=options.place(self.flags["start"]),
            idle_timeout_s=self.flags["idle_timeout"],
            max_deliveries=MAX_DELIVERIES,
            renew=True,
            allow_evaluation=True,  # the selection refuses and counts them
        )

        async def done() -> bool:
            return self.flags["until_done"] and await self._run_is_written()

        def after_write() -> bool:
            if not self.flags["quiet"] and time.monotonic() - self._reported_at > _PROGRESS_S:
                self._reported_at = time.monotonic()
                echo(self.progress(selection), err=True)
            return self.stop.is_set()

        with metered(self.name) as meter:
            await feed(dataset, selection, source, self.fed, meter, done=done, stop=after_write)

    def progress(self, selection: Selection) -> str:
        """The progress as text."""
        refused = f"; refused: {counted(selection.refused)}" if selection.refused else ""
        return (
            f"{self.out}: {self.fed.rows} rows written from {self.fed.trajectories} trajectories "
            f"in {self.fed.groups} groups, {len(selection.held)} trajectories in all{refused}"
        )

    def _interrupt(self) -> None:
        self.interrupted = True
        self.stop.set()

    async def _run_is_written(self) -> bool:
        from hermes_queue.results.consumers import consumer_lag

        try:
            status = await asyncio.to_thread(_run_status, self.flags["run_id"])
            if not status.done:
                return False
            left = await consumer_lag(self.group)
        except RedisUnavailable:  # the stream's reader waits and reports it
            return False
        return left.behind == left.pending == 0


def _run_status(run_id: str) -> Any:
    from hermes_queue.ledger import Ledger

    with closing(Ledger.connect()) as ledger:
        return ledger.run_status(run_id)


def identity(out: Path) -> str:
    """A name that stays with the dataset wherever it is mounted, and disappears with it.

    The path would not do. Two hosts may use the same path, and would share the groups between
    them; and a dataset that was removed and begun again would only get groups that finished
    since.
    """
    path = out / ".sink" if out.is_dir() else out.with_name(f".{out.name}.sink")
    try:
        if path.exists() and (known := path.read_text(encoding="ascii").strip()):
            return known
        fresh = secrets.token_hex(6)
        with files.replacing(path) as draft:
            draft.write_text(fresh + "\n", encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: cannot be read: {error}") from error
    return fresh


def _feed(name: str, kind: Format, out: Path, flags: dict[str, Any]) -> None:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    if flags["until_done"] and not flags["run_id"]:
        raise click.UsageError("--until-done needs --run")
    options.place(flags["start"])
    with options.opened(name, kind, out, flags) as (dataset, selection):
        feeding = _Feeding(name, out, flags)
        asyncio.run(feeding.run(dataset, selection))
    if not flags["quiet"]:
        for line in (feeding.progress(selection), *getattr(dataset, "remarks", ())):
            echo(line, err=True)
    if flags["as_json"]:
        summary = {
            "out": str(out),
            "group": feeding.group,
            "groups": feeding.fed.groups,
            "trajectories": feeding.fed.trajectories,
            "rows": feeding.fed.rows,
            "held": len(dataset.held),
            "refused": dict(selection.refused),
        }
        echo(json.dumps(summary))
    if feeding.interrupted:
        raise SystemExit(EXIT_INTERRUPTED)


def command(name: str) -> click.Command:
    """The command of a format, found by `hermes_queue.extensions`.

    Raises:
        ConfigurationError: the format does not exist or cannot be loaded.
    """
    kind: Format = extensions.load("sink", name)

    @click.command(name, help=kind.help)
    @options.out_option
    def made(out: Path, **flags: Any) -> None:
        _feed(name, kind, out, flags)

    made.params += [*_stream_flags(), *options.row_flags()]
    made.params += options.format_flags(name, kind, made.params)
    return made
