"""The parts of the benchmarks; each module has a `PART`, and its docstring says what it compares.

atropos.py   consume -> Atropos's API server
capture.py   model calls of programs, through the endpoint
codec.py     records to bytes and back
commands.py  a command in a local sandbox
enqueue.py   real rows into the queue
factory.py   no-op trajectories from the queue to the consumer
limiter.py   worker processes that share an endpoint
loops.py     a thousand agent loops on a slow endpoint
memory.py    a thousand jobs that wait
modal.py     commands and trajectories in Modal sandboxes
parquet.py   the stream into Parquet
queues.py    no-op tasks
scaling.py   no-op trajectories with 1, 2 and 4 workers
schedule.py  the choice of the next job among 100,000
start.py     imports, --help, a worker's first job
streams.py   begin, publish, consume
tracing.py   no-op trajectories, exported to a collector or not
"""
