"""The conformance suite of backends in slots with an image. Run by `make test-images`."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from localmodal.server import BackgroundServer
from modal_server import forget_modal_client

from hermes_plugins.images.base_image import BaseImage, make_base_image
from hermes_plugins.images.fetch.archives import import_archive
from hermes_plugins.images.rootfs.steps import RootfsSteps
from hermes_plugins.images.settings import ImageSettings
from hermes_plugins.images.store import ImageStore
from hermes_plugins.selfcheck.bench import NotApplicable, Subject
from hermes_plugins.selfcheck.checks import CHECKS
from hermes_queue.sandbox.host.paths import remove_tree
from hermes_queue.settings import PathSettings

pytestmark = [
    pytest.mark.timeout(1800),
]
BASE = "debian:bookworm-local"
MEMORY_MB = 256
ABOUT_IMAGES = [check for check in CHECKS if check.image != "backend"]


@pytest.fixture(scope="module")
def cache() -> Iterator[Path]:
    """A cache whose store has the base image."""
    directory = Path(tempfile.mkdtemp(prefix="hermes-queue-test-"))
    directory.chmod(0o755)
    asyncio.run(_import_base(directory))
    yield directory
    remove_tree(directory)


async def _import_base(directory: Path) -> None:
    base = BaseImage("bookworm", ("python3", "python3-pip", "python3-venv"))
    archive = await make_base_image(base, PathSettings().cache / "images" / "bases")
    steps = RootfsSteps.of(directory)
    store = ImageStore(directory / "images", ImageSettings(), steps)
    await import_archive(store, BASE, archive, base.config)
    await steps.close()


@pytest.fixture(scope="module")
def server(cache: Path) -> Iterator[Mapping[str, str]]:
    """A Modal-compatible server that shares the store."""
    with BackgroundServer(worker_ports=True, image_cache=cache) as background:
        yield background.server.environment


@pytest.fixture(params=["local", "modal"])
def subject(
    request: pytest.FixtureRequest, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Subject]:
    for name, value in {
        "PATHS_CACHE": str(cache),
        "LOCAL_MEMORY_MB": str(MEMORY_MB),
        "LOCAL_MAX_PIDS": "400",
        # Its reaper must not come between a worker that is killed and what is then seen.
        "LOCAL_REAP_S": "3600",
        "MODAL_MEMORY_MB": str(MEMORY_MB),
        "MODAL_SLOT_MEMORY_MB": str(MEMORY_MB),
        "MODAL_CREATES_PER_S": "1000",
    }.items():
        monkeypatch.setenv(f"HERMES_QUEUE_{name}", value)
    if request.param == "modal":
        environment = request.getfixturevalue("server")
        monkeypatch.setenv("MODAL_CONFIG_PATH", str(cache / "modal.toml"))
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        forget_modal_client()
    yield Subject(request.param, MEMORY_MB, image=BASE)
    if request.param == "modal":
        forget_modal_client()


@pytest.mark.parametrize("check", ABOUT_IMAGES, ids=lambda check: check.name)
async def test_a_backend_keeps_its_contract_with_an_image(check, subject):
    await check.run(subject)


@pytest.fixture
def of_a_profile(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Subject]:
    """Ten slots in each sandbox of a profile with a Dockerfile, which the server builds."""
    (tmp_path / "Dockerfile").write_text(f"FROM {BASE}\nRUN echo made >/srv/made\n")
    for name, value in {
        "PATHS_CACHE": str(cache),
        "MODAL_DOCKERFILE": str(tmp_path / "Dockerfile"),
        "MODAL_BUILD_COMMANDS": '["test -e /srv/made"]',
        "MODAL_SLOT_MEMORY_MB": str(MEMORY_MB),
        "MODAL_CREATES_PER_S": "1000",
    }.items():
        monkeypatch.setenv(f"HERMES_QUEUE_{name}", value)
    monkeypatch.setenv("MODAL_CONFIG_PATH", str(tmp_path / "modal.toml"))
    with BackgroundServer(real_images=True, image_cache=cache) as background:
        for name, value in background.server.environment.items():
            monkeypatch.setenv(name, value)
        forget_modal_client()
        yield Subject("modal", MEMORY_MB)
        forget_modal_client()


OF_ISOLATION = [check for check in CHECKS if check.isolated and check.image != "image"]


@pytest.mark.parametrize("check", OF_ISOLATION, ids=lambda check: check.name)
async def test_slots_are_kept_apart_in_the_image_of_a_profile(check, of_a_profile):
    await check.run(of_a_profile)


@pytest.mark.parametrize("check", [each for each in CHECKS if each.image == "backend"][:1])
async def test_checks_of_the_backends_own_files_do_not_apply(check, subject):
    with pytest.raises(NotApplicable, match="without an image"):
        await check.run(subject)
