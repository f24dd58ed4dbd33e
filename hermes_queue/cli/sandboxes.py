"""`hermes-queue sandboxes ...`: what exists, whose it is, and how to end it."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from hermes_queue.cli.declared import DeclaredSubcommands
from hermes_queue.cli.watch.table import age, print_table
from hermes_queue.terminal.output import echo

if TYPE_CHECKING:
    from hermes_queue.ledger import Ledger


def _rows(ledger: Ledger) -> dict[str, dict[str, Any]]:
    """What the ledger knows and what the backend lists of this deployment, by id."""
    from hermes_queue.ledger.fleet.sandboxes import Sandboxes
    from hermes_queue.sandbox import make_backend
    from hermes_queue.settings import SandboxSettings

    name = SandboxSettings().backend
    labels = {"deployment": ledger.deployment_id()}
    listed = asyncio.run(make_backend(name).list_sandboxes(labels))
    rows: dict[str, dict[str, Any]] = {}
    for record in Sandboxes(ledger).all():
        rows[record.sandbox_id] = {
            "id": record.sandbox_id,
            "backend": record.backend,
            "worker": record.worker,
            "host": record.host,
            "age_s": round(time.time() - record.created, 1),
            "lease_s": round(record.lease_s, 1),
            "slots": dict(record.slots),
            "listed": False,
        }
    for info in listed:
        unknown = {
            "id": info.sandbox_id,
            "backend": name,
            "worker": info.labels.get("worker", ""),
            "host": "",
            "age_s": round(time.time() - info.created, 1),
            "lease_s": None,
            "slots": {},
        }
        rows.setdefault(info.sandbox_id, unknown)["listed"] = True
    return rows


_HELP = """Sandboxes of this deployment: from the ledger and from the backend as seen from here.

\b
hermes-queue sandboxes list
hermes-queue sandboxes list --json
hermes-queue sandboxes terminate local-host-0123456789ab
"""


@click.group(help=_HELP, cls=DeclaredSubcommands)
def sandboxes() -> None:
    """See `_HELP`."""


@sandboxes.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def list_sandboxes(as_json: bool) -> None:
    """Print every sandbox; LEASE is "ended" when its worker is silent."""
    from hermes_queue.ledger import Ledger

    with closing(Ledger.connect()) as ledger:
        rows = _rows(ledger)
    if as_json:
        for row in rows.values():
            echo(json.dumps(row))
        return
    table = [["ID", "BACKEND", "LEASE", "AGE", "SLOTS", "WORKER"]]
    for row in rows.values():
        lease_s = row["lease_s"]
        lease = "none" if lease_s is None else "ended" if lease_s < 0 else age(lease_s)
        slots = str(len(row["slots"]))
        table.append([row["id"], row["backend"], lease, age(row["age_s"]), slots, row["worker"]])
    print_table(table)


@sandboxes.command()
@click.argument("sandbox_id", metavar="ID")
@click.option("--force", is_flag=True, help="Also when its worker lives; its jobs are retried.")
def terminate(sandbox_id: str, force: bool) -> None:
    """End one sandbox, and everything that runs in it."""
    from hermes_queue.ledger import Ledger
    from hermes_queue.ledger.fleet.sandboxes import Sandboxes
    from hermes_queue.sandbox import make_backend
    from hermes_queue.settings import SandboxSettings

    name = SandboxSettings().backend
    with closing(Ledger.connect()) as ledger:
        row = _rows(ledger).get(sandbox_id)
        if row is None:
            raise click.ClickException(f"sandbox {sandbox_id!r} is unknown in this deployment")
        if not row["listed"] and (row["lease_s"] or 0) > 0:
            raise click.ClickException(
                f"sandbox {sandbox_id!r} (backend {row['backend']}, host {row['host']}) cannot be "
                "reached from here; run this where its worker runs, with the same settings"
            )
        if (row["lease_s"] or 0) > 0 and not force:
            raise click.ClickException(
                f"the worker of {sandbox_id!r} lives; --force ends the sandbox all the same"
            )
        if row["listed"]:
            asyncio.run(make_backend(name).terminate(sandbox_id))
        Sandboxes(ledger).forget(sandbox_id)
    echo(f"ended {sandbox_id}")
