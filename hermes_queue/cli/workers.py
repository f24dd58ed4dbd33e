"""`hermes-queue workers ...`: list live workers and control them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import click

from hermes_queue.cli.watch.running import print_running
from hermes_queue.cli.watch.table import age, print_table
from hermes_queue.ledger import Ledger
from hermes_queue.terminal.output import echo

_TIMEOUT_S = 5.0
_ALL = "all"


def _live() -> list[dict[str, Any]]:
    with closing(Ledger.connect()) as ledger:
        return ledger.workers()


_HELP = """List live workers; pause, resume, drain and resize them. Alone: one JSON line per worker.

NAME is a name from `workers list`, or "all".

\b
hermes-queue workers list
hermes-queue workers slots celery@host
hermes-queue workers slots --all
hermes-queue workers pause celery@host --lane train
hermes-queue workers resume all
hermes-queue workers drain celery@host
hermes-queue workers limits celery@host --concurrency 32
"""


@click.group(help=_HELP, invoke_without_command=True)
@click.pass_context
def workers(context: click.Context) -> None:
    """The group of commands; its help is `_HELP`."""
    if context.invoked_subcommand is None:
        for worker in _live():
            echo(json.dumps(worker))


@workers.command("list")
def list_workers() -> None:
    """Print each live worker: slots in use, lanes, whether it takes jobs."""
    table = [["WORKER", "HOST", "PID", "SLOTS", "LANES", "INTAKE", "UP", "BEAT"]]
    for facts in sorted(_live(), key=lambda each: str(each.get("name"))):
        lanes = [f"-{name}" if name in facts["paused_lanes"] else name for name in facts["lanes"]]
        up_s = age(facts["up_s"])
        slots = f"{facts['running']}/{facts['slots']}"
        row = [facts["name"], facts["host"], str(facts["pid"]), slots, ",".join(lanes)]
        table.append([*row, facts["intake"], up_s, age(facts["silent_s"])])
    print_table(table)


@workers.command()
@click.argument("name", default=_ALL)
@click.option(
    "--all",
    "lists_all",
    is_flag=True,
    help="Print a table of every trajectory that runs, the oldest first.",
)
@click.option(
    "--rows",
    type=click.IntRange(1, 10_000),
    default=200,
    show_default=True,
    help="Rows of one page of --all.",
)
@click.option(
    "--page",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Page of --all.",
)
@click.option("--json", "as_json", is_flag=True, help="With --all: a JSON line for each.")
def slots(name: str, lists_all: bool, rows: int, page: int, as_json: bool) -> None:
    """Print the current slots and trajectories of NAME as JSON, or every trajectory with --all.

    Without --all each worker is asked, and names those that have run longest. --all reads the
    ledger, whose stages are up to one lease renewal old.
    """
    if lists_all:
        print_running(None if name == _ALL else name, rows=rows, page=page, as_json=as_json)
        return
    echo(json.dumps(_ask("slots", name, {}), indent=2))


@workers.command()
@click.argument("name")
@click.option("--lane", "lanes", multiple=True, help="Only jobs of this lane; may be repeated.")
def pause(name: str, lanes: tuple[str, ...]) -> None:
    """Make NAME take no more jobs; its running trajectories continue."""
    _control("pause", name, {"lanes": list(lanes)})


@workers.command()
@click.argument("name")
@click.option("--lane", "lanes", multiple=True, help="Only jobs of this lane; may be repeated.")
def resume(name: str, lanes: tuple[str, ...]) -> None:
    """Make NAME take jobs again."""
    _control("resume", name, {"lanes": list(lanes)})


@workers.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Drain without asking.")
def drain(name: str, yes: bool) -> None:
    """Make NAME take no more jobs, and exit after its last trajectory has ended."""
    if not yes and name == _ALL:
        click.confirm("drain every worker of this deployment?", abort=True)
    _control("drain", name, {})


@workers.command()
@click.argument("name")
@click.option(
    "--concurrency", type=click.IntRange(1), required=True, help="Concurrent trajectories."
)
@click.option(
    "--slots",
    type=click.IntRange(1),
    help="Slots of the sandbox backend. Default: as --concurrency.",
)
def limits(name: str, concurrency: int, slots: int | None) -> None:
    """Set the concurrency of NAME until it restarts; running trajectories continue."""
    _control("set_limits", name, {"concurrency": concurrency, "slots": slots})


def _control(command: str, name: str, arguments: Mapping[str, Any]) -> None:
    failed = False
    for worker, answer in _ask(command, name, arguments).items():
        failed |= "error" in answer
        echo(f"{worker}: {answer.get('error') or answer.get('ok')}")
    if failed:
        raise click.ClickException("some workers reported an error")


def _ask(command: str, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    from hermes_queue.broker.pool.remote_control import ask

    live = [str(worker["name"]) for worker in _live()]
    names = live if name == _ALL else [name]
    if not live or name not in (*live, _ALL):
        known = ", ".join(live) or "no live worker"
        raise click.ClickException(f"there is no worker {name!r}; known: {known}")
    answers = ask(command, names, arguments, timeout_s=_TIMEOUT_S)
    if silent := [each for each in names if each not in answers]:
        echo(f"no answer from {', '.join(silent)} within {_TIMEOUT_S:.0f} s", err=True)
    if not answers:
        raise click.ClickException("no worker answered: see the workers' logs")
    return answers
