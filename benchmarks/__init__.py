"""What hermes-queue costs, measured beside other systems: `python -m benchmarks --help`.

__main__.py         the command line
capped_endpoint.py  a chat endpoint that serves so many calls at once
engines.py          slots in containers
faults/             trajectories against a server that fails half of all calls (a proof)
jobs.py             jobs and records by the thousand
kills.py            model tokens under kills, with the turn journal and without it
lag.py              backends that note how late the event loop is
measuring.py        parts, cases, sides, turns; CPU time by process; rates and ratios
noop.py             a sandbox without a sandbox
operators.py        how long `status`, `top` and `run` take with a million trajectories
parts/              one file for each thing that is measured
peers/              other systems: pinned requirements, and the program that each one runs
plugins/            what plugins cost, and their parts
pool.py             no-op tasks in our pool
processes.py        redis-server, workers, virtual environments of peers
reader.py           a consumer in a process of its own
report.py           progress, the table, the JSON, the line of the history
simulate.py         a simulated fleet with measured costs
soak/               a long run, and whether anything grows
"""
