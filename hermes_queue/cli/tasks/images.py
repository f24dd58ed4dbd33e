"""`hermes-queue images ...`: the images that slots without a container engine start from."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from hermes_queue.cli.watch.table import age, print_table
from hermes_queue.errors import TrajectoryFailure

if TYPE_CHECKING:
    from hermes_queue.images.spec import ImageSpec
    from hermes_queue.images.store import ImageStore

T = TypeVar("T")
CONTEXT = "context:"

_HELP = """Images of tasks on this host, for the backends `local` and `localmodal`.

A slot with an image starts from a registry's image, an imported archive or a folder with a
Dockerfile. What a build or download has made is kept below the cache directory, up to
HERMES_QUEUE_IMAGES_STORE_MB. Workers pull and build by themselves what their tasks need; with these
commands it is there before. Container engines keep their own images: `docker images`.

\b
hermes-queue images pull python:3.12-slim
hermes-queue images build tasks/fix-git/environment
hermes-queue images import my/base:1 base.tar
hermes-queue images base debian:bookworm-local --include python3,python3-pip
hermes-queue images list
hermes-queue images prune --unused-days 7
"""


@click.group(help=_HELP)
def images() -> None:
    """See `_HELP`."""


def _with_store(use: Callable[[ImageStore], Awaitable[T]]) -> T:
    """Call `use` with this host's store. Raises ClickException: what tasks fail with."""
    from hermes_queue.images.store import ImageStore
    from hermes_queue.sandbox.rootfs.steps import RootfsSteps
    from hermes_queue.settings import PathSettings
    from hermes_queue.settings.images import ImageSettings

    async def work() -> T:
        cache = PathSettings().cache
        steps = RootfsSteps.of(cache)
        try:
            store = ImageStore(
                cache / "images",
                ImageSettings(),
                steps,
                report=lambda line: click.echo(line, err=True),
            )
            return await use(store)
        finally:
            await steps.close()

    try:
        return asyncio.run(work())
    except TrajectoryFailure as error:
        raise click.ClickException(str(error)) from error


def _ensure(spec: ImageSpec) -> None:
    async def use(store: ImageStore) -> str:
        pinned = await store.pin(spec)
        pinned.release()
        return pinned.rootfs.description

    click.echo(_with_store(use))


@images.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
def pull(names: tuple[str, ...]) -> None:
    """Bring images from their registries, again if they are here.

    Docker Hub is replaced by HERMES_QUEUE_IMAGES_MIRROR if that is set. Credentials are those that
    `docker login` left in ~/.docker/config.json.
    """
    from hermes_queue.images.permission import full_name, short_name

    async def use(store: ImageStore) -> None:
        for name in names:
            record = await store.pull(full_name(name))
            click.echo(f"{short_name(record.name)} sha256:{record.digest}")

    _with_store(use)


@images.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=1),
    default=600.0,
    show_default=True,
    help="Seconds for the whole build.",
)
def build(folder: Path, timeout_s: float) -> None:
    """Build the Dockerfile of FOLDER, as a task's folder with an environment is built.

    Steps that were made before are taken from the store. RUN lines reach package indexes and public
    hosts through a proxy of ours, and nothing in private networks.
    """
    from hermes_queue.images.spec import ImageSpec

    _ensure(ImageSpec(context=str(folder.resolve()), build_timeout_s=timeout_s))


@images.command("import")
@click.argument("name")
@click.argument("file", type=click.Path(exists=True, path_type=Path))
def import_image(name: str, file: Path) -> None:
    """Name the image in FILE: from `docker save`, an OCI layout, or a root file system in a tar.

    Imported images are kept until `prune` names them: nothing could bring them back.
    """
    from hermes_queue.images.fetch.archives import import_archive

    record = _with_store(lambda store: import_archive(store, name, file))
    click.echo(f"{name} sha256:{record.digest}")


@images.command()
@click.argument("name")
@click.option("--suite", default="bookworm", show_default=True, help="Release of Debian.")
@click.option("--include", default="", metavar="A,B", help="Packages beside the essential ones.")
@click.option("--mirror", metavar="URL", help="Debian mirror.  [default: as this host's apt]")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write the archive there, e.g. for `docker import FILE NAME`.",
)
def base(name: str, suite: str, include: str, mirror: str | None, out: Path | None) -> None:
    """Make a base image from Debian's packages and name it; needs mmdebstrap, and minutes.

    For hosts that reach a Debian mirror, but no registry. It stands for another image with
    HERMES_QUEUE_IMAGES_BASE_IMAGES='{"ubuntu:24.04": "debian:bookworm-local"}', which trajectories
    record. A NAME such as python:3.11-slim also gets the command `python`.
    """
    import shutil

    from hermes_queue.images.base_image import BaseImage, make_base_image
    from hermes_queue.images.fetch.archives import import_archive
    from hermes_queue.images.permission import full_name

    is_python = full_name(name).rpartition("/")[2].startswith("python:")
    packages = tuple(word for word in include.replace(" ", ",").split(",") if word)
    wanted = BaseImage(suite, packages, mirror, is_python)

    async def use(store: ImageStore) -> str:
        archive = await make_base_image(
            wanted, store.root / "bases", lambda line: click.echo(line, err=True)
        )
        record = await import_archive(store, name, archive, wanted.config)
        if out is not None:
            await asyncio.to_thread(shutil.copyfile, archive, out)
        return record.digest

    click.echo(f"{name} sha256:{_with_store(use)}")


@images.command("list")
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

    rows, total = _with_store(use)
    if as_json:
        for row in rows:
            click.echo(json.dumps(row))
        return
    table = [["IMAGE", "ORIGIN", "SIZE", "LAYERS", "AGE", "LAST USED", "SOURCE"]]
    table += [_shown(row) for row in rows]
    print_table(table)
    click.echo(f"{total / 1e6:.0f} MB in all")


def _shown(row: dict[str, object]) -> list[str]:
    from hermes_queue.images.permission import short_name

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


@images.command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--unused-days", type=click.FloatRange(min=0), help="Spare what was used since.")
@click.option("--to-mb", type=click.IntRange(min=0), help="Stop when only so much is left.")
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

    click.echo(f"freed {_with_store(use) / 1e6:.0f} MB")


async def _forgotten(store: ImageStore, name: str) -> int:
    from hermes_queue.images.permission import full_name

    try:
        return await store.forget(name if name.startswith(CONTEXT) else full_name(name))
    except KeyError as error:
        raise click.ClickException(f"there is no image {name} on this host") from error
