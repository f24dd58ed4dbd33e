"""Slots with images for the backend `modal`, see `Plugin.image_slots`."""

from __future__ import annotations

from typing import Any

from hermes_queue.sandbox.base import SandboxBackend
from hermes_queue.sandbox.fleet import BackendFactory


# Imported on use: producers load this module before they print their help.
def _make(**options: Any) -> SandboxBackend:
    from hermes_plugins.images.modal.backend import RootedModalBackend

    return RootedModalBackend(**options)


BACKEND: BackendFactory = _make
