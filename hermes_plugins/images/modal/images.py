"""Images of tasks at Modal: pulled by its builder, or built there from the task's folder."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hermes_plugins.images.context import DOCKERFILE, BuildContext
from hermes_plugins.images.modal.dockerfile import END, prepare
from hermes_plugins.images.names import ImageNames
from hermes_plugins.images.permission import check_name, full_name, short_name, substitute
from hermes_plugins.images.plan import plan
from hermes_plugins.images.settings import ImageSettings
from hermes_queue.errors import EnvBug, EnvInfraError, SandboxRejected
from hermes_queue.images.spec import ImageConfig, ImageSpec
from hermes_queue.sandbox.modal.account import ModalAccount


@dataclass(frozen=True, slots=True)
class RootImage:
    """An image that Modal has."""

    image: Any
    """`modal.Image`."""
    config: ImageConfig
    description: str

    @property
    def image_id(self) -> str:
        """At Modal."""
        return str(self.image.object_id)


@dataclass(frozen=True, slots=True)
class NamedImage:
    """An image of a registry."""

    config: ImageConfig
    digest: str
    """Hex SHA-256 of the document of its tag."""
    source: str
    """What Modal pulls."""
    description: str


class RootImages:
    """The images of one process. Belongs to one event loop."""

    def __init__(self, account: ModalAccount, cache: Path) -> None:
        """`cache`: the worker's, whose store of images a server on this host shares."""
        self.settings = ImageSettings()
        self._account = account
        self._names = ImageNames(cache / "images")
        self._known: dict[str, RootImage] = {}
        self._named: dict[str, NamedImage] = {}
        self._turns: dict[str, asyncio.Lock] = {}

    async def ensure(self, spec: ImageSpec) -> RootImage:
        """The image of a task, pulled or built now unless Modal has it.

        Raises:
            SandboxRejected: it is not allowed here, or cannot be had; says what to change.
            SandboxUnavailable: the registry is throttling Modal.
            EnvBug: the spec, the Dockerfile or its context is malformed; or has another digest.
            EnvInfraError: a step of the build failed, or the registry could not be reached.
            SandboxError: Modal does not answer.
        """
        if spec.reference is None and spec.context is None:
            raise EnvBug("image: neither reference nor context is set")
        if spec.reference is not None:
            try:
                return await self._by_name(spec.reference, spec.build_timeout_s)
            except (SandboxRejected, EnvInfraError):
                if spec.context is None:
                    raise
        return await self._by_context(spec)

    async def _once(self, key: str, build: Callable[[], Any]) -> RootImage:
        async with self._turns.setdefault(key, asyncio.Lock()):
            if key not in self._known:
                self._known[key] = await build()
            return self._known[key]

    async def _by_name(self, reference: str, timeout_s: float) -> RootImage:
        named = await self.named(reference)

        async def build() -> RootImage:
            image = self._account.registry_image(named.source, END)
            await self._account.build(image, named.description, timeout_s)
            return RootImage(image, named.config, named.description)

        return await self._once(f"name:{named.source}", build)

    async def _by_context(self, spec: ImageSpec) -> RootImage:
        context = await asyncio.to_thread(BuildContext.open, spec)
        text = await asyncio.to_thread(context.dockerfile)
        found = await asyncio.to_thread(plan, text)
        bases = {name: await self.named(name) for name in found.images}
        facts = [context.digest, sorted((name, each.digest) for name, each in bases.items())]
        key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
        shown = f"built from sha256:{context.digest}"
        shown += "".join(f"; FROM {each.description}" for each in bases.values())

        async def build() -> RootImage:
            place = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="hermes-queue-context-"))
            try:
                files = place / "context"
                files.mkdir()
                configs = {name: each.config for name, each in bases.items()}
                sources = {name: each.source for name, each in bases.items()}
                made = await asyncio.to_thread(prepare, context, found, configs, sources, files)
                await asyncio.to_thread((place / DOCKERFILE).write_text, made.text)
                image = self._account.dockerfile_image(place / DOCKERFILE, files)
                await self._build(image, spec)
            finally:
                await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)
            return RootImage(image, made.config, shown)

        return await self._once(f"context:{key}", build)

    async def _build(self, image: Any, spec: ImageSpec) -> None:
        try:
            await self._account.build(image, str(spec.context), spec.build_timeout_s)
        except SandboxRejected as error:
            if type(error.__cause__).__name__ == "ImageBuildError":  # a command of its own
                raise EnvInfraError(str(error)) from error
            raise
        except TimeoutError as error:
            raise EnvInfraError(
                f"building the image of {spec.context} ran out of time after "
                f"{spec.build_timeout_s:g} s"
            ) from error

    async def named(self, reference: str) -> NamedImage:
        """An image by the name that a task gives, with substitution. Raises as `ensure`."""
        check_name(reference, self.settings)
        name = full_name(substitute(reference, self.settings) or reference)
        if name not in self._named:
            self._named[name] = await self._look_up(name)
        found = self._named[name]
        wanted = short_name(reference)
        if short_name(name) == wanted:
            return found
        shown = f"{wanted}, replaced by {found.description}"
        return NamedImage(found.config, found.digest, found.source, shown)

    async def _look_up(self, name: str) -> NamedImage:
        """What its registry says; of a server on this host, first what this host has."""
        short = short_name(name)
        if self._account.is_on_this_host and (record := self._names.get(name)) is not None:
            shown = f"{short}, {record.origin}, sha256:{record.digest}"
            return NamedImage(record.config, record.digest, short, shown)
        from hermes_plugins.images.fetch.registry import Registry, place_of  # imports aiohttp

        config, digest = await Registry().configuration(name, self.settings)
        place = place_of(name, self.settings)
        source = f"{urlsplit(place.base).netloc}/{place.path}@sha256:{digest}"
        if self.settings.mirror is None and place.base.endswith("registry-1.docker.io"):
            source = f"{place.path.removeprefix('library/')}@sha256:{digest}"
        shown = f"{short}, sha256:{digest}"
        return NamedImage(config, digest, source, shown)
