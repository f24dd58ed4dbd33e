"""`hermes-queue dead ...`: dead letters."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict

import click

from hermes_queue.cli.watch.table import duration
from hermes_queue.ledger import DeadLetters, Ledger, poison
from hermes_queue.ledger.dead import Letter, LetterFilter
from hermes_queue.terminal.escapes import label
from hermes_queue.terminal.output import echo
from hermes_queue.wire.names import NAME_CHARACTERS


def _filters(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option(
            "--older-than",
            type=duration,
            default="0s",
            help="Only letters older than this, e.g. 30m, 12h, 7d.",
        ),
        click.option(
            "--cause", default="", help="Only of this cause: env_bug, poison or undeliverable."
        ),
        click.option("--env", default="", help="Only of this env."),
        click.option("--run", "run_id", default="", help="Only of this run."),
    ):
        command = option(command)
    return command


def _chosen(ledger: Ledger, ids: tuple[str, ...], matching: LetterFilter) -> list[Letter]:
    letters = DeadLetters(ledger)
    return [letters.get(letter_id) for letter_id in ids] or list(letters.find(matching))


_HELP = """Jobs that would fail again and groups that could not be consumed, with the evidence.

\b
hermes-queue dead list --run my-run
hermes-queue dead show 1763690000000-0
hermes-queue dead requeue --cause env_bug --env swe_smith
hermes-queue dead purge --older-than 7d
hermes-queue dead items
"""
dead = click.Group("dead", help=_HELP)


@dead.command("list")
@_filters
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def list_letters(run_id: str, env: str, cause: str, older_than: float, as_json: bool) -> None:
    """Print dead letters, oldest first."""
    with closing(Ledger.connect()) as ledger:
        for letter in DeadLetters(ledger).find(LetterFilter(run_id, env, cause, older_than)):
            fields = letter.fields
            if as_json:
                echo(json.dumps({"id": letter.id, "age_s": letter.age_s, **fields}))
            else:
                what = fields.get("trajectory_id") or fields.get("group_id", "")
                names = f"{label(fields['cause']):<13} {label(what, NAME_CHARACTERS)}"
                echo(f"{letter.id}  {names}  {label(fields['reason'], 80)}")


@dead.command()
@click.argument("letter_id", metavar="ID")
def show(letter_id: str) -> None:
    """Print one dead letter with all its fields."""
    with closing(Ledger.connect()) as ledger:
        letter = DeadLetters(ledger).get(letter_id)
    for name, value in letter.fields.items():
        lines = value.splitlines() or [""]
        echo(f"{name}: {lines[0]}")
        for line in lines[1:]:
            echo(f"    {line}")


@dead.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@_filters
def requeue(ids: tuple[str, ...], run_id: str, env: str, cause: str, older_than: float) -> None:
    """Run jobs again: the named ones, or all that match. Each becomes a separate group."""
    from hermes_queue.broker.rerun import rerun_letters  # loads Celery

    with closing(Ledger.connect()) as ledger:
        chosen = _chosen(ledger, ids, LetterFilter(run_id, env, cause, older_than))
        if not ids:  # letters about a group have no job to run
            chosen = [letter for letter in chosen if letter.fields.get("job")]
        for again in rerun_letters(ledger, chosen):
            echo(f"{again.old}: runs again as {again.new}")


@dead.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@_filters
@click.option("--yes", is_flag=True, help="Delete without asking.")
def purge(
    ids: tuple[str, ...], run_id: str, env: str, cause: str, older_than: float, yes: bool
) -> None:
    """Delete dead letters: the named ones, or all that match."""
    with closing(Ledger.connect()) as ledger:
        letters = DeadLetters(ledger)
        chosen = _chosen(ledger, ids, LetterFilter(run_id, env, cause, older_than))
        if chosen and not yes:
            click.confirm(f"delete {len(chosen)} dead letters?", abort=True)
        echo(f"deleted {sum(letters.purge(letter) for letter in chosen)} dead letters")


@dead.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def items(as_json: bool) -> None:
    """Print the items under which workers died, and their dead letters.

    Their jobs run alone from the first attempt on, in every run, until the item is forgotten.
    """
    with closing(Ledger.connect()) as ledger:
        for each in poison.poison_items(ledger):
            if as_json:
                echo(json.dumps(asdict(each)))
            else:
                echo(f"{each.item_sha256}  {each.letter_id}  {each.trajectory_id}")


@dead.command()
@click.argument("item_hashes", nargs=-1, required=True, metavar="ITEM...")
def forget(item_hashes: tuple[str, ...]) -> None:
    """Let jobs of these items (hashes as `items` prints them) run beside others again."""
    with closing(Ledger.connect()) as ledger:
        for item_hash in item_hashes:
            poison.forget(ledger, item_hash)
            echo(f"{item_hash}: forgotten")
