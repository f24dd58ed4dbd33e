"""Builds of a plan's stages: each step that changes files is a layer, made once per host."""

from __future__ import annotations

import asyncio
import hashlib
import shlex
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from hermes_plugins.images.context import BuildContext
from hermes_plugins.images.copying import ContextCopy
from hermes_plugins.images.dockerfile.evaluation import (
    CopyStep,
    DockerfileStep,
    RunStep,
    WorkdirStep,
    evaluate,
)
from hermes_plugins.images.layers import MAX_LAYERS, LayerStore, PinLayer, layer_key
from hermes_plugins.images.permission import SCRATCH
from hermes_plugins.images.plan import BuildPlan
from hermes_plugins.images.steps import BuildStep
from hermes_plugins.images.users import identity
from hermes_queue.errors import EnvBug, EnvInfraError
from hermes_queue.images.spec import ImageConfig

MAX_COPIED_BYTES = 8 << 30
MAX_COPIED_FILES = 1_000_000
SHOWN_CHARS = 200
OUTPUT_CHARS = 3000

ReportLine = Callable[[str], None]
"""Gets a line for people at each step."""


@dataclass(frozen=True, slots=True)
class StageImage:
    """A finished stage, or the image that one starts from."""

    top: str | None
    """Key of its highest layer; None: the empty image."""
    config: ImageConfig
    digest: str


class Builder:
    """One build. Belongs to one event loop."""

    def __init__(
        self,
        layers: LayerStore,
        context: BuildContext,
        plan: BuildPlan,
        images: Mapping[str, StageImage],
        *,
        pin: PinLayer,
        timeout_s: float,
        memory_mb: int,
        report: ReportLine = lambda _: None,
    ) -> None:
        """Prepare a build.

        Args:
            layers: Where its layers are found and kept.
            context: The folder with the Dockerfile.
            plan: From the Dockerfile.
            images: What its `images` are here, all of them pinned.
            pin: Called before a layer is looked for.
            timeout_s: For the whole build.
            memory_mb: For each of its programs.
            report: See `ReportLine`.
        """
        self._layers, self._context, self._plan = layers, context, plan
        self._images, self._pin, self._report = images, pin, report
        self._ends = time.monotonic() + timeout_s
        self._timeout_s, self._memory_mb = timeout_s, memory_mb
        self._stages: dict[int, StageImage] = {}

    async def run(self) -> StageImage:
        """Build all stages and return the last one.

        Raises:
            EnvBug: the Dockerfile misfits its context; names the line.
            EnvInfraError: a step failed or ran out of time; has the end of its output.
            SandboxError: the sandbox of a step failed.
        """
        for stage in self._plan.stages:
            base = self._image(stage.base)
            found = evaluate(
                self._plan.dockerfile.stages[stage.number],
                base.config,
                self._plan.dockerfile,
                self._plan.arguments,
                {},
            )
            top, digest = base.top, base.digest
            for step in found.steps:
                top = await self._step(step, top, stage.number)
            digest = hashlib.sha256(f"{digest} {top} {asdict(found.config)}".encode()).hexdigest()
            self._stages[stage.number] = StageImage(top, found.config, digest)
        last = self._stages[self._plan.stages[-1].number]
        if last.top is None:
            raise EnvBug("the Dockerfile makes an image without files")
        return last

    def _image(self, base: int | str) -> StageImage:
        if isinstance(base, int):
            return self._stages[base]
        if base == SCRATCH:
            return StageImage(None, ImageConfig(), SCRATCH)
        return self._images[base]

    async def _step(self, step: DockerfileStep, top: str | None, stage: int) -> str:
        chain = self._layers.chain(top)
        if chain is not None and len(chain) >= MAX_LAYERS:
            raise EnvBug(f"Dockerfile line {step.line}: more than {MAX_LAYERS} layers")
        if isinstance(step, RunStep):
            return await self._run_step(step, top)
        if isinstance(step, WorkdirStep):
            return await self._workdir(step, top)
        return await self._copy(step, top, stage)

    async def _run_step(self, step: RunStep, top: str | None) -> str:
        if top is None:
            raise EnvBug(f"Dockerfile line {step.line}: RUN: the image has no files yet")
        key = layer_key(
            top, "run", step.argv, dict(step.env), step.user, step.workdir, step.network
        )
        shown = f"RUN {shlex.join(step.argv)}" if len(step.argv) != 3 else f"RUN {step.argv[2]}"

        async def fill(draft: Path) -> None:
            result = await self._layers.runner.run(
                self._layers.stack(top, draft),
                BuildStep(
                    step.argv,
                    step.env,
                    step.user,
                    step.workdir,
                    self._left_s(step.line),
                    step.network,
                    self._memory_mb,
                ),
            )
            if result.exit_code or result.timed_out:
                how = f"failed with exit code {result.exit_code}"
                if result.timed_out:
                    how = f"ran out of time: the build has {self._timeout_s:g} s in all"
                tail = result.output.decode(errors="replace").strip()[-OUTPUT_CHARS:]
                raise EnvInfraError(
                    f"Dockerfile line {step.line}: {_short(shown)!r} {how}; its output ends with:\n"
                    + tail
                )

        return await self._layer(key, top, shown, step.line, fill)

    async def _workdir(self, step: WorkdirStep, top: str | None) -> str:
        key = layer_key(top, "workdir", step.path, *filter(None, [step.owner]))

        async def fill(draft: Path) -> None:
            owner = await self._owner(step.owner, top, f"line {step.line}: USER {step.owner}")
            stack = self._layers.stack(top, draft)
            await self._layers.command(stack, "make", {"path": step.path, "owner": owner})

        return await self._layer(key, top, f"WORKDIR {step.path}", step.line, fill)

    async def _copy(self, step: CopyStep, top: str | None, stage: int) -> str:
        word = "ADD" if step.unpack else "COPY"
        shown = f"{word} {' '.join([*step.sources, *(n for n, _ in step.documents)])}"
        place = [step.destination, step.owner, step.mode, step.unpack]
        if step.source_stage is not None:
            source = self._image(self._plan.origin(step.source_stage, stage))
            key = layer_key(top, "copy from", source.top, step.sources, *place)
            prepared = None
        else:
            source = None
            prepared = await asyncio.to_thread(ContextCopy, step, self._context)
            key = layer_key(top, "copy", prepared.digest, *place)

        async def fill(draft: Path) -> None:
            options = {
                "destination": step.destination,
                "mode": step.mode,
                "owner": await self._owner(
                    step.owner, top, f"line {step.line}: --chown={step.owner}"
                ),
                "max_bytes": MAX_COPIED_BYTES,
                "max_entries": MAX_COPIED_FILES,
            }
            with self._layers.scratch() as file:
                if prepared is not None:
                    await asyncio.to_thread(prepared.write, file)
                elif source is not None:
                    packing = {**options, "sources": step.sources}
                    stack = self._layers.stack(source.top, None)
                    await self._layers.command(stack, "pack", packing, stdout=file)
                stack = self._layers.stack(top, draft)
                await self._layers.command(stack, "place", options, stdin=file)

        return await self._layer(key, top, f"{shown} {step.destination}", step.line, fill)

    async def _owner(self, owner: str, top: str | None, what: str) -> tuple[int, int] | None:
        """The ids of --chown or USER, which may be names in the image."""
        if not owner:
            return None
        files = {"/etc/passwd": "", "/etc/group": ""}
        if top is not None and not owner.replace(":", "").isdecimal():
            for path in files:
                with self._layers.scratch() as file:
                    stack = self._layers.stack(top, None)
                    await self._layers.command(stack, "read", {"path": path}, stdout=file)
                    file.seek(0)
                    files[path] = file.read(1 << 20).decode(errors="replace")
        try:
            found = identity(files["/etc/passwd"], files["/etc/group"], owner)
        except ValueError as error:
            raise EnvBug(f"Dockerfile {what}: {error}") from error
        if not owner.partition(":")[2] and owner.isdecimal():
            return found.uid, found.uid  # as container engines do
        return found.uid, found.gid

    async def _layer(
        self,
        key: str,
        top: str | None,
        shown: str,
        line: int,
        fill: Callable[[Path], Awaitable[None]],
    ) -> str:
        await self._pin(key)
        known = self._layers.info(key) is not None
        self._report(f"line {line}: {_short(shown)}{' (cached)' if known else ''}")
        if not known:
            self._left_s(line)
            try:
                await self._layers.ensure(key, top, shown, fill)
            except EnvInfraError as error:
                if str(error).startswith("Dockerfile"):
                    raise
                raise EnvInfraError(f"Dockerfile line {line}: {_short(shown)}: {error}") from error
        return key

    def _left_s(self, line: int) -> float:
        left = self._ends - time.monotonic()
        if left <= 0:
            raise EnvInfraError(
                f"Dockerfile line {line}: the build ran out of its {self._timeout_s:g} s"
            )
        return left


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_CHARS else line[:SHOWN_CHARS] + "..."
