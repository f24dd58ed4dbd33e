"""The Celery pool for coroutines: every task body runs on one event loop.

    callback_thread.py  what waits for Redis, and acknowledgements in batches
    intake.py           pause, resume, drain and shutdown
    loop_thread.py      the event loop of a worker, and the detection of a blocked one
    remote_control.py   sends and executes remote control commands
    run.py              one job in the pool
    running.py          a running task as its body sees it
    screening.py        validates messages before Celery reads them
    task_pool.py        slots, limits, cancellation; survives a lost Redis; events in batches
    trace.py            steps before and after the body of a task
    transport.py        kombu's Redis transport with fewer round trips

    app.conf.worker_pool = "hermes_queue.broker.pool:TaskPool"

Threads: the loop ("hermes-loop") runs bodies and all bookkeeping of slots. It also tells Celery
that a job has begun, and that it has succeeded; events are only put into a buffer then. What waits
for Redis (acknowledgements, the buffer of events) and reports of anything but success run on the
callback thread, in order. A task that is not a coroutine function fails.

A body accesses its task through `current_task()`: `self.request` is thread-local and empty on the
loop, and `self.retry()` does not work there.
"""

from hermes_queue.broker.pool.loop_thread import on_loop_start, on_loop_stop
from hermes_queue.broker.pool.running import CancelReason, RunningTask, current_task
from hermes_queue.broker.pool.task_pool import TaskPool, on_resize

__all__ = [
    "CancelReason",
    "RunningTask",
    "TaskPool",
    "current_task",
    "on_loop_start",
    "on_loop_stop",
    "on_resize",
]
