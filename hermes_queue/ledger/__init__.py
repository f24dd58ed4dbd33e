"""The state of every trajectory in Redis: who runs it, what became of it."""

from hermes_queue.ledger.dead import DeadLetters
from hermes_queue.ledger.ledger import (
    Begun,
    Claim,
    DueJob,
    Ledger,
    PublishVerdict,
    RunStatus,
    Verdict,
)

__all__ = [
    "Begun",
    "Claim",
    "DeadLetters",
    "DueJob",
    "Ledger",
    "PublishVerdict",
    "RunStatus",
    "Verdict",
]
