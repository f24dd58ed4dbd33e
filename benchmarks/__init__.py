"""What hermes-queue costs, measured beside other systems: `python -m benchmarks --help`.

__main__.py         the command line
capped_endpoint.py  a chat endpoint that serves so many calls at once
faults/             trajectories against a server that fails half of all calls (a proof)
jobs.py             jobs and records by the thousand
measuring.py        parts, cases, sides, turns; CPU time by process; rates and ratios
noop.py             a sandbox without a sandbox
parts/              one file for each thing that is measured
peers/              other systems: pinned requirements, and the program that each one runs
pool.py             no-op tasks in our pool
processes.py        redis-server, workers, virtual environments of peers
report.py           the table, the JSON, the line of the history
"""
