"""The adapter of AReaL where it is not installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError

import pytest

from hermes_queue.errors import ConfigurationError
from hermes_queue.trainers import versions
from hermes_queue.trainers.areal import QueueWorkflow


def test_a_workflow_without_areal_is_refused_with_the_command_to_install_it(monkeypatch) -> None:
    def absent(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(versions, "version", absent)
    with pytest.raises(ConfigurationError, match=r"pip install 'areal==1\.0\.4'"):
        QueueWorkflow(None)  # type: ignore[arg-type]
