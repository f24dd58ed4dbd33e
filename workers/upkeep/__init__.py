"""Threads and tasks that renew, sweep and report for a worker.

ahead.py         prepares environments of waiting jobs
beat.py          the facts that a worker reports with each beat
counts.py        attempts and endings, until they are reported
inventory.py     sandboxes, reported to the ledger
keeper.py        the heartbeat: leases, sweeps, mover, large bodies; ends a blocked worker
log_tail.py      the last log lines
metering.py      metrics of a worker
quarantine.py    processes for jobs under which workers die
reaper.py        ends sandboxes of dead workers
recovery.py      publishes the finished records of dead workers
transcripts.py   what agents have said so far, for who asks
"""
