"""Which waiting job a free slot gets: see docs/scheduling.md.

scheduler.py  keeps the tree of waiting jobs in order, and shows it
shares.py     what operators set: weights, reserved shares, caps, quotas
"""

from hermes_queue.ledger.scheduling.scheduler import Scheduler, SlotUse
from hermes_queue.ledger.scheduling.shares import KINDS, Share, Shares

__all__ = ["KINDS", "Scheduler", "Share", "Shares", "SlotUse"]
