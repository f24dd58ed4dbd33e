"""The options that `sink` and `export` share: which rows, and how the dataset is cut."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, get_args

import click

from hermes_queue.errors import InputError
from hermes_queue.models import StopReason
from hermes_queue.sinks.datasets.formats import Format, Shape
from hermes_queue.sinks.datasets.hf import CardFacts
from hermes_queue.sinks.datasets.parquet import SHARD_BYTES, SHARD_ROWS, SHARD_S
from hermes_queue.sinks.selection import Decontamination, Filters

F = TypeVar("F", bound=Callable[..., Any])

_PATH = click.Path(path_type=Path)
_FILE = click.Path(path_type=Path, dir_okay=False)


def row_options(command: F) -> F:
    """Which trajectories become rows."""
    for option in reversed(
        (
            click.option("--min-score", type=float, metavar="S", help="Only scores from S on."),
            click.option("--max-score", type=float, metavar="S", help="Only scores up to S."),
            click.option(
                "--failed/--no-failed",
                default=None,
                help="Also what has no score, for reasons of infrastructure.  [default: yes for "
                "jsonl and parquet without a bound of the score, else no]",
            ),
            click.option("--complete", is_flag=True, help="Only groups measured in full."),
            click.option("--mixed", is_flag=True, help="Only groups with more than one score."),
            click.option(
                "--clean",
                is_flag=True,
                help="Without trajectories that were seen trying to get around the grading.",
            ),
            click.option(
                "--tokens", is_flag=True, help="Only with the server's token ids and logprobs."
            ),
            click.option(
                "--stop-reason",
                "stop_reasons",
                multiple=True,
                type=click.Choice(get_args(StopReason)),
                help="Only these; may be given several times.",
            ),
            click.option(
                "--max-per-instance",
                type=click.IntRange(1),
                metavar="N",
                help="At most N rows of one instance, whatever run they are of.",
            ),
            click.option(
                "--exclude",
                type=_FILE,
                metavar="FILE",
                help="Decontamination: instance ids and repositories (owner/name), one per line.",
            ),
        )
    ):
        command = option(command)
    return command


def shard_options(command: F) -> F:
    """How Parquet shards are cut."""
    for option in reversed(
        (
            click.option(
                "--shard-rows",
                type=click.IntRange(1),
                default=SHARD_ROWS,
                show_default=True,
                help="A shard has at most about so many rows,",
            ),
            click.option(
                "--shard-mb",
                type=click.IntRange(1),
                default=SHARD_BYTES >> 20,
                show_default=True,
                help="or so many MiB,",
            ),
            click.option(
                "--shard-s",
                type=click.FloatRange(0, min_open=True),
                default=SHARD_S,
                show_default=True,
                help="or what came in so many seconds.",
            ),
        )
    ):
        command = option(command)
    return command


def card_options(command: F) -> F:
    """What the data card says beyond the counts."""
    for option in reversed(
        (
            click.option("--name", default="Trajectories", help="The dataset's name on its card."),
            click.option(
                "--licence", metavar="ID", help="The dataset's licence: mit, cc-by-4.0, ..."
            ),
            click.option(
                "--licence-notes",
                type=_FILE,
                metavar="FILE",
                help="Text about the licences of what the rows are made from, for the card.",
            ),
        )
    ):
        command = option(command)
    return command


def out_option(command: F) -> F:
    """Where to."""
    return click.option(
        "--out", required=True, type=_PATH, help="Continued where it exists, each id once."
    )(command)


def filters_of(kind: Format, flags: dict[str, Any]) -> Filters:
    """The filters that the flags of `row_options` name."""
    failed = flags["failed"]
    if failed is None:
        failed = kind.keeps_failed and flags["min_score"] is flags["max_score"] is None
    return Filters(
        failed=failed,
        **{
            name: flags[name]
            for name in ("min_score", "max_score", "complete", "mixed", "clean", "tokens")
        },
        stop_reasons=tuple(flags["stop_reasons"]),
        max_per_instance=flags["max_per_instance"],
    )


def exclusion_of(flags: dict[str, Any]) -> Decontamination | None:
    """The decontamination list.

    Raises:
        InputError: the file cannot be read or lists nothing.
    """
    return Decontamination(flags["exclude"]) if flags["exclude"] else None


def shape_of(flags: dict[str, Any], filters: Filters, exclude: Decontamination | None) -> Shape:
    """How the dataset is cut and described.

    Raises:
        InputError: the notes about licences cannot be read.
    """
    shards = {}
    if "shard_rows" in flags:
        shards = {
            "shard_rows": flags["shard_rows"],
            "shard_bytes": flags["shard_mb"] << 20,
            "shard_s": flags["shard_s"],
        }
    notes = None
    if flags.get("licence_notes"):
        try:
            notes = flags["licence_notes"].read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{flags['licence_notes']}: cannot be read: {error}") from error
    card = CardFacts(
        name=flags.get("name", "Trajectories"),
        licence=flags.get("licence"),
        licence_notes=notes,
        filters=filters.described(),
        decontaminated=len(exclude) if exclude else None,
    )
    return Shape(shards, card)
