"""`hermes-queue sink jsonl`, `parquet`, ...: consumers that build a dataset while runs go on."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import signal
import time
from pathlib import Path
from typing import Any

import click

from hermes_queue import extensions
from hermes_queue.cli.sinks import options
from hermes_queue.cli.sinks.places import place
from hermes_queue.disk import locked as files
from hermes_queue.errors import EXIT_INTERRUPTED, ConfigurationError, RedisUnavailable
from hermes_queue.sinks.base import DatasetSink, Format
from hermes_queue.sinks.feed import MAX_DELIVERIES, Fed, feed
from hermes_queue.sinks.selection import Selection, counted

_SAY_S = 10.0


def _stream_options(command: Any) -> Any:
    for option in reversed(
        (
            click.option("--run", "run_id", metavar="ID", help="Only this run."),
            click.option("--env", metavar="NAME", help="Only this env."),
            click.option(
                "--group",
                metavar="NAME",
                help="Consumer group.  [default: one of this OUT's own, kept in a file beside it]",
            ),
            click.option(
                "--start",
                default="0",
                show_default=True,
                help="Where a new consumer group begins: 0 = oldest, $ = only new, an entry id, "
                "or Unix seconds with a point (1790000000.0).",
            ),
            click.option(
                "--until-done", is_flag=True, help="End when --run is done and all of it is here."
            ),
            click.option(
                "--idle-timeout",
                type=click.FloatRange(0, min_open=True),
                metavar="SECONDS",
                help="End when nothing came for so long.",
            ),
            click.option("--quiet", is_flag=True, help="No progress."),
            click.option("--json", "as_json", is_flag=True, help="A summary as JSON at the end."),
        )
    ):
        command = option(command)
    return command


class _Feeding:
    """One sink on the stream: its progress, and how it ends."""

    def __init__(self, name: str, out: Path, flags: dict[str, Any]) -> None:
        self.name = name
        self.out = out
        self.flags = flags
        self.fed = Fed()
        self.stop = asyncio.Event()
        self.interrupted = False
        self.identity = identity(out)
        self.group = flags["group"] or f"sink.{name}.{self.identity}"
        self._said = time.monotonic()

    async def run(self, dataset: DatasetSink, selection: Selection) -> None:
        """Feed the sink until it is told to end."""
        from hermes_queue.results.consume import reading
        from hermes_queue.sinks.datasets.ownership import claim_consumer_group
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
            start=place(self.flags["start"]),
            idle_timeout_s=self.flags["idle_timeout"],
            max_deliveries=MAX_DELIVERIES,
            renew=True,
        )

        async def done() -> bool:
            return self.flags["until_done"] and await self._run_is_here()

        def after_write() -> bool:
            if not self.flags["quiet"] and time.monotonic() - self._said > _SAY_S:
                self._said = time.monotonic()
                click.echo(self.said(selection), err=True)
            return self.stop.is_set()

        with metered(self.name) as meter:
            await feed(dataset, selection, source, self.fed, meter, done=done, stop=after_write)

    def said(self, selection: Selection) -> str:
        """The progress, for people."""
        refused = f"; refused: {counted(selection.refused)}" if selection.refused else ""
        return (
            f"{self.out}: {self.fed.rows} rows written of {self.fed.trajectories} trajectories "
            f"in {self.fed.groups} groups, {len(selection.held)} in all{refused}"
        )

    def _interrupt(self) -> None:
        self.interrupted = True
        self.stop.set()

    async def _run_is_here(self) -> bool:
        """Whether the run is done and nothing of it waits for us."""
        from hermes_queue.results.lag import consumer_lag

        try:
            status = await asyncio.to_thread(_run_status, self.flags["run_id"])
            if not status.done:
                return False
            left = await consumer_lag(self.group)
        except RedisUnavailable:  # the stream's reader waits it out, and says so
            return False
        return left.behind == left.pending == 0


def _run_status(run_id: str) -> Any:
    from hermes_queue.ledger import Ledger

    ledger = Ledger.connect()
    try:
        return ledger.run_status(run_id)
    finally:
        ledger.close()


def identity(out: Path) -> str:
    """A name that belongs to the dataset, wherever it is mounted, and goes when it is removed.

    The path would not do: two hosts may have the same one, and would share the groups between them;
    and a dataset that was removed and begun anew would only get what came since.
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
    place(flags["start"])
    filters = options.filters_of(kind, flags)
    exclude = options.exclusion_of(flags)
    own = options.format_options(kind, flags)
    dataset = kind.open(out, own, options.choice_of(filters, exclude))
    selection = Selection(filters, dataset.held, exclude, getattr(dataset, "refusal", None))
    try:
        feeding = _Feeding(name, out, flags)
        asyncio.run(feeding.run(dataset, selection))
    finally:
        dataset.close()
    if not flags["quiet"]:
        click.echo(feeding.said(selection), err=True)
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
        click.echo(json.dumps(summary))
    if feeding.interrupted:
        raise SystemExit(EXIT_INTERRUPTED)


def command(name: str) -> click.Command:
    """The command of a format, as `hermes_queue.extensions` finds it.

    Raises:
        ConfigurationError: there is no such format, or it cannot be loaded.
    """
    kind: Format = extensions.load("sink", name)

    def run(out: Path, **flags: Any) -> None:
        _feed(name, kind, out, flags)

    for decorator in (options.row_options, _stream_options, options.out_option):
        run = decorator(run)
    made = click.command(name, help=kind.help)(run)
    made.params += options.format_flags(name, kind, made.params)
    return made
