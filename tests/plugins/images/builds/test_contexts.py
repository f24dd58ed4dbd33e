"""Whole builds without a container engine: twelve Dockerfiles, and what is in their images.

Run by `make test-images`, as root, with mmdebstrap. The base image is made of Debian's packages
once, and kept below the cache of `HERMES_QUEUE_PATHS_CACHE`; it is the one of `make test-engines`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from image_trees import BASE, CONTEXTS, own_store

from hermes_plugins.images.layers import LayerStore
from hermes_plugins.images.steps import BuildStep, LayerStack, Rootfs
from hermes_plugins.images.store import ImageStore
from hermes_queue.errors import EnvInfraError
from hermes_queue.images.spec import ImageSpec

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(1800),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def store() -> AsyncIterator[ImageStore]:
    async with own_store() as store:
        yield store


async def run(layers: LayerStore, rootfs: Rootfs, script: bytes) -> None:
    """Run a script in the image, as its user and in its directory; its failure is ours."""
    async with layers.draft("check") as upper:
        step = BuildStep(
            ("/bin/sh", "-c", script.decode()),
            rootfs.config.env,
            rootfs.config.user,
            rootfs.config.workdir,
            network=False,
        )
        result = await layers.runner.run(LayerStack(rootfs.layers, upper), step)
    assert result.exit_code == 0, result.output.decode()


@pytest.mark.parametrize("name", sorted(each.name for each in CONTEXTS.iterdir()))
async def test_the_image_is_what_its_dockerfile_says(store: ImageStore, name: str) -> None:
    folder = CONTEXTS / name
    pinned = await store.pin(ImageSpec(context=str(folder), build_timeout_s=1200))
    try:
        script = await asyncio.to_thread((folder / "check.sh").read_bytes)
        await run(store.layers, pinned.rootfs, script)
        assert "replaced by debian:bookworm-local" in pinned.rootfs.description
    finally:
        pinned.release()


async def test_what_was_built_is_not_built_again(store: ImageStore) -> None:
    lines: list[str] = []
    again = ImageStore(store.root, store.settings, store.layers.runner, report=lines.append)
    pinned = await again.pin(ImageSpec(context=str(CONTEXTS / "files")))
    pinned.release()
    assert lines
    assert all(line.endswith("(cached)") for line in lines)


async def test_a_failing_step_names_its_line_and_leaves_nothing(
    store: ImageStore, tmp_path: Path
) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM {BASE}\nRUN echo why >&2; touch /made; exit 3\n")
    before = set(store.layers.all())
    with pytest.raises(EnvInfraError, match=r"line 2.*exit code 3.*\n.*why"):
        await store.pin(ImageSpec(context=str(tmp_path)))
    assert set(store.layers.all()) == before
    assert not list((store.root / "drafts").iterdir())


async def test_two_builders_of_one_image_do_the_work_once(
    store: ImageStore, tmp_path: Path
) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM {BASE}\nRUN date +%N > /random\nRUN cat /random\n")
    other = ImageStore(store.root, store.settings, store.layers.runner)
    spec = ImageSpec(context=str(tmp_path))
    first, second = await asyncio.gather(store.pin(spec), other.pin(spec))
    assert first.rootfs == second.rootfs
    first.release()
    second.release()


async def test_a_pinned_image_is_not_pruned(store: ImageStore, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM {BASE}\nRUN echo pinned > /pinned\n")
    pinned = await store.pin(ImageSpec(context=str(tmp_path)))
    other = ImageStore(store.root, store.settings, store.layers.runner)
    await other.prune(lambda _: True)
    await run(store.layers, pinned.rootfs, b"grep pinned /pinned")
    pinned.release()
    await other.prune(lambda _: True)
    assert not pinned.rootfs.layers[-1].exists()
    assert pinned.rootfs.layers[0].exists()  # imported: nothing could bring it back
