"""Images that an engine builds from a task's folder, once per content."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hermes_plugins.containers.images.client import EngineClient, progress, translated
from hermes_plugins.containers.settings import DockerSettings
from hermes_plugins.images.context import DOCKERFILE, BuildContext
from hermes_plugins.images.copying import write_engine_tar
from hermes_plugins.images.dockerfile.old_engines import OldEngineBuild, for_old_engines
from hermes_plugins.images.plan import plan
from hermes_queue.disk.turn import build_turn
from hermes_queue.errors import EnvBug, EnvInfraError, SandboxError
from hermes_queue.images.spec import ImageSpec

if TYPE_CHECKING:
    from hermes_plugins.containers.images.hosted import EngineImages, HostedImage

logger = logging.getLogger(__name__)

REPOSITORY = "localhost/hermes-queue/build"
"""Names of built images; Podman gives this host to all that come from no registry."""
LABEL = "hermes-queue.build"
BUILD_MEMORY_MB = 8192
TAIL_CHARS = 4000
NOT_KNOWN = re.compile(
    r'(failed to process ".*": |dockerfile parse error|unknown (instruction|flag)|'
    r"unsupported modifier|resolving step )",
    re.IGNORECASE,
)
"""Begins what builders say of a Dockerfile that is written for a newer one."""


async def built(
    client: EngineClient,
    settings: DockerSettings,
    images: EngineImages,
    spec: ImageSpec,
    locks: Path,
) -> tuple[HostedImage, str]:
    """The image of a folder, built unless the same files on the same bases were.

    Raises as `EngineImages.ensure`.
    """
    context = await asyncio.to_thread(BuildContext.open, spec)
    text = await asyncio.to_thread(context.dockerfile)
    needed = await asyncio.to_thread(plan, text)
    bases = {}
    for name in needed.images:
        with needed.naming(name):
            bases[name] = await images.named(name)
    ids = {name: base.image_id for name, (base, _) in bases.items()}
    decides: list[object] = [context.digest, sorted(ids.items())]
    if any(
        line.word == "VOLUME" for stage in needed.dockerfile.stages for line in stage.instructions
    ):
        decides.append("without volumes")
    key = hashlib.sha256(json.dumps(decides).encode()).hexdigest()
    tag = f"{REPOSITORY}:{key[:40]}"
    origins = [described for _, described in bases.values()]
    shown = "; FROM ".join([f"built from sha256:{context.digest}", *origins])
    if found := await images.find(tag):
        return found, shown
    await asyncio.to_thread(locks.mkdir, parents=True, exist_ok=True)
    async with build_turn(locks / f"{key[:40]}.lock"):
        found = await images.find(tag)
        if found is None:
            stages = {stage.number for stage in needed.stages}
            rewritten = await asyncio.to_thread(for_old_engines, text, ids, stages)
            await _build(client, settings, spec, context, rewritten, tag)
            found = await images.find(tag)
    if found is None:
        raise SandboxError(f"the engine built {tag}, and does not have it")
    return found, shown


async def _build(
    client: EngineClient,
    settings: DockerSettings,
    spec: ImageSpec,
    context: BuildContext,
    rewritten: OldEngineBuild,
    tag: str,
) -> None:
    began = time.monotonic()
    params = {
        "t": tag,
        "dockerfile": DOCKERFILE,
        "rm": "1",
        "forcerm": "1",
        "labels": json.dumps({LABEL: context.digest}),
        "memory": str(BUILD_MEMORY_MB << 20),
        "memswap": str(BUILD_MEMORY_MB << 20),
    }
    if settings.build_network:
        params["networkmode"] = settings.build_network
    with tempfile.TemporaryFile() as file:
        await asyncio.to_thread(write_engine_tar, context, rewritten, file)
        file.seek(0)
        try:
            with translated(f"building {context.root}", making=True):
                async with client.request(
                    "build",
                    "POST",
                    params=params,
                    data=file,
                    headers={"Content-Type": "application/x-tar"},
                    timeout_s=spec.build_timeout_s,
                ) as response:
                    log, problem = await progress(response)
        except TimeoutError as error:
            raise EnvInfraError(
                f"building the image of {context.root} ran out of time after "
                f"{spec.build_timeout_s:g} s"
            ) from error
    if NOT_KNOWN.match(problem):
        raise EnvBug(
            f"the Dockerfile of {context.root} has what this engine's builder does not know: "
            f"{problem[:1000]}; a newer engine may"
        )
    if problem:
        raise EnvInfraError(
            f"the build failed: {problem[:1000]}; its folder is {context.root}, its output ends "
            f"with:\n{log[-TAIL_CHARS:]}"
        )
    took_s, extra = time.monotonic() - began, {"action": "image_built"}
    logger.info("built the image of %s in %.1f s", context.root, took_s, extra=extra)
