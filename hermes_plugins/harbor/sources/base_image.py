"""The image that all bundled tasks start from, brought to a host that does not have it yet."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from hermes_plugins.images.extra import dockerfile_library
from hermes_queue.errors import ConfigurationError, TrajectoryFailure

if TYPE_CHECKING:
    from hermes_plugins.images.store import ImageStore

BASE = "python:3.11-slim-bookworm"
BACKENDS = frozenset({"local"})
"""Those whose slots start from the store of this host."""


def provide_base(backend: str, say: Callable[[str], None]) -> None:
    """Pull the image if it is missing, or make it of Debian's packages where no registry answers.

    Nothing is done for other backends, which have images of their own, and on hosts without a
    range of user ids, where the worker says what is missing.

    Raises:
        ConfigurationError: it cannot be had, or the extra `images` is not installed; the message
            has the command that helps.
    """
    if backend in BACKENDS:
        dockerfile_library()
        asyncio.run(_provide(say))


async def _provide(say: Callable[[str], None]) -> None:
    from hermes_plugins.images.permission import check_name, full_name, substitute
    from hermes_plugins.images.rootfs.steps import RootfsSteps
    from hermes_plugins.images.settings import ImageSettings
    from hermes_plugins.images.store import ImageStore
    from hermes_queue.errors import IsolationUnavailable, SandboxRejected
    from hermes_queue.settings import PathSettings

    cache, settings = PathSettings().cache, ImageSettings()
    steps = RootfsSteps.of(cache)
    store = ImageStore(cache / "images", settings, steps)
    name = full_name(substitute(BASE, settings) or BASE)
    try:
        check_name(BASE, settings)
        record = store.names.get(name)
        if record is not None and store.layers.chain(record.top) is not None:
            return
        say(f"the tasks' base image {BASE} is not on this host: asking its registry")
        try:
            await store.pull(name)
        except IsolationUnavailable:
            raise
        except TrajectoryFailure as error:
            await _make(store, name, str(error), say)
    except (IsolationUnavailable, SandboxRejected):
        return  # the worker says what it needs, or which image it may not use
    finally:
        await steps.close()


async def _make(store: ImageStore, name: str, why: str, say: Callable[[str], None]) -> None:
    """Make a stand-in; `why` says what the registry answered."""
    from hermes_plugins.images.base_image import BaseImage, make_base_image
    from hermes_plugins.images.fetch.archives import import_archive
    from hermes_plugins.images.permission import short_name
    from hermes_plugins.images.store import REGISTRY_SAYS

    reason = why.rpartition(REGISTRY_SAYS)[2][:200].rstrip(".")
    if shutil.which("mmdebstrap") is None:
        raise ConfigurationError(
            f"the bundled tasks start from the image {BASE}, which cannot be pulled: {reason}. On "
            "Debian, `apt install mmdebstrap` and the same command again make it of packages "
            f"(a minute); elsewhere, bring it: hermes-queue images import {BASE} FILE"
        )
    say(f"it cannot be pulled ({reason}): making one of Debian's packages, once; about a minute")
    began = time.monotonic()
    base = BaseImage.named(name)
    try:
        archive = await make_base_image(base, store.root / "bases")
        await import_archive(store, name, archive, base.config)
    except (ConfigurationError, TrajectoryFailure) as error:
        raise ConfigurationError(
            f"the base image {BASE} can neither be pulled ({reason}) nor made here: {error}"
        ) from error
    await asyncio.to_thread(store.layers.write_out)
    say(f"made {short_name(name)} of Debian {base.suite} in {time.monotonic() - began:.0f} s")
