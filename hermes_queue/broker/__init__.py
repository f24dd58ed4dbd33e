"""Celery, and everything that depends on it.

app.py            the Celery application
child_process.py  processes that die with their parent
embedded.py       a private Redis and one worker, for one run
enqueue.py        enqueues jobs in batches, as Celery's messages written without Celery
rerun.py          runs dead letters and failed trajectories again
submission.py     enqueues jobs from any program, e.g. a trainer
worker.py         a worker without Celery's command line
pool/             the pool for coroutines
"""
