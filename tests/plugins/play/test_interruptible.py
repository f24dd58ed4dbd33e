"""The backend whose commands a person can interrupt."""

from __future__ import annotations

import math
from pathlib import Path
from typing import cast

from boxed_slots import BoxedSlots

from hermes_plugins.play.interruptible import InterruptibleBackend
from hermes_queue.images.spec import ImageSpec
from hermes_queue.sandbox.base import SandboxBackend, SlotSpec
from hermes_queue.sandbox.context import SlotContext


async def test_slots_with_images_keep_their_methods(tmp_path: Path) -> None:
    """Also where `isinstance` does not see methods that are passed on, as since Python 3.12."""
    backend = BoxedSlots(tmp_path, {"/app/given": "given"})
    slot = backend.slot(SlotSpec(image=ImageSpec(reference="any")))
    passing_on = InterruptibleBackend(cast(SandboxBackend, backend))
    context = SlotContext(cast(SandboxBackend, passing_on), slot, deadline=math.inf)
    (tmp_path / slot.slot_id / "app" / "added").write_text("added")
    assert "/app/added" in {change.path for change in await context.changes()}
