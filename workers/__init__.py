"""What runs inside a worker process.

bodies.py       large bodies to the object store
clock.py        deadlines and stages of an attempt
draft.py        a record in the making
evidence.py     what is kept of a failed attempt
imports.py      imports what a job names
lifecycle.py    start and stop of a worker
outbox.py       a finished record: kept, then published
record.py       the record that is made of a draft
retry.py        whether and when a failed attempt is repeated
rollout.py      one trajectory, top to bottom: read this first
runtime.py      what one process shares
spool.py        finished records on disk
trajectory.py   the Celery task
verdicts.py     what an env says, checked before it becomes a record
calls/          permission to call a model
chaos/          kill everything, prove nothing is lost
upkeep/         threads and tasks that keep what is held
"""
