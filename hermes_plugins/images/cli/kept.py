"""`hermes-queue images list` and `prune`."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING

import click

from hermes_plugins.images.cli.store import WrongInput, with_store
from hermes_queue.cli.watch.finite import FiniteRange
from hermes_queue.cli.watch.table import age, print_table
from hermes_queue.terminal.output import echo

if TYPE_CHECKING:
    from hermes_plugins.images.store import ImageStore

CONTEXT = "context:"


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def list_images(as_json: bool) -> None:
    """Print the images of this host; SIZE counts layers that images share each time."""

    async def use(store: ImageStore) -> tuple[list[dict[str, object]], int]:
        layers = await asyncio.to_thread(store.layers.all)
        rows: list[dict[str, object]] = []
        for record in store.names.all():
            chain = store.layers.chain(record.top) or []
            rows.append(
                {
                    "name": record.name,
                    "origin": record.origin,
                    "source": record.source,
                    "digest": f"sha256:{record.digest}",
                    "size_bytes": sum(layers[key].size_bytes for key in chain if key in layers),
                    "layers": len(chain),
                    "created": record.created,
                    "used": store.layers.used_at(record.top),
                }
            )
        return rows, sum(each.size_bytes for each in layers.values())

    rows, total = with_store(use)
    if as_json:
        for row in rows:
            echo(json.dumps(row))
        return
    table = [["IMAGE", "ORIGIN", "SIZE", "LAYERS", "AGE", "LAST USED", "SOURCE"]]
    table += [_shown(row) for row in rows]
    print_table(table)
    echo(f"{total / 1e6:.0f} MB in all")


def _shown(row: dict[str, object]) -> list[str]:
    from hermes_plugins.images.permission import short_name

    name = str(row["name"])
    name = name[: len(CONTEXT) + 12] if name.startswith(CONTEXT) else short_name(name)
    now = time.time()
    return [
        name,
        str(row["origin"]),
        f"{float(str(row['size_bytes'])) / 1e6:.0f} MB",
        str(row["layers"]),
        age(now - float(str(row["created"]))),
        age(now - float(str(row["used"]))),
        str(row["source"]),
    ]


@click.command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--unused-days", type=FiniteRange(min=0), help="Spare what was used since.")
@click.option("--to-mb", type=click.IntRange(min=0), help="Stop when only this is left.")
@click.option("--all", "everything", is_flag=True, help="Also imported images.")
def prune(
    names: tuple[str, ...], unused_days: float | None, to_mb: int | None, everything: bool
) -> None:
    """Delete what no slot uses, least recently used first; or forget the images NAME.

    Without arguments, down to HERMES_QUEUE_IMAGES_STORE_MB.
    """

    async def use(store: ImageStore) -> int:
        await store.layers.sweep()
        if names:
            return sum([await _forgotten(store, name) for name in names])
        limit = to_mb
        if limit is None:
            limit = 0 if everything or unused_days is not None else store.settings.store_mb
        most = limit << 20
        return await store.prune(
            lambda used: used > most,
            unused_s=(unused_days or 0) * 86_400,
            kept=not everything,
        )

    echo(f"freed {with_store(use) / 1e6:.0f} MB")


async def _forgotten(store: ImageStore, name: str) -> int:
    from hermes_plugins.images.permission import full_name

    try:
        return await store.forget(name if name.startswith(CONTEXT) else full_name(name))
    except KeyError as error:
        raise WrongInput(f"there is no image {name} on this host") from error
