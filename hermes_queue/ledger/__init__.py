"""The state of every trajectory: who runs it, what became of it.

answers.py      what the ledger answers
attempts.py     evidence of failed attempts
budgets.py      what a run may spend
cancelling.py   end single trajectories and groups
dead.py         dead letters
group_facts.py  what is known of groups and their members
items.py        rows too large to travel with their jobs
ledger.py       enqueue, begin, renew, requeue, publish, sweep
letters.py      what becomes a dead letter
poison.py       items under which workers died
policy.py       the policy version of a run
run_lock.py     one producer per run
runs.py         list, pause, cancel, purge
fleet/          what workers agree on
"""

from hermes_queue.ledger.answers import (
    ACCEPTED,
    BeginVerdict,
    Begun,
    Claim,
    DueJob,
    PublishVerdict,
    QueueKeys,
    RunStatus,
    Spent,
)
from hermes_queue.ledger.dead import DeadLetters
from hermes_queue.ledger.fleet.breaker import Breakers, LaneState
from hermes_queue.ledger.ledger import Ledger
from hermes_queue.ledger.runs import Pause, RunInfo, Runs

__all__ = [
    "ACCEPTED",
    "BeginVerdict",
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
]
