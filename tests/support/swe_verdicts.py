"""Attempts on rows with images, on a real backend, without a queue."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from container_engines import NoEngine, base_tarball

from envs.base import Verdict
from envs.swe.item import Item
from envs.swe_smith import ENV
from hermes_queue.sandbox import make_backend
from hermes_queue.sandbox.base import SandboxBackend
from hermes_queue.sandbox.context import SlotContext
from hermes_queue.settings import PathSettings
from hermes_queue.tools import Toolbox, ToolContext

SECONDS = 1800.0


def base_or_skip() -> Path:
    """The file system that images are made on; the test is skipped where none can be made."""
    try:
        return base_tarball(PathSettings().cache)
    except NoEngine as why:
        pytest.skip(str(why))


def import_image(name: str, archive: Path, sandbox: str) -> None:
    """Make an image known to a backend, and delete its archive."""
    if sandbox == "docker":
        command = ["docker", "import", str(archive), name]
    else:
        command = [sys.executable, "-m", "hermes_queue.cli", "images", "import"]
        command += [name, str(archive)]
    subprocess.run(command, check=True)
    archive.unlink()


@contextlib.asynccontextmanager
async def attempt(row: dict[str, Any], sandbox: str) -> AsyncIterator[tuple[Item, SlotContext]]:
    """A slot that was set up for the row."""
    item = Item.model_validate(row)
    backend: SandboxBackend = make_backend(sandbox, slots=1)
    await backend.start()
    try:
        spec = ENV.spec(item, "default")
        await backend.prepare(spec)
        slot = await backend.acquire("t", spec)
        context = SlotContext(backend, slot, deadline=time.monotonic() + SECONDS)
        await ENV.setup(item, context)
        yield item, context
    finally:
        await backend.stop()


async def verdict(row: dict[str, Any], agent: str, sandbox: str, script: str = "") -> Verdict:
    """The score of an agent by name (oracle, nop, or a cheat), which then runs a script."""
    async with attempt(row, sandbox) as (item, context):
        calls = {} if agent in ("oracle", "nop") else ENV.tamper(item)
        todo = await ENV.oracle(item, context) if agent == "oracle" else calls.get(agent, ())
        tools = Toolbox(ENV.tools, ToolContext(context, 120.0, 16_384))
        for call in todo:
            assert not isinstance(call, str)
            await tools.call(call)
        if script:
            assert (await context.run(script, timeout_s=300.0)).ok
        return await ENV.verify(item, context, [])


async def check_fix_and_nothing(row: dict[str, Any], sandbox: str) -> None:
    """Assert that the fix scores 1, and no change 0 for the tests that fail."""
    solved = await verdict(row, "oracle", sandbox)
    assert solved.score == 1.0, solved.report
    nothing = await verdict(row, "nop", sandbox)
    assert (nothing.score, nothing.report["reason"]) == (0.0, "tests_fail"), nothing.report
