"""`--check`: verify the sources, pins and environments of rows, and run their known fixes.

Each environment is built once, as a worker would build it. Each row is pinned: its source is
fetched, or its image read in a slot, its patch applied, its test files looked up. Then its tests
run several times with the known fix, to find flaky ones. All faults are reported, equal ones once.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import time
from collections.abc import Sequence

from envs.swe.grading.repeated import repeat_known_fix
from envs.swe.images.hidden import known_row
from envs.swe.images.pinning import pin_image
from envs.swe.images.source import ImageSource
from envs.swe.item import Item, SuiteRuntime
from envs.swe.repository import GitError
from envs.swe.workspace import pin
from envs.swe_smith import ENV
from hermes_queue.errors import EXIT_FAILED, TrajectoryFailure
from hermes_queue.sandbox import make_backend
from hermes_queue.sandbox.base import AssetSpec, SandboxBackend, SlotSpec
from hermes_queue.sandbox.context import SlotContext
from hermes_queue.settings import SandboxSettings
from hermes_queue.terminal.output import echo
from producers.run.options import ProducerOptions
from producers.run.progress import Progress
from producers.run.report import listed
from producers.source import SelectedItem

IMAGE_TIMEOUT_S = 1200.0
"""For reading one image."""
CONCURRENT_PINS = 4
"""Rows that are pinned at the same time."""


def check_rows(items: Sequence[SelectedItem], options: ProducerOptions) -> int:
    """Check the rows on this machine, print their faults and return the exit code."""
    rows = {item.instance_id: Item.model_validate(item.item()) for item in items}
    with Progress(quiet=options.output.quiet) as progress:
        bare = [
            name
            for name, row in rows.items()
            if row.environment == SuiteRuntime() and not isinstance(row.source, ImageSource)
        ]
        if bare:
            progress.say(
                f"note: {len(bare)} rows name no environment, so only pytest is installed; if they "
                f"need more, see producers.make_environment and --environments: {listed(bare)}"
            )
        runs = options.own.check_runs
        tests = f"{runs} runs of each known fix" if runs else "no tests"
        progress.say(f"checking {len(rows)} rows: environments, sources and pins; {tests}")
        faults = asyncio.run(_faults(list(rows.values()), options))
        for fault, ids in faults.items():
            echo(f"error: {fault}: {listed(ids)}", err=True)
        bad = sum(map(len, faults.values()))
        progress.say(f"{len(rows) - bad} of {len(rows)} rows are usable, {bad} are not")
    if options.output.json:
        found = [{"message": fault, "instance_ids": ids} for fault, ids in faults.items()]
        echo(json.dumps({"checked": len(rows), "faults": found}))
    return EXIT_FAILED if faults else 0


async def _faults(rows: Sequence[Item], options: ProducerOptions) -> dict[str, list[str]]:
    """Fault -> ids of the rows that have it, in the order of the rows."""
    os.environ.update(options.sandbox.worker_settings())
    backend = make_backend(SandboxSettings().backend, slots=1)
    await backend.start()
    try:
        checker = _Checker(backend, options.run.profile, options.own.check_runs)
        found = await asyncio.gather(*map(checker.fault, rows))
    finally:
        await backend.stop()
    faults: dict[str, list[str]] = {}
    for row, fault in zip(rows, found, strict=True):
        if fault:
            faults.setdefault(fault, []).append(row.instance_id)
    return faults


class _Checker:
    """Builds each environment that the rows need once, whether or not the build succeeds."""

    def __init__(self, backend: SandboxBackend, profile: str, runs: int) -> None:
        self._backend = backend
        self._profile = profile
        self._runs = runs
        self._alone = asyncio.Lock()
        self._turn = asyncio.Semaphore(CONCURRENT_PINS)
        self._built: dict[tuple[object, ...], asyncio.Task[None]] = {}

    async def fault(self, row: Item) -> str | None:
        """The row's fault, if any; the environment is checked first."""
        try:
            await self._build(ENV.spec(row, self._profile))
            async with self._turn:
                if isinstance(row.source, ImageSource):
                    await self._check_image(row, row.source)
                else:
                    await pin(row, self._read)
            if self._runs:
                async with self._alone:
                    await self._repeat(row)
        except TrajectoryFailure as error:
            return str(error)
        except GitError as error:
            return f"git: {error}"
        return None

    async def _check_image(self, row: Item, source: ImageSource) -> None:
        """Read the image in a slot of it; raises what `ENV.setup` would."""
        slot = await self._backend.acquire("check", ENV.spec(row, self._profile))
        context = SlotContext(self._backend, slot, deadline=time.monotonic() + IMAGE_TIMEOUT_S)
        try:
            await known_row(row, await pin_image(row, source, context))
        finally:
            await self._backend.release(context.slot)

    async def _repeat(self, row: Item) -> None:
        slot = await self._backend.acquire("check", ENV.spec(row, self._profile))
        context = SlotContext(self._backend, slot, deadline=math.inf)
        try:
            if isinstance(row.source, ImageSource):
                pinned = await pin_image(row, row.source, context)
            else:
                pinned = await pin(row, self._read)
            await repeat_known_fix(row, context, pinned, self._runs)
        finally:
            await self._backend.release(context.slot)

    async def _build(self, spec: SlotSpec) -> None:
        key = (spec.image, *(asset.key for asset in spec.assets))
        if key not in self._built:
            self._built[key] = asyncio.ensure_future(self._backend.prepare(spec))
        await asyncio.shield(self._built[key])

    async def _read(self, asset: AssetSpec, path: str) -> bytes:
        spec = SlotSpec(profile=self._profile, assets=(asset,), python=asset.python)
        await self._build(spec)
        return await self._backend.read_asset(asset, path)
