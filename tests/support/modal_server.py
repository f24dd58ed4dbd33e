"""Fixtures with a Modal-compatible server, which the unmodified `modal` SDK uses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from localmodal.faults.plan import Conduct, FaultPlan
from localmodal.server import BackgroundServer


class ModalTestServer:
    """A Modal-compatible server in a thread. Tests may use any event loops."""

    def __init__(self, background: BackgroundServer) -> None:
        self._background = background

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that point the SDK at the server; set while a test runs."""
        return self._background.server.environment

    @property
    def faults(self) -> FaultPlan:
        """Injects failures and delays into calls, and counts calls. Cleared after each test."""
        return self._background.server.faults

    @property
    def slots(self) -> int | None:
        """1 where the host cannot map a range of uids into sandboxes, else None."""
        return self._background.server.slots

    def running(self) -> list[str]:
        """Ids of the sandboxes that have not ended."""
        boxes = list(self._background.server.store.boxes.values())
        return [box.sandbox_id for box in boxes if box.result is None]

    def lose_worker(self, sandbox_id: str) -> None:
        """Simulate the death of a sandbox's machine, see `LocalModal.lose_worker`."""
        self._background.call(self._background.server.lose_worker(sandbox_id))

    def reset(self) -> None:
        """End all sandboxes and clear all faults; apps, images and volumes stay."""
        self.faults.clear()
        self.faults.adjust(**vars(Conduct()))
        self._background.call(self._background.server.store.close())


@pytest.fixture(scope="session")
def localmodal_server() -> Iterator[ModalTestServer]:
    """One server for the whole session; tests use `localmodal`."""
    with BackgroundServer(worker_ports=True) as background:
        yield ModalTestServer(background)


@pytest.fixture
def localmodal(
    localmodal_server: ModalTestServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[ModalTestServer]:
    """A server without sandboxes and faults, with the SDK's environment pointing at it."""
    for name, value in localmodal_server.environment.items():
        monkeypatch.setenv(name, value)
    # Point the SDK at an empty config file, so that the user's own profile is ignored.
    monkeypatch.setenv("MODAL_CONFIG_PATH", str(tmp_path / "modal.toml"))
    for name in ("MODAL_PROFILE", "MODAL_ENVIRONMENT"):
        monkeypatch.delenv(name, raising=False)
    forget_modal_client()
    try:
        yield localmodal_server
    finally:
        localmodal_server.reset()
        forget_modal_client()


def forget_modal_client() -> None:
    """Make the SDK read its environment again; it keeps one client for the whole process."""
    from modal.client import _Client

    client = _Client._client_from_env
    if client is not None:
        _Client._client_from_env = None
