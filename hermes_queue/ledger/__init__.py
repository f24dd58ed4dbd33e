"""The state of every trajectory in Redis: who runs it, what became of it."""

from hermes_queue.ledger.ledger import (
    Begun,
    Claim,
    DueJob,
    Ledger,
    PublishVerdict,
    RunStatus,
    Verdict,
)

__all__ = ["Begun", "Claim", "DueJob", "Ledger", "PublishVerdict", "RunStatus", "Verdict"]
