"""`hermes-queue images ...`: the images that slots without a container engine start from."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes_plugins.images.cli.kept import list_images, prune
from hermes_plugins.images.cli.store import WrongInput, with_store
from hermes_queue.cli.watch.finite import FiniteRange
from hermes_queue.terminal.output import echo

if TYPE_CHECKING:
    from hermes_plugins.images.store import ImageStore
    from hermes_queue.images.spec import ImageSpec


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

Exits with 1 if an image cannot be had or a build fails, with 2 if a name, a file or a Dockerfile is
wrong, and with 130 after Ctrl-C.
"""


@click.group(help=_HELP)
def images() -> None:
    """See `_HELP`."""


def _ensure(spec: ImageSpec) -> None:
    async def use(store: ImageStore) -> str:
        pinned = await store.pin(spec)
        pinned.release()
        return pinned.rootfs.description

    echo(with_store(use))


@images.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
def pull(names: tuple[str, ...]) -> None:
    """Bring images from their registries, again if they are here.

    Docker Hub is replaced by HERMES_QUEUE_IMAGES_MIRROR if that is set. Credentials are those that
    `docker login` left in ~/.docker/config.json.
    """
    from hermes_plugins.images.permission import full_name, short_name
    from hermes_queue.errors import EnvInfraError, SandboxRejected

    async def use(store: ImageStore) -> None:
        for name in names:
            full = full_name(name)
            try:
                record = await store.pull(full)
            except (EnvInfraError, SandboxRejected) as error:
                if store.names.get(full) is None:
                    raise
                raise type(error)(f"{error}. The image of that name here stays in use") from error
            echo(f"{short_name(record.name)} sha256:{record.digest}")

    with_store(use)


@images.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--timeout",
    "timeout_s",
    type=FiniteRange(min=1),
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
    from hermes_plugins.images.fetch.archives import import_archive

    async def use(store: ImageStore) -> str:
        record = await import_archive(store, name, file)
        await asyncio.to_thread(store.layers.write_out)
        return record.digest

    echo(f"{name} sha256:{with_store(use)}")


@images.command()
@click.argument("name")
@click.option(
    "--suite", help="Release of Debian.  [default: the one in NAME, else bookworm]", metavar="NAME"
)
@click.option("--include", default="", metavar="A,B", help="Packages beside the essential ones.")
@click.option("--mirror", metavar="URL", help="Debian mirror.  [default: as this host's apt]")
@click.option(
    "--authority",
    "authorities",
    multiple=True,
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True),
    help="PEM file of a certificate authority to trust beside Debian's; may be repeated.",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write the archive there, e.g. for `docker import FILE NAME`.",
)
def base(
    name: str,
    suite: str | None,
    include: str,
    mirror: str | None,
    authorities: tuple[str, ...],
    out: Path | None,
) -> None:
    """Make a base image from Debian's packages and name it; needs mmdebstrap, and minutes.

    For hosts that reach a Debian mirror, but no registry. It stands for another image with
    HERMES_QUEUE_IMAGES_BASE_IMAGES='{"ubuntu:24.04": "debian:bookworm-local"}', which trajectories
    record. With a NAME such as python:3.11-slim-trixie it has that release's Python and pip.
    """
    import shutil

    from hermes_plugins.images.base_image import BaseImage, make_base_image
    from hermes_plugins.images.fetch.archives import import_archive
    from hermes_queue.errors import SandboxRejected

    packages = tuple(word for word in include.replace(" ", ",").split(",") if word)
    try:
        wanted = BaseImage.named(
            name, suite=suite, packages=packages, mirror=mirror, authorities=authorities
        )
    except SandboxRejected as error:
        raise WrongInput(str(error)) from error

    async def use(store: ImageStore) -> str:
        archive = await make_base_image(
            wanted, store.root / "bases", lambda line: echo(line, err=True)
        )
        record = await import_archive(store, name, archive, wanted.config)
        await asyncio.to_thread(store.layers.write_out)
        if out is not None:
            await asyncio.to_thread(shutil.copyfile, archive, out)
        return record.digest

    echo(f"{name} sha256:{with_store(use)}")


images.add_command(list_images)
images.add_command(prune)
