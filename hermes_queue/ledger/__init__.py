"""The state of every trajectory in Redis: who runs it, what became of it."""

from hermes_queue.ledger.answers import (
    ACCEPTED,
    Begun,
    Claim,
    DueJob,
    PublishVerdict,
    QueueKeys,
    RunStatus,
    Spent,
    Verdict,
)
from hermes_queue.ledger.dead import DeadLetters
from hermes_queue.ledger.fleet.breaker import Breakers, LaneState
from hermes_queue.ledger.ledger import Ledger
from hermes_queue.ledger.runs import Pause, RunInfo, Runs

__all__ = [
    "ACCEPTED",
    "Begun",
    "Breakers",
    "Claim",
    "DeadLetters",
    "DueJob",
    "LaneState",
    "Ledger",
    "Pause",
    "PublishVerdict",
    "QueueKeys",
    "RunInfo",
    "RunStatus",
    "Runs",
    "Spent",
    "Verdict",
]
