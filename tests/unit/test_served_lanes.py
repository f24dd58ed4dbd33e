"""Which lanes a worker serves, told by the queues that it consumes from."""

from __future__ import annotations

import pytest

from hermes_queue.queues import (
    PRIORITY_SEPARATOR,
    PRIORITY_STEPS,
    queues_of,
    served_lanes,
)

TRAIN = ["v1.train.retry", "v1.train"]
EVAL = ["v1.eval.retry", "v1.eval"]


@pytest.mark.parametrize(
    ("named", "queues"),
    [
        ([*EVAL, *TRAIN], [*EVAL, *TRAIN]),
        (["v1.eval", "v1.train"], [*EVAL, *TRAIN]),
        (["eval", "v1.train", "v1.eval.retry"], [*EVAL, *TRAIN]),
        (["v1.train.retry", "v1.eval"], EVAL),
        (["v1.eval.retry"], ["v1.eval.retry"]),
        (["v0.train", "eval"], [*EVAL, "v0.train"]),
    ],
    ids=["settings", "queues", "lanes", "all but a lane", "retries alone", "another version"],
)
def test_both_queues_of_every_named_lane_are_consumed(named: list[str], queues: list[str]) -> None:
    assert queues_of(named) == queues


def test_a_lane_is_served_where_its_new_jobs_are() -> None:
    assert served_lanes([*EVAL, "v1.train.retry", "celery", "v1.x.quarantine"]) == (
        "eval",
        "x.quarantine",
    )


def test_the_lists_of_a_queue_are_named_as_kombu_names_them():
    from kombu.transport.redis import PRIORITY_STEPS as STEPS
    from kombu.transport.redis import Channel

    assert (PRIORITY_STEPS, PRIORITY_SEPARATOR) == (tuple(STEPS), Channel.sep)
