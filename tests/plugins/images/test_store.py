"""Images from archives and registries become layers; hostile ones become errors."""

from __future__ import annotations

import asyncio
import io
import json
import os
import stat
import tarfile
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp.test_utils import TestServer
from image_files import MANIFEST, RegistryServer, ServedImage, archive, member, sha256

from hermes_plugins.images import layers
from hermes_plugins.images.fetch.archives import import_archive
from hermes_plugins.images.fetch.blobs import decompress
from hermes_plugins.images.fetch.documents import MalformedImage
from hermes_plugins.images.fetch.registry import Registry, check_public, place_of, trusted_hosts
from hermes_plugins.images.rootfs.steps import RootfsSteps
from hermes_plugins.images.settings import ImageSettings
from hermes_plugins.images.store import ImageStore
from hermes_queue.errors import EnvInfraError, InputError, SandboxRejected
from hermes_queue.images.spec import ImageSpec
from hermes_queue.sandbox.host.paths import remove_tree
from hermes_queue.sandbox.host.user_namespaces import find_id_map

pytestmark = pytest.mark.xdist_group("image store")
here = pytest.mark.asyncio(loop_scope="module")
"""In the event loop of the store."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def store() -> AsyncIterator[ImageStore]:
    """One store for all tests, because a program is copied for it."""
    ids = await asyncio.to_thread(find_id_map, "setpriv")
    if not ids.is_range:
        pytest.skip(f"layers need a range of ids: {ids.reason}")
    # Not below pytest's directory, which a second run of the same user closes to everybody else.
    directory = Path(tempfile.mkdtemp(prefix="hermes-queue-test-"))
    directory.chmod(0o755)
    steps = RootfsSteps.of(directory)
    yield ImageStore(directory / "images", ImageSettings(), steps)
    await steps.close()
    await asyncio.to_thread(remove_tree, directory)


HOSTILE = archive(
    (".", member(tarfile.DIRTYPE, mode=0o755)),
    ("etc", member(tarfile.SYMTYPE, linkname="/")),
    ("etc/passwd", b"root:x:0:0::/:/bin/sh\n"),
    ("bin/su", member(tarfile.REGTYPE, mode=0o4755)),
    ("dev/sda", member(tarfile.BLKTYPE, devmajor=8, devminor=0)),
    ("big", member(tarfile.REGTYPE, uid=1 << 20, gid=5)),
    ("hard", member(tarfile.LNKTYPE, linkname="/bin/su")),
    (".wh.kept", b"no whiteout in a root file system"),
    ("/absolute", b"inside"),
)


@here
async def test_a_layer_that_a_crash_of_the_host_tore_is_made_anew(store: ImageStore) -> None:
    async def torn(draft: Path) -> None:
        (draft / "half").write_text("torn")

    async def whole(draft: Path) -> None:
        (draft / "file").write_text("whole")

    layers, key = store.layers, "0123456789abcdef01234567"
    await layers.pin(key)
    await layers.ensure(key, None, "RUN x", torn)
    info = store.root / "info" / f"{key}.json"
    info.write_text(json.dumps({**json.loads(info.read_text()), "boot": "another"}))
    info.with_suffix(".synced").unlink(missing_ok=True)
    assert layers.info(key) is None
    await layers.ensure(key, None, "RUN x", whole)
    layers.unpin(key)
    assert [path.name for path in layers.path(key).iterdir()] == ["file"]


@here
async def test_what_a_killed_process_was_making_is_deleted_and_nothing_of_a_live_one(
    store: ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "YOUNG_S", 0.0)
    async with store.layers.draft("alive") as alive:
        left = alive.with_name("left.12345678")
        (left / "etc").mkdir(parents=True)
        (left / "etc" / "file").write_text("half")
        for path in (left, left / "etc", left / "etc" / "file"):
            if os.geteuid() == 0:
                os.chown(path, store.layers.runner.host_id, store.layers.runner.host_id)
        await another(store).make_room()
        assert [path.name for path in alive.parent.iterdir()] == [alive.name]


@here
async def test_a_hostile_root_file_system_stays_in_its_layer(
    store: ImageStore, tmp_path: Path
) -> None:
    (tmp_path / "base.tar").write_bytes(HOSTILE)
    record = await import_archive(store, "hostile:1", tmp_path / "base.tar")
    layer = store.layers.path(record.top)
    base = store.layers.runner.host_id
    assert (layer / "passwd").is_file()  # through the link to /, which is the layer
    assert stat.S_IMODE((layer / "bin" / "su").stat().st_mode) == 0o4755
    assert (layer / "bin" / "su").stat().st_uid == base
    assert stat.S_IMODE(layer.parent.stat().st_mode) == 0o700  # so nobody runs it
    assert not (layer / "dev" / "sda").exists()
    assert (layer / "big").stat().st_uid == base + 65534
    assert (layer / "hard").samefile(layer / "bin" / "su")
    assert (layer / ".wh.kept").is_file()
    assert (layer / "absolute").read_bytes() == b"inside"


@here
@pytest.mark.parametrize(
    ("content", "error"),
    [
        (archive(("a/../../x", b"")), "leads out"),
        (archive(("hard", member(tarfile.LNKTYPE, linkname="../../etc/shadow"))), "leads out"),
        (archive(("x" * 5000, b"")), "too long"),
        (archive(("a", b"x" * 2000))[:1500], "unexpected end|ReadError"),
        (archive(("a", member(tarfile.REGTYPE, size=1 << 50))), "is allowed|Invalid|end of data"),
    ],
    ids=["dots", "hard link", "long name", "cut off", "huge"],
)
async def test_archives_that_lead_out_or_grow_are_refused(
    store: ImageStore, tmp_path: Path, content: bytes, error: str
) -> None:
    (tmp_path / "base.tar").write_bytes(content)
    with pytest.raises((EnvInfraError, InputError), match=error):
        await import_archive(store, "refused:1", tmp_path / "base.tar")
    assert not list((store.root / "drafts").iterdir())


def test_compressed_bombs_stop_at_the_limit() -> None:
    import bz2
    import gzip
    import lzma

    zeros = bytes(4 << 20)
    for packed in (gzip.compress(zeros), bz2.compress(zeros), lzma.compress(zeros)):
        with pytest.raises(MalformedImage, match="more than"):
            decompress(io.BytesIO(packed), io.BytesIO(), 3 << 20)
        with pytest.raises(MalformedImage, match="damaged"):
            decompress(io.BytesIO(packed[:-9]), io.BytesIO(), 1 << 30)


LOWER = archive(
    ("bin", member(tarfile.DIRTYPE, mode=0o755)),
    ("bin/tool", b"tool"),
    ("old/gone", b"1"),
    ("opaque/below", b"1"),
)
UPPER = archive(
    ("old/.wh.gone", b""), ("opaque/.wh..wh..opq", b""), ("opaque/new", b"2"), ("etc/x", b"x")
)
PROGRAMS = {
    "Env": ["PATH=/bin", "A=b=c"],
    "WorkingDir": "/opaque",
    "User": "7",
    "Cmd": ["x"],
    "Entrypoint": None,
}


@pytest_asyncio.fixture(loop_scope="module")
async def registry() -> AsyncIterator[RegistryServer]:
    server = RegistryServer(ServedImage([LOWER, UPPER], PROGRAMS))
    async with TestServer(server.app()) as running:
        server.url = str(running.make_url("")).rstrip("/")
        yield server


def another(store: ImageStore, **settings: Any) -> ImageStore:
    """A store of another process."""
    return ImageStore(
        store.root, ImageSettings(**settings), store.layers.runner, puller=store._puller
    )


def mirrored(store: ImageStore, registry: RegistryServer) -> ImageStore:
    settings = ImageSettings(mirror=registry.url)
    puller = Registry(pause_s=0)
    return ImageStore(store.root, settings, store.layers.runner, puller=puller)


@here
async def test_an_image_is_pulled_once_with_whiteouts_and_configuration(
    store: ImageStore, registry: RegistryServer
) -> None:
    registry.busy = 1
    images = mirrored(store, registry)
    pinned = await images.pin(ImageSpec(reference="some/tool:1"))
    lower, upper = pinned.rootfs.layers
    assert (lower / "bin" / "tool").read_bytes() == b"tool"
    gone = (upper / "old" / "gone").lstat()
    assert stat.S_ISCHR(gone.st_mode)
    assert gone.st_rdev == 0
    assert os.getxattr(upper / "opaque", "user.overlay.opaque") == b"y"
    config = pinned.rootfs.config
    assert (config.env["A"], config.workdir, config.user) == ("b=c", "/opaque", "7")
    assert (config.command, config.entrypoint) == (("x",), ())
    assert pinned.rootfs.digest == sha256(registry.image.index).removeprefix("sha256:")
    asked = len(registry.requests)
    (await images.pin(ImageSpec(reference="docker.io/some/tool:1"))).release()
    assert len(registry.requests) == asked
    pinned.release()


@here
async def test_pulled_images_beyond_the_stores_size_give_way_to_the_next(
    store: ImageStore, registry: RegistryServer
) -> None:
    images = mirrored(store, registry)
    (await images.pin(ImageSpec(reference="some/old:1"))).release()
    registry.image = ServedImage([archive(("other", b"3"))], PROGRAMS)
    small = another(images, store_mb=0, mirror=registry.url)
    pinned = await small.pin(ImageSpec(reference="some/new:1"))
    left = {record.name for record in small.names.all() if record.origin == "pulled"}
    assert left == {"docker.io/some/new:1"}
    assert all(path.is_dir() for path in pinned.rootfs.layers)
    pinned.release()


@here
async def test_another_content_than_the_digest_says_is_refused(
    store: ImageStore, registry: RegistryServer
) -> None:
    for digest in list(registry.image.blobs):
        registry.image.blobs[digest] += b" "
    with pytest.raises(EnvInfraError, match="has the digest"):
        await mirrored(store, registry).pin(ImageSpec(reference="some/changed:1"))


@here
async def test_a_missing_image_says_what_to_change(
    store: ImageStore, registry: RegistryServer
) -> None:
    with pytest.raises(SandboxRejected, match=r"images import.*BASE_IMAGES.*answers 404"):
        await mirrored(store, registry).pin(ImageSpec(reference="some/missing:1"))


@here
async def test_a_saved_image_and_a_layout_are_imported_with_the_same_layers(
    store: ImageStore, tmp_path: Path
) -> None:
    image = ServedImage([LOWER, UPPER], PROGRAMS)
    manifest = json.loads(image.manifest)
    blobs = {f"blobs/{digest.replace(':', '/')}": data for digest, data in image.blobs.items()}
    saved = {
        "Config": f"blobs/{manifest['config']['digest'].replace(':', '/')}",
        "Layers": [f"blobs/{each['digest'].replace(':', '/')}" for each in manifest["layers"]],
    }
    index = {"manifests": [{"mediaType": MANIFEST, "digest": image.digest, "size": 1}]}
    members = [*blobs.items(), (f"blobs/{image.digest.replace(':', '/')}", image.manifest)]
    (tmp_path / "saved.tar").write_bytes(
        archive(*members, ("manifest.json", json.dumps([saved]).encode()))
    )
    (tmp_path / "layout.tar").write_bytes(
        archive(*members, ("oci-layout", b"{}"), ("index.json", json.dumps(index).encode()))
    )
    first = await import_archive(store, "saved:1", tmp_path / "saved.tar")
    second = await import_archive(store, "layout:1", tmp_path / "layout.tar")
    assert (first.top, first.config, first.digest) == (second.top, second.config, second.digest)


def test_only_hosts_that_the_operator_names_may_be_private() -> None:
    settings = ImageSettings(
        allowed=("*", "registry.internal:5000/*"), mirror="http://127.0.0.1:5000"
    )
    assert trusted_hosts(settings) == {"registry.internal", "127.0.0.1"}
    for address in ("127.0.0.1", "10.0.0.1", "169.254.169.254", "::ffff:10.0.0.1", "fd00::1"):
        with pytest.raises(SandboxRejected, match="private address"):
            check_public("evil.example", address)
    check_public("fine.example", "8.8.8.8")


def test_names_lead_to_registries() -> None:
    settings = ImageSettings(mirror="mirror.example")
    places = [
        place_of(name, settings)
        for name in ("docker.io/library/a:1", "ghcr.io/o/b@sha256:" + "0" * 64, "localhost:5/c:2")
    ]
    assert [(each.base, each.path, each.tag) for each in places] == [
        ("https://mirror.example", "library/a", "1"),
        ("https://ghcr.io", "o/b", "sha256:" + "0" * 64),
        ("http://localhost:5", "c", "2"),
    ]
