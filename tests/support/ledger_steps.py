"""The steps of a trajectory's life, as short calls for tests."""

from __future__ import annotations

import itertools
import time

from hermes_queue.bodies import codec
from hermes_queue.ledger import Ledger

LEASE = {"owner": "w1", "lease_s": 30.0}
NONCES = itertools.count()
SWEEP = {"interval_s": 0.0, "gap_s": 60.0, "grace_s": 5.0}


def enqueue(ledger: Ledger, *jobs):
    accepted = ledger.enqueue(jobs[0].run_id, jobs, config={})
    ledger.published(job.trajectory_id for job in accepted)
    return accepted


def begin(ledger: Ledger, job, attempt=1, **lease):
    nonce = str(next(NONCES))
    return ledger.begin(job.trajectory_id, attempt, **{"nonce": nonce, **LEASE, **lease})


def take(ledger: Ledger, named="gone.x.0"):
    """Begin the job that is next in the lane `train`, as a message does that names some job."""
    number = next(NONCES)
    return ledger.begin(
        named, 1, owner="w1", lease_s=60.0, nonce=str(number), lanes=("train",), slot=number
    )


def publish(ledger: Ledger, record, owner="w1"):
    body = codec.encode_record(record)
    return ledger.publish(record, body, owner=owner, finished_ttl_s=60)


def age_lease(ledger: Ledger, job):
    ledger.client.zadd("hq:leases", {job.trajectory_id: time.time() - 1}, xx=True)


def swept(ledger: Ledger):
    ledger.sweep(**SWEEP)  # the first sweep after a gap only grants grace
    return lambda: ledger.sweep(**SWEEP)
