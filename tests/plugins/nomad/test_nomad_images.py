"""Images of slots at Nomad: named by digest, described by their registry or the operator."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from hermes_plugins.images.settings import ImageSettings
from hermes_plugins.nomad.changes import difference, packed, unix_time
from hermes_plugins.nomad.images import NomadImages, read_images
from hermes_plugins.nomad.settings import NomadSettings
from hermes_queue.errors import ConfigurationError, EnvBug, SandboxError, SandboxRejected
from hermes_queue.images.spec import ImageSpec
from hermes_queue.sandbox.image_slots import FileChange, TooManyChanges

ID = f"sha256:{'1' * 64}"
INSPECTED = {
    "Id": ID,
    "RepoTags": ["local/task:1"],
    "RepoDigests": [],
    "Config": {"Env": ["A=1"], "WorkingDir": "/app", "User": "ann", "Entrypoint": ["/start"]},
}


def inspected(tmp_path: Path, found: Any) -> NomadSettings:
    file = tmp_path / "images.json"
    file.write_text(found if isinstance(found, str) else json.dumps(found))
    return NomadSettings(images_file=file)


async def test_an_image_that_nodes_have_is_used_by_its_name_with_its_settings(tmp_path):
    images = NomadImages(inspected(tmp_path, [INSPECTED]), ImageSettings(), cache=Path("/nowhere"))
    image, name = await images.ensure(ImageSpec("local/task:1"))
    assert image.image_id == "local/task:1"
    assert (image.config.workdir, image.config.user) == ("/app", "ann")
    assert image.config.entrypoint == ("/start",)
    assert name.startswith("local/task:1, sha256:1111")


async def test_a_substituted_image_is_recorded(tmp_path):
    settings = ImageSettings(base_images={"ubuntu:24.04": "local/task:1"})
    images = NomadImages(inspected(tmp_path, [INSPECTED]), settings, cache=tmp_path)
    image, name = await images.ensure(ImageSpec("ubuntu:24.04"))
    assert image.image_id == "local/task:1"
    assert "replaced by local/task:1" in name


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("{}", "no list"),
        ("[1]", r"\[0\] is no image"),
        ([{"Id": ID}], "has no name"),
        ([{**INSPECTED, "RepoTags": ["A B"]}], "A B"),
        ("[" * 100_000, "docker image inspect"),
    ],
)
def test_a_file_that_describes_no_images_says_how_to_write_it(tmp_path, content, named):
    with pytest.raises(ConfigurationError, match=named):
        read_images(inspected(tmp_path, content).images_file)


async def test_what_nodes_cannot_build_or_may_not_use_is_refused(tmp_path):
    settings = ImageSettings(allowed=("debian:*",))
    images = NomadImages(inspected(tmp_path, [INSPECTED]), settings, cache=tmp_path)
    with pytest.raises(SandboxRejected, match="HERMES_QUEUE_NOMAD_BUILD_ENGINE"):
        await images.ensure(ImageSpec(context="/task"))
    with pytest.raises(SandboxRejected, match="HERMES_QUEUE_IMAGES_ALLOWED"):
        await images.ensure(ImageSpec("local/task:1"))
    with pytest.raises(EnvBug):
        await images.ensure(ImageSpec())


def registry(config: dict[str, Any], counts: list[str]) -> Callable[[], web.Application]:
    """A registry with one image."""
    document = json.dumps({"config": config, "rootfs": {"diff_ids": []}}).encode()
    digest = f"sha256:{hashlib.sha256(document).hexdigest()}"
    manifest = {"config": {"digest": digest, "size": len(document)}, "layers": []}

    async def answer(request: web.Request) -> web.Response:
        counts.append(request.path)
        if request.path.endswith("/manifests/1"):
            return web.Response(body=json.dumps(manifest).encode())
        if request.path.endswith(f"/blobs/{digest}"):
            return web.Response(body=document)
        return web.Response(status=404)

    app = web.Application()
    app.add_routes([web.get("/{path:.*}", answer)])
    return app, f"sha256:{hashlib.sha256(json.dumps(manifest).encode()).hexdigest()}"


async def test_an_image_of_a_registry_is_looked_up_once_and_named_by_its_digest():
    counts: list[str] = []
    app, digest = registry({"User": "bob", "WorkingDir": "/srv", "Cmd": ["serve"]}, counts)
    async with TestServer(app) as server:
        host = f"127.0.0.1:{server.port}"
        images = NomadImages(
            NomadSettings(), ImageSettings(allowed=(f"{host}/*",)), cache=Path("/nowhere")
        )
        image, _ = await images.ensure(ImageSpec(f"{host}/org/task:1"))
        again, _ = await images.ensure(ImageSpec(f"{host}/org/task:1"))
        assert image.image_id == f"{host}/org/task@{digest}"
        assert (image.config.user, image.config.command) == ("bob", ("serve",))
        assert again is image
        assert len(counts) == 2
        with pytest.raises(SandboxRejected, match="org/other"):
            await images.ensure(ImageSpec(f"{host}/org/other:2"))


def listing(**files: float) -> bytes:
    return b"".join(f"{when} /{name.replace('_', '/')}\0".encode() for name, when in files.items())


BEFORE = packed(listing(etc=1.0, etc_passwd=1.0, etc_group=1.0, srv=1.0, srv_old=1.0))


def test_changes_are_what_is_newer_than_the_container_or_gone():
    now = listing(etc=9.0, etc_passwd=9.0, srv=1.0, srv_old=1.0, srv_new=1.0, app=9.0, app_f=9.0)
    assert difference(now, BEFORE, 5.0, 100) == [
        FileChange("/app", "added"),
        FileChange("/app/f", "added"),
        FileChange("/etc/group", "deleted"),
        FileChange("/etc/passwd", "changed"),
        FileChange("/srv/new", "added"),
    ]


def test_too_many_changes_and_nonsense_are_refused():
    many = b"".join(f"9 /f{number}\0".encode() for number in range(20))
    with pytest.raises(TooManyChanges):
        difference(many, BEFORE, 5.0, 10)
    with pytest.raises(SandboxError, match="lists its files"):
        difference(b"never /x\0", BEFORE, 5.0, 10)


def test_times_of_agents_have_nanoseconds():
    assert unix_time("1970-01-01T00:00:01.500000789Z") == 1.5
    assert unix_time("None") == 0.0
