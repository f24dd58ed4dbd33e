"""The master is killed, hangs, or is cut off from its replicas while 160 jobs run: none is lost.

`make test-failover` prints the figures of docs/redis-high-availability.md.
"""

from __future__ import annotations

import time

import pytest
from failover_run import FailoverRun, running
from redis_sentinels import RedisSentinels

JOBS = 160
ALONE_S = 4.0
"""Seconds for which a master writes what no replica gets."""


def killed(run: FailoverRun, sentinels: RedisSentinels) -> float:
    sentinels.kill(0)
    return sentinels.wait_for_another_master(0)


def hanging(run: FailoverRun, sentinels: RedisSentinels) -> float:
    """It goes on where it was, and believes to be the master until the sentinels tell it."""
    sentinels.pause(0)
    took_s = sentinels.wait_for_another_master(0)
    sentinels.resume(0)
    return took_s


def waking(run: FailoverRun, sentinels: RedisSentinels) -> float:
    """As one that hangs, but it goes on while the other replica still listens to it."""
    sentinels.pause(0)
    took_s = sentinels.wait_for_another_master(0, followed=False)
    sentinels.resume(0)
    return took_s


def cut_off(run: FailoverRun, sentinels: RedisSentinels) -> float:
    """Its replicas get nothing for some seconds; then it dies with what only it has."""
    for replica in (1, 2):
        sentinels.pause(replica)
    time.sleep(ALONE_S)  # that long the partition lasts
    for server in (0, 1, 2):  # what is on its way to the replicas is lost, too
        sentinels.kill(server)
    for replica in (1, 2):
        sentinels.start_again(replica)
    return sentinels.wait_for_another_master(0)


@pytest.mark.parametrize(
    ("what", "confirm"),
    [(killed, 0), (killed, 1), (hanging, 0), (hanging, 1), (waking, 2), (cut_off, 0), (cut_off, 1)],
)
def test_every_trajectory_is_measured_and_delivered(sentinels, tmp_path, what, confirm, capsys):
    setting = {"HERMES_QUEUE_REDIS_CONFIRM_REPLICAS": str(confirm)}
    with running(sentinels, tmp_path, jobs=JOBS, **setting) as run:
        run.wait_for(JOBS // 4)
        failover_s = what(run, sentinels)
        outcome = run.end()
        still_alive = [worker.alive for worker in run.workers]
    with capsys.disabled():
        print(
            f"\nmaster {what.__name__}, {confirm} replicas confirm: another master after "
            f"{failover_s:.1f} s; {outcome.measured_again} of {JOBS} measured again, "
            f"{outcome.delivered_again} delivered again"
        )
    assert set(outcome.measured) == set(outcome.delivered)
    assert len(outcome.delivered) == JOBS
    assert all(still_alive)
    if confirm:
        assert outcome.measured_again == 0
