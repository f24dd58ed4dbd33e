"""The code that runs inside a worker process.

batches.py      joins what many trajectories do in the same moment
bodies.py       stores large bodies in the object store
clock.py        deadlines and stages of an attempt
draft.py        a record in the making
evidence.py     failed attempts: when the next one begins, and their transcripts
imports.py      imports the modules a job names
lifecycle.py    start and stop of a worker
outbox.py       owns a finished record: stores it, then publishes it
record.py       makes the record of an attempt
rollout.py      one trajectory, top to bottom: read this first
runtime.py      resources that one process shares
spool.py        finished records on disk
trajectory.py   the Celery task: one attempt, from its message to its record
verdicts.py     validates what an env returns
bounds/         what keeps a stage from lasting for ever
calls/          permission to call a model
goodput/        where the time of slots goes, and what it costs
intake/         from a message to a leased trajectory and its row
judging/        a model judges what was measured
play/           one trajectory before a person's eyes
program/        runs a program in the slot as the agent
resume/         continues trajectories of workers that have ended
stages/         places of stages, in the worker and in the fleet
steps/          tasks of several instructions
tracing/        spans of trajectories, for OpenTelemetry
upkeep/         threads and tasks that renew, sweep and report
validation/     measures tasks before anybody trains on them
"""
