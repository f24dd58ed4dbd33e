"""`hermes-queue show ID`: one trajectory, or a group, in this terminal."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes_plugins.view.lookup import LookedUp, NotFound, find, open_places
from hermes_plugins.view.present.patches import patch_text
from hermes_plugins.view.present.shapes import as_json
from hermes_queue.errors import InputError
from hermes_queue.models import ScoredTrajectory
from hermes_queue.terminal.escapes import INVISIBLE, label, visible
from hermes_queue.terminal.output import console, echo
from hermes_queue.wire.arrays import PackedArray

if TYPE_CHECKING:
    from rich.console import RenderableType

_HELP = """Show one trajectory: messages, verdict and patch; or a group, its samples aligned.

ID is that of a trajectory (RUN.ITEM.SAMPLE) or of a group (RUN.ITEM). SOURCE is an archive
directory or a file of JSON lines; without one, Redis and the archive of this deployment are
searched. Of a trajectory that waits, runs or has become a dead letter, it shows what the ledger
knows.

\b
hermes-queue show run1.0a1b2c3d4e5f60718293.0
hermes-queue show run1.0a1b2c3d4e5f60718293 results.jsonl
hermes-queue show run1.0a1b2c3d4e5f60718293.0 --messages 4:6
hermes-queue show run1.0a1b2c3d4e5f60718293.0 --patch | git apply
hermes-queue show run1.0a1b2c3d4e5f60718293.0 --json | jq .report

In a terminal, the pager of $PAGER is used (less, with colours, if it is there). Control characters
and others that nobody sees are shown as signs.
"""
_UNSAFE_IN_JSON = re.compile(f"[{INVISIBLE}\x1b\r\ufe00-\ufe0f]")
_WIDTH = 120
"""Columns where there is no terminal."""


def _range(context: click.Context, parameter: click.Parameter, value: str | None) -> Any:
    if value is None:
        return None
    found = re.fullmatch(r"(\d{0,9})(:?)(\d{0,9})", value)
    if not found or value in ("", ":"):
        raise click.BadParameter(f"{value!r} is not a range; write 4, 4:6, 4: or :6")
    first = int(found[1] or 0)
    if not found[2]:
        return first, first + 1
    return first, int(found[3]) if found[3] else None


@click.command(help=_HELP)
@click.argument("name", metavar="ID")
@click.argument("sources", nargs=-1, metavar="[SOURCE]...", type=click.Path(path_type=Path))
@click.option(
    "--messages",
    "span",
    metavar="FROM:TO",
    callback=_range,
    help="Only these messages, whole: 4, 4:6 (without 6), 4: or :6.",
)
@click.option(
    "--branch",
    type=click.IntRange(min=0),
    metavar="N",
    help="Only this conversation of an agent program, such as that of a sub-agent.",
)
@click.option("--patch", is_flag=True, help="Only the patch, as it is in the report.")
@click.option("--tokens", is_flag=True, help="Only token ids, masks and logprobs, by turn.")
@click.option(
    "--tokenizer",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="tokenizer.json of the model: with --tokens, the text too. Needs the package tokenizers.",
)
@click.option(
    "--json", "as_records", is_flag=True, help="The record as JSON; of a group, one a line."
)
@click.option("--no-pager", is_flag=True, help="Write to the terminal at once.")
def show(name: str, sources: tuple[Path, ...], **flags: Any) -> None:
    """Implements the command; its help is `_HELP`."""
    chosen = [what for what in ("span", "patch", "tokens", "as_records") if flags[what]]
    if len(chosen) > 1:
        raise click.UsageError("choose one of --messages, --patch, --tokens and --json")
    if flags["tokenizer"] and not flags["tokens"]:
        raise click.UsageError("--tokenizer goes with --tokens")
    if flags["branch"] is not None and {"patch", "tokens", "as_records"} & {*chosen}:
        raise click.UsageError("--branch shows messages")
    try:
        found = find(name, open_places(sources))
    except NotFound as error:
        if sources:
            raise
        raise NotFound(f"{error}. Files are searched if named: hermes-queue show ID FILE") from None
    if flags["as_records"]:
        _print_records(found)
    elif flags["patch"]:
        _print_patches(found)
    else:
        _page(_shown(found, flags), with_pager=not flags["no_pager"])


def _print_records(found: LookedUp) -> None:
    _print_notes(found)
    for raw in found.records:
        echo(json_of(raw))


def json_of(raw: Mapping[Any, Any]) -> str:
    """The record as one line of JSON, in which every character that would deceive is escaped.

    It is as the JSONL sink writes it, if it is valid; else what there is of it.
    """
    try:
        text = ScoredTrajectory.model_validate(raw).to_json()
    except (ValueError, RecursionError):  # pydantic's errors are ValueErrors
        try:
            text = json.dumps(raw, default=_listed, allow_nan=False)
        except (ValueError, TypeError, RecursionError):
            text = as_json(raw, indent=None)
    return _UNSAFE_IN_JSON.sub(_escaped, text)


def _listed(value: object) -> Any:
    if isinstance(value, PackedArray):
        return list(value)
    raise TypeError(type(value).__name__)


def _escaped(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _print_patches(found: LookedUp) -> None:
    """The patches as they are in the reports, with signs for what a terminal would obey."""
    _print_notes(found)
    for raw in found.records:
        text, size = patch_text(raw)
        if not isinstance(text, str):
            echo(f"{label(raw.get('trajectory_id'))}: the report has no patch", err=True)
            continue
        shown = visible(text)
        if size > len(text.encode(errors="surrogatepass")):
            echo(f"the report has only the beginning of {size} bytes", err=True)
        if shown != text:
            echo(
                "characters that nobody sees are shown as signs, so this does not apply; "
                "--json has the patch as it is",
                err=True,
            )
        echo(shown, nl=not shown.endswith("\n"))


def _print_notes(found: LookedUp) -> None:
    for note in found.notes:
        echo(visible(note), err=True)


def _shown(found: LookedUp, flags: Mapping[str, Any]) -> Iterator[RenderableType]:
    """What is shown, piece by piece. What can be wrong is looked at before the first piece."""
    from rich.text import Text

    from hermes_plugins.view import present
    from hermes_plugins.view.terminal import tables, trajectory

    decoder = present.Decoder(flags["tokenizer"]) if flags["tokenizer"] else None
    records = _conversations(found, flags["branch"])
    is_part = flags["span"] is not None or flags["branch"] is not None
    is_table = found.is_group and not is_part and not flags["tokens"]

    def pieces() -> Iterator[RenderableType]:
        yield Text(f"in {visible(found.where)}", style="dim")
        yield from trajectory.notes(found.notes)
        if is_table:
            yield from tables.group(records)
            return
        for raw in records:
            if flags["tokens"]:
                yield from tables.tokens(raw, decoder)
            elif is_part:
                first, last = flags["span"] or (0, None)
                yield from trajectory.transcript(raw, first, last, whole=bool(flags["span"]))
            else:
                yield from trajectory.trajectory(raw)

    return pieces()


def _conversations(found: LookedUp, branch: int | None) -> Sequence[Mapping[Any, Any]]:
    from hermes_plugins.view import present

    if branch is None:
        return found.records
    chosen = [present.of_branch(raw, branch) for raw in found.records]
    known = [raw for raw in chosen if raw is not None]
    if not known:
        raise InputError(f"there is no conversation {branch} in this record")
    return known


def _page(pieces: Iterable[RenderableType], *, with_pager: bool) -> None:
    is_terminal = sys.stdout.isatty()
    if not with_pager or not is_terminal:
        for text in _rendered(pieces, is_terminal=is_terminal):
            click.echo(text, nl=False, color=is_terminal)  # noqa: TID251 - harmless by now
        return
    os.environ.setdefault("LESS", "-FRX")
    click.echo_via_pager(_rendered(pieces, is_terminal=True))


def _rendered(pieces: Iterable[RenderableType], *, is_terminal: bool) -> Iterator[str]:
    """Each piece as text, with our own styles if it goes to a terminal."""
    width = None if is_terminal else _WIDTH
    page = console(file=StringIO(), force_terminal=is_terminal, width=width, legacy_windows=False)
    for piece in pieces:
        with page.capture() as captured:
            page.print(piece, markup=False, emoji=False, highlight=False, soft_wrap=True)
        yield captured.get()
