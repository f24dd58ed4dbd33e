"""Celery, and all that knows it.

app.py            the Celery application
child_process.py  processes that die with the one that starts them
embedded.py       a private Redis and one worker, for one run
enqueue.py        jobs sent in batches
messages.py       Celery's messages, written without Celery
rerun.py          run dead letters and failed trajectories again
submission.py     send jobs from a program of your own
worker.py         a worker without Celery's command line
pool/             the pool for coroutines
"""
