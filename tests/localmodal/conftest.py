"""Sandboxes of the Modal-compatible server, made and used through the unmodified SDK."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import modal
import pytest
from modal_server import ModalTestServer, localmodal, localmodal_server

__all__ = ["localmodal", "localmodal_server"]

Create = Callable[..., Awaitable[Any]]


IN_BOTH = ("test_localmodal_life.py", "test_localmodal_calls.py", "test_localmodal_create.py")
"""What the versions of the protocol do differently: making, listing and ending sandboxes."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave repetitions in the second version of the protocol to `make test-exhaustive`."""
    for item in items:
        callspec = getattr(item, "callspec", None)
        version = callspec and callspec.params.get("protocol")
        if version == "1" and item.path.name not in IN_BOTH:
            item.add_marker(pytest.mark.exhaustive)


@pytest.fixture(params=["0", "1"], ids=["v1", "v2"])
def protocol(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The version of the protocol that the SDK is told to speak."""
    monkeypatch.setenv("MODAL_SANDBOX_V2", request.param)
    return str(request.param)


@pytest.fixture
async def app(localmodal: ModalTestServer, protocol: str) -> Any:
    return await modal.App.lookup.aio("tests", create_if_missing=True)


@pytest.fixture
async def create(app: Any) -> Create:
    """`modal.Sandbox.create` with this test's app and a plain image."""

    async def make(*argv: str, **options: Any) -> Any:
        options = {"image": modal.Image.debian_slim(), "timeout": 300, **options}
        return await modal.Sandbox.create.aio(*argv, app=app, **options)

    return make


@pytest.fixture
async def sandbox(create: Create) -> Any:
    return await create()


async def run(sandbox: Any, *argv: str, **options: Any) -> tuple[Any, Any, int]:
    """stdout, stderr and exit code of a command."""
    process = await sandbox.exec.aio(*argv, **options)
    out, err, code = await asyncio.gather(
        process.stdout.read.aio(), process.stderr.read.aio(), process.wait.aio()
    )
    return out, err, code


async def sh(sandbox: Any, script: str, **options: Any) -> str:
    """What a script that must succeed writes to stdout, without the last line's end."""
    out, err, code = await run(sandbox, "bash", "-c", script, **options)
    assert code == 0, (out, err, code)
    return str(out).rstrip("\n")


@pytest.fixture(name="run")
def run_fixture() -> Callable[..., Awaitable[tuple[Any, Any, int]]]:
    return run


@pytest.fixture(name="sh")
def sh_fixture() -> Callable[..., Awaitable[str]]:
    return sh
