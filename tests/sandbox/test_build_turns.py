"""Builders of one asset take turns; one that is suspended holds nobody up."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets

import pytest

from hermes_queue.disk import turn as build_turn
from hermes_queue.errors import EnvInfraError
from hermes_queue.sandbox.base import AssetSpec, ExecutionResult
from hermes_queue.sandbox.host import paths as host_paths
from hermes_queue.sandbox.local.assets import AssetStore


@contextlib.contextmanager
def held(path):
    """The lock of a process that gives no sign of life: it neither touches it nor lets go."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@pytest.fixture
def spec():
    return AssetSpec("text", secrets.token_hex(8), "true", "/opt/assets/t")


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(build_turn, "SILENT_S", 0.2)
    monkeypatch.setattr(build_turn, "BEAT_S", 0.01)


class Builds:
    """Builds of one process: each writes a file, once `go` is set."""

    def __init__(self, cache) -> None:
        self.go = asyncio.Event()
        self.begun = asyncio.Event()
        self.count = 0
        self.store = AssetStore(cache, self._build)

    async def _build(self, spec, directory):
        self.count += 1
        self.begun.set()
        await self.go.wait()
        (directory / "file").touch()
        return ExecutionResult(0, b"", b"", 0.0)


async def test_an_asset_is_built_beside_a_builder_that_is_suspended(tmp_path, spec, impatient):
    one = Builds(tmp_path)
    one.go.set()
    with held(one.store.lock_path(spec)):
        place = await one.store.ensure(spec)
    assert (place / "file").exists()


async def test_who_was_suspended_while_another_built_it_takes_what_is_there(
    tmp_path, spec, impatient, monkeypatch
):
    one, two = Builds(tmp_path), Builds(tmp_path)
    monkeypatch.setattr(build_turn, "_beat", lambda _: asyncio.sleep(3600))
    suspended = asyncio.create_task(one.store.ensure(spec))
    await one.begun.wait()
    two.go.set()
    place = await two.store.ensure(spec)
    one.go.set()
    assert await suspended == place
    assert (place / "file").exists()
    assert [each.name for each in place.parent.iterdir() if "new" in each.name] == []


async def test_a_builder_that_lives_is_waited_for(tmp_path, spec, impatient):
    one, two = Builds(tmp_path), Builds(tmp_path)
    building = asyncio.create_task(one.store.ensure(spec))
    await one.begun.wait()
    waiting = asyncio.create_task(two.store.ensure(spec))
    await asyncio.wait([waiting], timeout=4 * build_turn.SILENT_S)
    assert not waiting.done()
    one.go.set()
    assert await waiting == await building
    assert two.count == 0


async def test_nobody_waits_for_a_lock_once_the_asset_is_there(tmp_path, spec):
    one = Builds(tmp_path)
    with held(one.store.lock_path(spec)):
        waiting = asyncio.create_task(one.store.ensure(spec))
        one.store.path(spec).mkdir()
        await waiting
    assert one.count == 0


async def test_when_all_builders_are_suspended_the_failure_names_them(tmp_path, spec, impatient):
    one = Builds(tmp_path)
    lock = one.store.lock_path(spec)
    with held(lock), held(lock.with_name(f"{lock.name}.1")), held(lock.with_name(f"{lock.name}.2")):
        with pytest.raises(EnvInfraError, match=rf"process {os.getpid()} .*kill -CONT"):
            await one.store.ensure(spec)
    assert one.count == 0


def test_copies_into_the_cache_wait_for_a_lock_for_a_bounded_time(tmp_path, monkeypatch):
    monkeypatch.setattr(host_paths, "LOCK_TIMEOUT_S", 0.1)
    with held(tmp_path / "lock"):
        with pytest.raises(EnvInfraError, match=f"process {os.getpid()} "):
            with host_paths.locked(tmp_path / "lock"):
                pass
