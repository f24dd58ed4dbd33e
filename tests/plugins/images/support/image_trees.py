"""The file trees of images, for comparing an engine's builds with those of our own builder."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from container_engines import base_image, base_tarball

from hermes_plugins.images.fetch.archives import import_archive
from hermes_plugins.images.rootfs.steps import RootfsSteps
from hermes_plugins.images.settings import ImageSettings
from hermes_plugins.images.steps import LayerStack, Rootfs
from hermes_plugins.images.store import ImageStore
from hermes_queue.sandbox.host.paths import remove_tree
from hermes_queue.settings import PathSettings

CONTEXTS = Path(__file__).parents[1] / "builds" / "contexts"
BASE = "debian:bookworm-local"
STANDS_FOR = (
    "ubuntu:24.04",
    "python:3.11-slim",
    "ghcr.io/laude-institute/t-bench/ubuntu-24-04:20250624",
)
"""Base images of the contexts, in whose place a base made of Debian's packages is used."""

LIST = """\
import hashlib, json, os, stat, sys

root = sys.argv[1].rstrip("/").encode()
skipped = {os.fsencode(path) for path in sys.argv[2:]}
waiting = [b""]
while waiting:
    for entry in os.scandir(root + (waiting.pop() or b"/")):
        path = entry.path[len(root):]
        path = b"/" + path.lstrip(b"/")
        if path in skipped:
            continue
        found = entry.stat(follow_symlinks=False)
        kind, what = stat.S_IFMT(found.st_mode), ""
        if stat.S_ISREG(kind):
            with open(entry.path, "rb") as file:
                digest = hashlib.file_digest(file, "sha256") if hasattr(hashlib, "file_digest") \\
                    else hashlib.sha256(file.read())
            what = f"{found.st_size} {digest.hexdigest()}"
        elif stat.S_ISLNK(kind):
            what = os.fsdecode(os.readlink(entry.path))
        elif stat.S_ISDIR(kind):
            waiting.append(path)
        line = [os.fsdecode(path), f"{found.st_mode:o} {found.st_uid}:{found.st_gid}", what]
        print(json.dumps(line))
"""
"""Prints path, mode with type, owner, and content of all below a directory but some paths."""
OF_THE_ENGINE = (
    *("/proc", "/sys", "/dev", "/run/.containerenv", "/.dockerenv", "/etc/hostname"),
    *("/etc/hosts", "/etc/resolv.conf", "/etc/mtab", "/run/secrets"),
)
"""What engines themselves put into a container, or into all images that they build."""

Tree = Mapping[str, tuple[str, str]]
"""Mode with type and owner, and size with hash or a link's target, by path."""


def parsed(listing: str) -> Tree:
    """The tree in what `LIST` has printed."""
    lines = map(json.loads, listing.splitlines())
    return {path: (mode, what) for path, mode, what in lines}


def differences(one: Tree, other: Tree) -> list[str]:
    """One line for each path that is not the same."""
    paths = sorted(one.keys() | other.keys())
    return [
        f"{path}: {one.get(path)} / {other.get(path)}"
        for path in paths
        if one.get(path) != other.get(path)
    ]


@asynccontextmanager
async def own_store() -> AsyncIterator[ImageStore]:
    """A store of images with the base image, in a directory of its own that goes at the end."""
    # Not below pytest's directory, which a second run of the same user closes to everybody else.
    directory = Path(tempfile.mkdtemp(prefix="hermes-queue-test-"))
    directory.chmod(0o755)
    archive = await asyncio.to_thread(base_tarball, PathSettings().cache)
    steps = RootfsSteps.of(directory)
    settings = ImageSettings(base_images=dict.fromkeys(STANDS_FOR, BASE))
    store = ImageStore(directory / "images", settings, steps)
    # An engine's import has no command.
    config = dataclasses.replace(base_image().config, command=())
    await import_archive(store, BASE, archive, config)
    yield store
    await store.prune(lambda _: True, kept=False)
    await steps.close()
    await asyncio.to_thread(remove_tree, directory)


async def own_tree(store: ImageStore, rootfs: Rootfs) -> Tree:
    """The tree of an image in the store."""
    with tempfile.TemporaryFile() as file:
        stack = LayerStack(rootfs.layers, None)
        runner = store.layers.runner
        done = await runner.edit(stack, LIST, OF_THE_ENGINE, stdout=file)
        assert done.exit_code == 0, done.output
        file.seek(0)
        return parsed(file.read().decode())
