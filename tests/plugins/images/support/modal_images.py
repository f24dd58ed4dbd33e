"""A Modal-compatible server on this host that has a small image, and a backend on it."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from localmodal.server import BackgroundServer
from modal_server import forget_modal_client
from tiny_image import PROGRAMS, write_tiny_image

from hermes_plugins.images.fetch.archives import import_archive
from hermes_plugins.images.modal.backend import RootedModalBackend
from hermes_plugins.images.rootfs.slots import can_have_images
from hermes_plugins.images.rootfs.steps import RootfsSteps
from hermes_plugins.images.settings import ImageSettings
from hermes_plugins.images.store import ImageStore
from hermes_queue.images.spec import OWN_ROOT, ImageConfig, ImageSpec
from hermes_queue.sandbox.host.paths import remove_tree
from hermes_queue.settings import ModalSettings

CONFIG = ImageConfig(env={"COLOUR": "red"}, workdir="/app", user="ann")
TINY = ImageSpec(reference="tiny:1")
OWN = f"LABEL {OWN_ROOT}=1"
NEEDED = ("sh", "timeout", "env", "setpriv", "true")


@pytest.fixture(scope="module")
def server() -> Iterator[BackgroundServer]:
    """One that has an image."""
    if not can_have_images():
        pytest.skip("sandboxes with images need a range of ids and Linux 5.11")
    cache = Path(tempfile.mkdtemp(prefix="hermes-queue-test-"))
    cache.chmod(0o755)
    asyncio.run(_import(cache))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HERMES_QUEUE_PATHS_CACHE", str(cache))
        patch.setenv("MODAL_CONFIG_PATH", str(cache / "modal.toml"))
        with BackgroundServer() as background:
            for name, value in background.server.environment.items():
                patch.setenv(name, value)
            forget_modal_client()
            yield background
            forget_modal_client()
    remove_tree(cache)


async def _import(cache: Path) -> None:
    steps = RootfsSteps.of(cache)
    write_tiny_image(cache / "tiny.tar", (*PROGRAMS, *NEEDED))
    store = ImageStore(cache / "images", ImageSettings(), steps)
    await import_archive(store, "tiny:1", cache / "tiny.tar", CONFIG)
    await steps.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend(server: BackgroundServer) -> AsyncIterator[RootedModalBackend]:
    backend = RootedModalBackend(ModalSettings(creates_per_s=1000), slots=2)
    await backend.start()
    yield backend
    await backend.stop()
