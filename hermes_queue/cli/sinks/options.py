"""Options of `sink` and `export`: positions, filters of rows, and the options of the format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin

import click
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from hermes_queue.bodies.reviews import ReviewFile
from hermes_queue.errors import ConfigurationError
from hermes_queue.results.filters import stream_id
from hermes_queue.sinks.base import DatasetSink, Format, RowChoice
from hermes_queue.sinks.selection import Decontamination, Filters, Selection
from hermes_queue.wire.branches import ALL

F = TypeVar("F", bound=Callable[..., Any])
M = TypeVar("M", bound=BaseModel)

_FILE = click.Path(path_type=Path, dir_okay=False)
_TYPES: Mapping[Any, Any] = {int: click.INT, float: click.FLOAT, Path: _FILE}
_SINK = ("write", "close", "held")
"""What a `DatasetSink` has."""


def place(text: str) -> str | float:
    """Parse a position for the `start` of `consume`.

    Raises:
        click.BadParameter: the text is not a position.
    """
    try:
        found: str | float = float(text) if "." in text else text
        stream_id(found)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return found


def out_option(command: F) -> F:
    """Add the option of the destination."""
    return click.option(
        "--out",
        required=True,
        type=click.Path(path_type=Path),
        help="File or directory to write. An existing one is continued, each id once.",
    )(command)


def row_flags() -> list[click.Option]:
    """The options that select trajectories."""
    failed = click.Option(
        ["--failed/--no-failed"],
        default=None,
        help="Also write trajectories without a score, whose infrastructure failed.  "
        "[default: yes for jsonl and parquet without a bound of the score, else no]",
    )
    exclude = click.Option(
        ["--exclude"],
        type=_FILE,
        metavar="FILE",
        help="Decontamination: omit the instance ids and repositories (owner/name) in this file, "
        "one per line.",
    )
    reviews = click.Option(
        ["--reviews"],
        type=_FILE,
        metavar="FILE",
        help="Labels of people, as JSON lines (docs/datasets.md); for --reviewed.",
    )
    return [failed, *flags_of(Filters, but=("failed",)), reviews, exclude]


def format_flags(name: str, kind: Format, taken: Iterable[click.Parameter]) -> list[click.Option]:
    """The format's own options as flags.

    Raises:
        ConfigurationError: an option clashes with `taken`, the flags of the command.
    """
    theirs = {option for parameter in taken for option in parameter.opts}
    flags = flags_of(kind.options)
    if clash := sorted(theirs.intersection(o for flag in flags for o in flag.opts)):
        raise ConfigurationError(
            f"sink {name!r}: rename its options {', '.join(clash)}: "
            "the command already has options of these names"
        )
    return flags


@contextmanager
def opened(
    name: str, kind: Format, out: Path, flags: dict[str, Any]
) -> Iterator[tuple[DatasetSink, Selection]]:
    """The dataset that the flags describe, closed at the end, and the selection of its rows.

    Raises:
        click.BadParameter: an option is invalid.
        ConfigurationError: the dataset cannot be written, or the format opens no sink.
        InputError: the decontamination list or the labels cannot be read, or it is empty.
    """
    if flags["failed"] is None:
        bounded = flags["min_score"] is not None or flags["max_score"] is not None
        flags = {**flags, "failed": kind.keeps_failed and not bounded}
    if kind.keeps_side and not flags.get("branches"):
        flags = {**flags, "branches": ALL}
    filters = validated(Filters, flags)
    if bool(filters.reviewed) != bool(flags["reviews"]):
        raise click.UsageError("--reviewed LABEL and --reviews FILE go together")
    reviews = ReviewFile(flags["reviews"], must_exist=True) if flags["reviews"] else None
    exclude = Decontamination(flags["exclude"]) if flags["exclude"] else None
    choice = RowChoice(filters.described(), len(exclude) if exclude else None)
    dataset = kind.open(out, validated(kind.options, flags), choice)
    if missing := [part for part in _SINK if not hasattr(dataset, part)]:
        raise ConfigurationError(
            f"sink {name!r} opens a {type(dataset).__name__}, which has no {', '.join(missing)}: "
            "see hermes_queue.sinks.base:DatasetSink"
        )
    selection = Selection(
        filters,
        dataset.held,
        exclude,
        refusal=getattr(dataset, "refusal", None),
        left_over=getattr(dataset, "left_over", None),
        label_of=reviews.label_of if reviews else None,
    )
    with closing(dataset):
        yield dataset, selection


def validated(model: type[M], flags: Mapping[str, Any]) -> M:
    """The options that the flags of `flags_of(model)` set.

    Raises:
        click.BadParameter: an option is invalid.
    """
    names = model.model_fields.keys() & flags.keys()
    try:
        # An option that may be repeated is () if it was not given.
        return model.model_validate({n: flags[n] for n in names if flags[n] not in (None, ())})
    except ValidationError as error:
        first = error.errors()[0]
        flag = str(first["loc"][0] if first["loc"] else "").replace("_", "-")
        raise click.BadParameter(first["msg"], param_hint=f"--{flag}") from error


def flags_of(model: type[BaseModel], *, but: Iterable[str] = ()) -> list[click.Option]:
    """The fields of a model as flags, named by their alias if they have one."""
    fields = model.model_fields.items()
    return [_flag(field, info) for field, info in fields if field not in but]


def _flag(field: str, info: FieldInfo) -> click.Option:
    names = [f"--{info.validation_alias or field}".replace("_", "-"), field]
    text = info.description or ""
    if info.default and not info.is_required():
        shown = ", ".join(info.default) if isinstance(info.default, tuple) else info.default
        text += f"  [default: {shown}]"
    annotation: Any = info.annotation
    multiple = get_origin(annotation) is tuple
    if multiple or NoneType in get_args(annotation):
        annotation, *others = {*get_args(annotation)} - {NoneType, ...}
        annotation = str if others else annotation
    if annotation is bool:
        return click.Option(names, is_flag=True, default=None, help=text)
    is_choice = get_origin(annotation) is Literal
    kind = click.Choice(get_args(annotation)) if is_choice else _TYPES.get(annotation, click.STRING)
    return click.Option(names, type=kind, multiple=multiple, required=info.is_required(), help=text)
