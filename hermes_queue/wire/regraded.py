"""What a record says of the older one whose work it measures again."""

from __future__ import annotations

from pydantic import FiniteFloat

from hermes_queue.wire.conversation import Wire
from hermes_queue.wire.names import Name


class Regraded(Wire):
    """The measurement that a regrade repeats; the record of it stays as it is."""

    run_id: Name
    trajectory_id: Name
    score: FiniteFloat
    """Its score, beside which the new one stands."""
    reason: str = ""
    """The `reason` of its report, if that is a text."""
    env_version: str = ""
    item_sha256: str = ""
    """Hash of the dataset row that it was measured with."""
    created: FiniteFloat = 0.0
