"""What slots have written to their root file systems."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from hermes_queue.sandbox.containers.box import SlotBox
from hermes_queue.sandbox.containers.stock import Stock

logger = logging.getLogger(__name__)


async def drop_overfull(
    held: Mapping[str, SlotBox], written: Mapping[str, int], *, stock: Stock
) -> None:
    """Give up slots that have written more than they may, in one of their containers.

    `written`: bytes by container.
    """
    for slot_id, box in list(held.items()):
        for container, most_mb in bounds_mb(box).items():
            if most_mb and written.get(container, 0) > most_mb << 20:
                box.ended_itself = True
                box.why_spent = f"it wrote more than {most_mb} MB to its root file system"
                logger.warning("slot %s: %s", slot_id, box.why_spent, extra={"action": "slot_lost"})
                await stock.drop(box)
                break


def bounds_mb(box: SlotBox) -> dict[str, int]:
    """What each container of a slot may write; 0 = unlimited."""
    bounds = {box.container: box.plan.spec.disk_mb}
    if box.group is not None:
        for each in box.plan.services:
            if container := box.group.containers.get(each.service.name):
                bounds[container] = each.plan.spec.disk_mb
    return bounds
