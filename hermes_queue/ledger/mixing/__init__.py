"""What Redis holds of a mix: who serves it, how far it has come, and its live settings.

checkpoint.py   take, keep and let go of a mix; the next batch, written down before it is enqueued
shown.py        mixes as people see them
tuning.py       settings that change while a mix is served
"""

from hermes_queue.ledger.mixing.checkpoint import Checkpoint, MixBatch, MixHeld, MixLost
from hermes_queue.ledger.mixing.tuning import LiveSettings, SourceSettings

__all__ = ["Checkpoint", "LiveSettings", "MixBatch", "MixHeld", "MixLost", "SourceSettings"]
