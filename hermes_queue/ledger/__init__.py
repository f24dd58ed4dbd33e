"""The state of every trajectory: its owner, attempts and outcome.

answers.py      types of the ledger's answers
attempts.py     evidence of failed attempts
budgets.py      budgets of runs
cancelling.py   end single trajectories and groups
dead.py         dead letters
group_facts.py  facts about groups and their members
items.py        rows too large to travel with their jobs
ledger.py       enqueue, begin, renew, requeue, publish, sweep
poison.py       items under which workers died
policy.py       the policy version of a run
run_lock.py     one configuration per run id
runs.py         list, pause, cancel, purge
transitions.py  begin, requeue and publish as calls that can travel together
waiting.py      waiting jobs, looked at without taking them
accounts/       where the time of slots went
fleet/          state that workers share
scheduling/     which of the waiting jobs a free slot gets
tasks/          what is remembered of tasks across runs
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
from hermes_queue.ledger.fleet.lanes import Breakers, LaneState
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
