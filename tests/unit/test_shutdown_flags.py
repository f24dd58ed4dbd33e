"""Celery's flags of a shutdown hold exit codes."""

import pytest
from celery.worker import state

from hermes_queue.broker.pool.intake import shutdown_is_cold, shutdown_is_ordered


@pytest.mark.parametrize(
    ("stop", "terminate", "ordered", "cold"),
    [
        (None, None, False, False),
        (False, False, False, False),
        (0, None, True, False),
        (None, 0, True, True),
        (None, 1, True, True),
    ],
)
def test_an_exit_code_of_zero_orders_a_shutdown_like_any_other(
    monkeypatch, stop, terminate, ordered, cold
):
    monkeypatch.setattr(state, "should_stop", stop)
    monkeypatch.setattr(state, "should_terminate", terminate)
    assert (shutdown_is_ordered(), shutdown_is_cold()) == (ordered, cold)
