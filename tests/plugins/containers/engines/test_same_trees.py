"""An engine and our own builder make the same image of a folder: every file, and its settings."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from container_engines import BASE, ENGINES, EngineProcess
from image_trees import (
    CONTEXTS,
    LIST,
    OF_THE_ENGINE,
    STANDS_FOR,
    Tree,
    differences,
    own_store,
    own_tree,
    parsed,
)

from hermes_plugins.containers.images.client import EngineClient
from hermes_plugins.containers.images.hosted import EngineImages, HostedImage
from hermes_plugins.containers.settings import DockerSettings
from hermes_plugins.images.settings import ImageSettings
from hermes_plugins.images.store import ImageStore
from hermes_queue.errors import EnvBug
from hermes_queue.images.spec import ImageSpec
from hermes_queue.sandbox.base import SlotSpec

NAMES = sorted(each.name for each in CONTEXTS.iterdir())
BUILDKIT_ALONE = {
    "no-network": "network=none",
    "substitutions": r"newer engine",
}
"""Contexts that only BuildKit and our own builder can build, and what is said of them."""
DIFFERENT = {
    ("docker", "archives"): ("/owned",),
    ("docker", "users"): ("/home/sailor/work",),
    ("podman", "archives"): ("/owned", "/unpacked"),
    **{(kind, "ignored"): ("/all/Dockerfile", "/all/.dockerignore") for kind in ENGINES},
}
"""Where the tree of an engine and ours differ. --chown of an archive is heeded by BuildKit 0.23
and by us; a WORKDIR belongs to the user with BuildKit, Podman and us; an archive's own entry for
its root changes the directory with Podman alone. An engine gets a Dockerfile that it can read, and
no .dockerignore, which has been heeded."""
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
"""Those of this machine are added to the engine's base image, ours come with each step."""
OF_THIS_BUILD = ("/var/log/", "/var/cache/", "/var/lib/apt/", "/var/lib/dpkg/")
"""Below these, files hold times, and content is not compared."""

pytestmark = [pytest.mark.timeout(1800)]


@pytest.fixture(autouse=True)
def _only_as_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("our own builder makes all files of an image here only as root")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def store() -> AsyncIterator[ImageStore]:
    async with own_store() as store:
        yield store


async def built(engine: EngineProcess, spec: ImageSpec, cache: Path) -> HostedImage:
    """The image that the engine builds."""
    client = EngineClient(engine.address)
    await client.open()
    try:
        section = DockerSettings(host=engine.address, build_network="host")
        base = ImageSpec(context=str(await asyncio.to_thread(with_certificates, cache)))
        found, _ = await EngineImages(client, section, cache=cache).ensure(base)
        images = ImageSettings(base_images=dict.fromkeys(STANDS_FOR, found.image_id))
        image, _ = await EngineImages(client, section, images, cache=cache).ensure(spec)
        return image
    finally:
        await client.close()


def with_certificates(cache: Path) -> Path:
    """A folder with a Dockerfile."""
    folder = cache / "with-certificates"
    folder.mkdir(exist_ok=True)
    shutil.copyfile(CERTIFICATES, folder / "certificates")
    (folder / "Dockerfile").write_text(
        f"FROM {BASE}\nCOPY --chmod=644 certificates {CERTIFICATES}\n"
    )
    return folder


async def engine_tree(engine: EngineProcess, image: str) -> Tree:
    """The tree of a new container of the image."""
    command = ["docker", "--host", engine.address, "run", "--rm", "--network", "none", "--user=0"]
    command += ["--entrypoint", "/usr/bin/python3", image, "-I", "-S", "-c", LIST, "/"]
    process = await asyncio.create_subprocess_exec(
        *command,
        *OF_THE_ENGINE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    listing, complaint = await process.communicate()
    assert process.returncode == 0, complaint.decode()[-2000:]
    return parsed(listing.decode())


def is_of_this_build(path: str) -> bool:
    """Whether content differs from build to build."""
    return path.startswith(OF_THIS_BUILD) or path.endswith(".pyc") or path == CERTIFICATES


def comparable(tree: Tree) -> Tree:
    """The tree without what differs from build to build."""
    return {
        path: (mode, "" if is_of_this_build(path) else what) for path, (mode, what) in tree.items()
    }


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", [name for name in NAMES if name not in BUILDKIT_ALONE])
async def test_both_builders_make_the_same_files(
    store: ImageStore, engine: EngineProcess, kind: str, cache: Path, name: str
) -> None:
    spec = ImageSpec(context=str(CONTEXTS / name), build_timeout_s=1200)
    image = await built(engine, spec, cache)
    pinned = await store.pin(spec)
    try:
        theirs = await engine_tree(engine, image.image_id)
        ours = await own_tree(store, pinned.rootfs)
        assert len(ours) > 5000
        found = differences(comparable(theirs), comparable(ours))
        known = DIFFERENT.get((kind, name), ())
        assert [line for line in found if not line.startswith(known)] == []
        assert image.config == pinned.rootfs.config
    finally:
        pinned.release()


@pytest.mark.parametrize("name", BUILDKIT_ALONE)
async def test_what_the_builder_of_an_engine_cannot_do_is_refused(make_backend, name: str) -> None:
    bench = await make_backend(images={"base_images": dict.fromkeys(STANDS_FOR, BASE)})
    spec = SlotSpec(image=ImageSpec(context=str(CONTEXTS / name)))
    with pytest.raises(EnvBug, match=BUILDKIT_ALONE[name]):
        await bench.backend.prepare(spec)
