"""`hermes-queue mix FILE`: one producer of many sources; `mix set|show|check|forget`."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from hermes_plugins.mix.checkpoint import forget as forget_mix
from hermes_plugins.mix.shown import ShownMix, ShownSource, find_mix, mix_names
from hermes_plugins.mix.tuning import check_marks, tune, unknown_mix
from hermes_queue.cli.watch.table import aligned, print_table
from hermes_queue.errors import ConfigurationError
from hermes_queue.ledger import Ledger
from hermes_queue.terminal.output import echo

_COLUMNS = (
    "source",
    "weight",
    "share",
    "groups",
    "trajectories",
    "epoch",
    "rows",
    "sampler",
    "state",
)
_HELP = """Enqueue rows of many sources by weights, and keep the backlog between two marks.

FILE is a TOML file of sources: each a producer with its flags, a weight, a quota, epochs and a
sampler (docs/plugins/mix.md; examples/mix.toml). The command runs until every source is done or it
is ended. Killed at any moment and started again, it goes on with the same jobs: none comes twice,
and none is left out.

\b
hermes-queue mix mix.toml
hermes-queue mix check mix.toml
hermes-queue mix set my-mix maths.weight=2 code.pause=true high=2000
hermes-queue mix show my-mix

\b
exit codes: 0 every source is done, or SIGTERM | 2 wrong file, row or setting, or another process
  serves this mix | 4 Redis (at the start; later it is waited for) | 130 Ctrl-C
"""


class _Mix(click.Group):
    """`mix FILE` is short for `mix run FILE`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and self.get_command(ctx, args[0]) is None:
            args = ["run", *args]
        return super().resolve_command(ctx, args)


mix = _Mix("mix", help=_HELP)
_FILE = click.Path(path_type=Path, dir_okay=False)


@mix.command()
@click.argument("file", type=_FILE)
@click.option("--quiet", is_flag=True, help="Say nothing but errors.")
def run(file: Path, quiet: bool) -> None:
    """Serve the mix of FILE until every source is done, or SIGTERM."""
    _command("serve_mix", file, quiet=quiet)


@mix.command()
@click.argument("file", type=_FILE)
@click.option("--json", "as_json", is_flag=True, help="Print the sources as JSON.")
def check(file: Path, as_json: bool) -> None:
    """Read FILE and the rows of all its sources; enqueue nothing. Needs no Redis."""
    _command("check_mix", file, as_json=as_json)


def _command(name: str, file: Path, **options: Any) -> None:
    sys.path.insert(0, os.getcwd())  # for an env of one's own, as `python -m producers` has it
    from producers.command import run_command  # all that a producer needs

    def command() -> int:
        from hermes_plugins.mix import run as runs

        work: Callable[..., int] = getattr(runs, name)
        return work(file, **options)

    sys.exit(run_command(command, interrupted="interrupted; the same command goes on"))


@mix.command("set")
@click.argument("name")
@click.argument("settings", nargs=-1, required=True, metavar="SETTING=VALUE...")
def set_(name: str, settings: tuple[str, ...]) -> None:
    """Change settings of the mix NAME, while it is served and for its later starts.

    SOURCE.weight, SOURCE.items, SOURCE.trajectories (quotas), SOURCE.pause, and of the mix: low,
    high, pause. SETTING= without a value goes back to what the file says. Nothing changes if one of
    them is wrong.
    """
    changes = {}
    for each in settings:
        setting, equals, value = each.partition("=")
        if not equals:
            raise ConfigurationError(f"{each}: write SETTING=VALUE, e.g. maths.weight=2")
        changes[setting] = value
    with closing(Ledger.connect()) as ledger:
        found = find_mix(ledger, name)
        check_marks(changes, found.live, found.marks)
        tune(ledger, name, changes, found.sources)
    for setting, value in changes.items():
        echo(f"{name}: {setting} = {value or 'as the file says'}")
    if not found.served_by:
        echo(f"{name} is not served now; its next start heeds this")


@mix.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per mix.")
def show(name: str | None, as_json: bool) -> None:
    """Show the mix NAME source by source, or all mixes of this Redis."""
    with closing(Ledger.connect()) as ledger:
        found = [find_mix(ledger, each) for each in ([name] if name else mix_names(ledger))]
    if as_json:
        for each in found:
            echo(json.dumps(each.as_dict()))
    elif name:
        for line in _mix_lines(found[0]):
            echo(line)
    else:
        print_table(_summary_rows(found))


@mix.command()
@click.argument("name")
def forget(name: str) -> None:
    """Forget how far the mix NAME has come, and its live settings; its run and jobs stay.

    The next start draws the same groups from the beginning. Those that the run has are not enqueued
    again; to make them anew, purge the run, too.
    """
    with closing(Ledger.connect()) as ledger:
        known = forget_mix(ledger, name)
    if not known:
        raise unknown_mix(name)
    echo(f"{name}: forgotten")


# --- what `mix show` prints ------------------------------------------------------------------


def _summary_rows(found: Sequence[ShownMix]) -> list[tuple[str, ...]]:
    """A table of mixes."""
    rows: list[tuple[str, ...]] = [("mix", "served by", "sources", "groups", "waiting", "running")]
    for each in found:
        groups = sum(source.items for source in each.sources.values())
        numbers = (len(each.sources), groups, each.waiting, each.running)
        rows.append((each.name, _served(each), *map(str, numbers)))
    return rows


def _mix_lines(mix: ShownMix) -> Iterator[str]:
    """One mix, source by source."""
    yield f"{mix.name}: served by {_served(mix)}"
    yield f"{mix.waiting} waiting, {mix.running} running, {mix.finished} finished"
    if mix.live:
        yield f"set by `mix set`: {_live(mix.live)}"
    if not mix.sources:
        yield "its sources have not been read yet"
        return
    active = {name: _state(source) == "active" for name, source in mix.sources.items()}
    total = sum(source.weight for name, source in mix.sources.items() if active[name])
    rows = [_COLUMNS]
    for name, source in mix.sources.items():
        share = source.weight / total if active[name] else 0.0
        rows.append(
            (
                name,
                f"{source.weight:g}" + ("*" if "weight" in source.live else ""),
                f"{share:.1%}",
                _of(source.items, source.quota_items),
                _of(source.trajectories, source.quota_trajectories),
                _of(min(source.epoch, source.epochs or source.epoch), source.epochs),
                str(source.rows),
                source.sampler,
                _state(source),
            )
        )
    yield from aligned(rows)
    for name, source in mix.sources.items():
        if source.looked:
            counts = ", ".join(f"{count} {what}" for what, count in sorted(source.looked.items()))
            yield f"{name}, by pass rate, of the rows looked at in this epoch: {counts}"
    if any("weight" in source.live for source in mix.sources.values()):
        yield "* set while it was served; the file has another one"


def _of(used: int, most: int | None) -> str:
    return str(used) if most is None else f"{used} of {most}"


def _state(source: ShownSource) -> str:
    if source.epochs is not None and source.epoch > source.epochs:
        return "done"
    quotas = (
        (source.quota_items, source.items + 1),
        (source.quota_trajectories, source.trajectories + source.group_jobs),
    )
    if any(most is not None and used > most for most, used in quotas):
        return "quota reached"
    if source.pause:
        return "paused"
    return "active" if source.weight > 0 else "weight 0"


def _served(mix: ShownMix) -> str:
    facts: dict[str, Any] = mix.served_by
    if facts:
        text = f"process {facts.get('pid')} on {facts.get('host')}"
        if since := facts.get("since"):
            text += time.strftime(", since %Y-%m-%d %H:%M UTC", time.gmtime(since))
        return text
    return f"nobody ({mix.ended})" if mix.ended else "nobody (its producer died, or Redis was away)"


def _live(settings: dict[str, str]) -> str:
    return ", ".join(f"{name}={value[:20]}" for name, value in sorted(settings.items()))
