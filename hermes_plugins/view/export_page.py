"""`hermes-queue export --format html`: trajectories as one file for a browser."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes_plugins.view.command import check_libraries
from hermes_queue.bodies.reviews import ReviewFile
from hermes_queue.disk.locked import replacing
from hermes_queue.errors import EXIT_FAILED, ConfigurationError
from hermes_queue.terminal.output import echo

if TYPE_CHECKING:
    from hermes_plugins.view.index.index import Index

_FILE = click.Path(path_type=Path, dir_okay=False)
_HELP = """Write trajectories as one HTML file, which opens without a server.

ID is that of a trajectory or a group. Without one: what --run, --group and --filter meet together.
Reads Redis and the archive of this deployment, or with --from archives, JSONL files and Parquet
datasets. The file holds messages, patches, verdicts and comparisons, with --tokens also token ids
and log-probabilities; secrets are taken out once more. It asks nothing of any server.

\b
hermes-queue export --format html --run run1 --out run1.html
hermes-queue export --format html --filter 'run:run1 flag:*' --out flagged.html
hermes-queue export --format html run1.0a1b2c3d4e5f60718293 --from results.jsonl --out group.html

\b
exit codes: 0 all written
  1 the file cannot be written, or records cannot be read
  2 wrong flag, setting, input or destination | 4 Redis
"""


@click.command("export", help=_HELP)
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--format", "kind", required=True, metavar="html", hidden=True)
@click.option("--run", "run_id", metavar="ID", help="Write this run.")
@click.option("--group", "group_id", metavar="ID", help="Write this group.")
@click.option("--filter", "query", metavar="QUERY", help="In the filter language of the viewer.")
@click.option(
    "--from",
    "sources",
    multiple=True,
    type=click.Path(path_type=Path, exists=True),
    metavar="SOURCE",
    help="Archive directory, JSONL file or Parquet folder instead of Redis and the archive; "
    "repeatable.",
)
@click.option("--archive-only", is_flag=True, help="Do not read from Redis.")
@click.option("--tokens", is_flag=True, help="Also token ids, masks and log-probabilities.")
@click.option("--reviews", type=_FILE, metavar="FILE", help="Labels of people to show.")
@click.option(
    "--findings",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    multiple=True,
    metavar="FILE",
    help="Findings of judges to show; repeatable.",
)
@click.option("--out", required=True, type=_FILE, help="HTML file to write; replaced if it is one.")
@click.option("--quiet", is_flag=True, help="Do not print what was written.")
@click.option("--json", "as_json", is_flag=True, help="Print a summary as JSON at the end.")
def export_page(out: Path, ids: Sequence[str], **flags: Any) -> None:
    """Implements the command; its help is `_HELP`."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    check_libraries()
    query = _query(flags)
    if ids and query:
        raise click.UsageError("give ids, or --run, --group and --filter")
    if not (ids or query or flags["sources"]):
        raise click.UsageError("say what to write: an ID, --run, --group, --filter or --from")
    _check_out(out)
    with _opened(flags) as index:
        count, unreadable = _write(index, out, ids, query, flags)
    for message in unreadable:
        echo(f"error: {message}", err=True)
    size = out.stat().st_size
    if not flags["quiet"]:
        echo(f"{out}: {count} trajectories, {size / (1 << 20):.1f} MiB", err=True)
    if flags["as_json"]:
        summary = {"out": str(out), "trajectories": count, "bytes": size}
        echo(json.dumps({**summary, "unreadable": unreadable}))
    if unreadable:
        raise SystemExit(EXIT_FAILED)


def _write(
    index: Index, out: Path, ids: Sequence[str], query: str, flags: Mapping[str, Any]
) -> tuple[int, list[str]]:
    from importlib.metadata import version

    from hermes_plugins.view.filed.contents import FiledContents, chosen_rows
    from hermes_plugins.view.filed.document import document
    from hermes_plugins.view.findings import FindingFiles
    from hermes_plugins.view.index.terms import FilterError

    reviews = ReviewFile(flags["reviews"], must_exist=True) if flags["reviews"] else None
    if reviews:
        index.set_reviews(reviews.labels())
    contents = FiledContents(index, tokens=flags["tokens"])
    if flags["findings"]:
        contents.findings = FindingFiles(flags["findings"]).of
    if reviews:
        contents.reviews = reviews.read()
    try:
        rows = chosen_rows(index, query, ids)
    except FilterError as error:
        raise click.BadParameter(f"{error}; {error.hint}", param_hint="--filter") from error
    title = ", ".join(ids) or query or ", ".join(path.name for path in flags["sources"])
    answers = contents.answers(rows, title[:200], version("hermes-queue"))
    with replacing(out) as draft, draft.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(document(answers, title[:200]))
    return len(rows), list(dict.fromkeys(contents.unreadable))


def _query(flags: Mapping[str, Any]) -> str:
    """One filter of all conditions."""
    parts = [
        f'{name}:"{_escaped(flags[flag])}"'
        for name, flag in (("run", "run_id"), ("group", "group_id"))
        if flags[flag]
    ]
    return " ".join([*parts, *([flags["query"]] if flags["query"] else [])])


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _check_out(out: Path) -> None:
    """Refuse to replace what is not such a file."""
    from hermes_plugins.view.filed.document import MARK

    if not out.exists():
        return
    try:
        with out.open("rb") as file:
            begin = file.read(len(MARK))
    except OSError as error:
        raise ConfigurationError(f"{out}: cannot be read: {error.strerror}") from error
    if begin and begin != MARK.encode():
        raise ConfigurationError(f"{out}: is no exported page; choose another --out")


@contextmanager
def _opened(flags: Mapping[str, Any]) -> Iterator[Index]:
    """The index of the sources, up to date.

    It is that of a viewer with the same sources, unless one has it open: then another is made,
    since a viewer that nobody looks at reads nothing.
    """
    from hermes_plugins.view.index.index import Index
    from hermes_plugins.view.sources.opening import index_path, open_sources
    from hermes_queue.settings import ArchiveSettings

    paths = flags["sources"] or ((ArchiveSettings().directory,) if flags["archive_only"] else ())
    path = index_path(sources := open_sources(paths))
    labels_of = Path(flags["reviews"]) if flags["reviews"] else None
    index = Index(path, sources, labels_of=labels_of)
    if not index.writes:
        with closing(index), tempfile.TemporaryDirectory() as directory:
            apart = Path(directory) / path.name
            with closing(Index(apart, open_sources(paths), labels_of=labels_of)) as own:
                yield _read(own)
        return
    with closing(index):
        yield _read(index)


def _read(index: Index) -> Index:
    index.refresh()
    for problem in index.problems:
        echo(f"warning: {problem}", err=True)
    return index
