"""`hermes-queue export`: writes a dataset of everything finished so far."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import click

from hermes_queue import extensions
from hermes_queue.cli.declared import DeclaredSubcommands
from hermes_queue.cli.sinks import options
from hermes_queue.errors import EXIT_FAILED
from hermes_queue.models import TrajectoryGroup
from hermes_queue.plugins import Command, load_target
from hermes_queue.results.record_file import read_records
from hermes_queue.sinks.base import Format
from hermes_queue.sinks.feed import GROUPS_PER_WRITE, store
from hermes_queue.sinks.selection import counted
from hermes_queue.terminal.output import echo

_HELP = """Write a dataset of everything finished so far, and end.

Reads the stream and the archive of deleted results (HERMES_QUEUE_ARCHIVE_DIRECTORY), or with
--from a file that a producer wrote. Other consumers are not affected. Run it again to add newer
results: each trajectory is written once.

\b
hermes-queue export --format parquet --run run1 --out data/run1 --clean --exclude test-set.txt
hermes-queue export --format sharegpt --from results/run1.jsonl --out sft.jsonl --min-score 1
hermes-queue export --format html --run run1 --out run1.html   # its options: --format html --help

\b
exit codes: 0 all written
  1 the destination failed, or groups are missing: records are lost, or cannot become rows
  2 wrong flag, setting, input or destination | 4 Redis
"""


class _Export(click.Command):
    """Has the options of all bundled formats, and those of the requested one.

    For a format that is no dataset and has options of its own, a plugin's command stands in, which
    it declares as `export NAME`.
    """

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        others = _others()
        for name in _requested(args):
            if name in others:
                command: click.Command = load_target(others[name].target)
                return command.make_context(info_name, args, parent, **extra)
        return super().make_context(info_name, args, parent, **extra)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[__name__] = self._flags([*extensions.own("sink"), *_requested(args)])
        return super().parse_args(ctx, args)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        own = ctx.meta.get(__name__) or self._flags(extensions.own("sink"))
        *shared, help_flag = super().get_params(ctx)
        return [*shared, *own, help_flag]

    def _flags(self, names: Iterable[str]) -> list[click.Option]:
        """The options of these formats; an option that several formats share is listed once."""
        found: dict[str, click.Option] = {}
        for name in names:
            kind: Format = extensions.load("sink", name)
            flags = options.format_flags(name, kind, self.params)
            found.update({str(flag.name): flag for flag in flags if flag.name not in found})
        return list(found.values())


def _others() -> dict[str, Command]:
    """Commands that stand in for a format, by its name."""
    declared = DeclaredSubcommands("export").declared()
    own = extensions.own("sink")
    return {name: command for name, command in declared.items() if command and name not in own}


def _requested(args: Sequence[str]) -> Iterator[str]:
    """The values of `--format`, none of them empty."""
    for word, following in zip_longest(args, args[1:], fillvalue=""):
        flag, equals, value = word.partition("=")
        if flag == "--format" and (found := value if equals else following):
            yield found


@click.command(cls=_Export, help=_HELP)
@click.option(
    "--format",
    "kind",
    required=True,
    metavar="NAME",
    help=f"{', '.join(extensions.own('sink'))}, a plugin's name, or package.module:FORMAT; "
    f"with options of their own (--format NAME --help): {', '.join(_others()) or 'none'}.",
)
@options.out_option
@click.option("--run", "run_id", metavar="ID", help="Write only this run.")
@click.option("--env", metavar="NAME", help="Write only this env.")
@click.option(
    "--since", type=float, metavar="UNIX-S", help="Write only groups that finished since this time."
)
@click.option(
    "--from",
    "source",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.jsonl",
    help="Read this file of records instead of Redis and the archive.",
)
@click.option("--archive-only", is_flag=True, help="Do not read from Redis.")
@click.option("--quiet", is_flag=True, help="Do not print the number of rows.")
@click.option("--json", "as_json", is_flag=True, help="Print a summary as JSON at the end.")
def export(kind: str, out: Path, **flags: Any) -> None:
    """See `_HELP`."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    form: Format = extensions.load("sink", kind)
    missing: list[str] = []
    groups = _groups(flags, missing)
    count, rows = 0, 0
    with options.opened(kind, form, out, flags) as (dataset, selection):
        while batch := list(islice(groups, GROUPS_PER_WRITE)):
            written, spoiled = store(dataset, selection, batch)
            count += len(batch)
            rows += written
            missing += [_no_row(group_id, error) for group_id, error in spoiled.items()]
    for message in missing:
        echo(f"error: {message}", err=True)
    if not flags["quiet"]:
        refused = f"; refused: {counted(selection.refused)}" if selection.refused else ""
        held = f"{len(dataset.held)} trajectories in all"
        echo(f"{out}: {rows} rows added from {count} groups, {held}{refused}", err=True)
        for line in getattr(dataset, "remarks", ()):
            echo(line, err=True)
    if flags["as_json"]:
        summary = {"out": str(out), "groups": count, "rows": rows, "held": len(dataset.held)}
        echo(json.dumps({**summary, "refused": dict(selection.refused), "missing": missing}))
    if missing:
        raise SystemExit(EXIT_FAILED)


export.params += options.row_flags()


def _groups(flags: dict[str, Any], missing: list[str]) -> Iterator[TrajectoryGroup]:
    if flags["source"]:
        found = read_records(flags["source"])
        return (
            group
            for group in found
            if flags["run_id"] in (None, group.run_id)
            and flags["env"] in (None, group.env)
            and group.finished >= (flags["since"] or 0)
        )
    from hermes_queue.results.replay import replay

    return replay(
        run=flags["run_id"],
        env=flags["env"],
        since=flags["since"],
        stream=not flags["archive_only"],
        on_missing=lambda error: missing.append(str(error)),
        allow_evaluation=True,  # the selection refuses and counts them
    )


def _no_row(group_id: str, error: Exception) -> str:
    return f"group {group_id}: it cannot become rows: {type(error).__name__}: {error}"[:500]
