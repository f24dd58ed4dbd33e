"""Options that `sink` and `export` share: filters of rows, and the options of the format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_args

import click
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from hermes_queue.errors import ConfigurationError
from hermes_queue.models import StopReason
from hermes_queue.sinks.base import Format, RowChoice, SinkOptions
from hermes_queue.sinks.selection import Decontamination, Filters

F = TypeVar("F", bound=Callable[..., Any])

_PATH = click.Path(path_type=Path)
_FILE = click.Path(path_type=Path, dir_okay=False)


def row_options(command: F) -> F:
    """Add the options that select trajectories."""
    for option in reversed(
        (
            click.option("--min-score", type=float, metavar="S", help="Omit scores below S."),
            click.option("--max-score", type=float, metavar="S", help="Omit scores above S."),
            click.option(
                "--failed/--no-failed",
                default=None,
                help="Also write trajectories without a score, whose infrastructure failed.  "
                "[default: yes for jsonl and parquet without a bound of the score, else no]",
            ),
            click.option("--complete", is_flag=True, help="Omit groups with unmeasured members."),
            click.option("--mixed", is_flag=True, help="Write only groups with different scores."),
            click.option(
                "--clean",
                is_flag=True,
                help="Omit trajectories in which an attempt to get around the grading was seen.",
            ),
            click.option(
                "--tokens", is_flag=True, help="Omit rows without the server's ids and logprobs."
            ),
            click.option(
                "--stop-reason",
                "stop_reasons",
                multiple=True,
                type=click.Choice(get_args(StopReason)),
                help="Write only trajectories with this stop reason; may be repeated.",
            ),
            click.option(
                "--max-per-instance",
                type=click.IntRange(1),
                metavar="N",
                help="Write at most N rows of one instance, from all runs together.",
            ),
            click.option(
                "--exclude",
                type=_FILE,
                metavar="FILE",
                help="Decontamination: omit the instance ids and repositories (owner/name) in "
                "this file, one per line.",
            ),
        )
    ):
        command = option(command)
    return command


def out_option(command: F) -> F:
    """Add the option of the destination."""
    return click.option(
        "--out",
        required=True,
        type=_PATH,
        help="File or directory to write. An existing one is continued, each id once.",
    )(command)


def filters_of(kind: Format, flags: dict[str, Any]) -> Filters:
    """The filters that the flags of `row_options` set."""
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
    """The decontamination list, if one is given.

    Raises:
        InputError: the file cannot be read or is empty.
    """
    return Decontamination(flags["exclude"]) if flags["exclude"] else None


def choice_of(filters: Filters, exclude: Decontamination | None) -> RowChoice:
    """The selection criteria, for the format."""
    return RowChoice(filters.described(), len(exclude) if exclude else None)


def format_flags(name: str, kind: Format, taken: Iterable[click.Parameter]) -> list[click.Option]:
    """The format's own options as flags.

    Raises:
        ConfigurationError: an option clashes with `taken`, the flags of the command.
    """
    theirs = {option for parameter in taken for option in parameter.opts}
    flags = [_flag(field, info) for field, info in kind.options.model_fields.items()]
    if clash := sorted(theirs.intersection(o for flag in flags for o in flag.opts)):
        raise ConfigurationError(
            f"sink {name!r}: rename its options {', '.join(clash)}: "
            "the command already has options of these names"
        )
    return flags


def format_options(kind: Format, flags: Mapping[str, Any]) -> SinkOptions:
    """The format's own options, validated.

    Raises:
        click.BadParameter: an option is invalid.
    """
    given = {name: flags[name] for name in kind.options.model_fields if flags[name] is not None}
    try:
        return kind.options.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        flag = str(first["loc"][0] if first["loc"] else "").replace("_", "-")
        raise click.BadParameter(first["msg"], param_hint=f"--{flag}") from error


_TYPES: Mapping[Any, Any] = {int: click.INT, float: click.FLOAT, Path: _FILE}


def _flag(field: str, info: FieldInfo) -> click.Option:
    kinds = {
        kind for kind in get_args(info.annotation) or (info.annotation,) if kind is not NoneType
    }
    text = info.description or ""
    if info.default not in (None, False):
        text += f"  [default: {info.default}]"
    name = field.replace("_", "-")
    if kinds == {bool}:
        return click.Option([f"--{name}", field], is_flag=True, default=None, help=text)
    return click.Option([f"--{name}", field], type=_TYPES.get(kinds.pop(), click.STRING), help=text)
