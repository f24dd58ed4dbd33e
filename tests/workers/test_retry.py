"""Which failures are repeated, how often, and after how long."""

from __future__ import annotations

import pytest
from records import make_job

from hermes_queue.errors import (
    DeadlineExceeded,
    EnvBug,
    EnvInfraError,
    ModelConfigError,
    ModelError,
    SandboxError,
    SandboxRejected,
)
from hermes_queue.models import AttemptRecord, Failure
from hermes_queue.sandbox.base import Capabilities
from hermes_queue.settings import ModelSettings, RetrySettings
from workers.attempt import Attempt, Services
from workers.clock import Clock
from workers.draft import Draft
from workers.evidence import retry_delay_s
from workers.record import describe
from workers.rollout import rollout

SETTINGS = RetrySettings()


def failed(*causes):
    return [
        AttemptRecord(
            attempt=number,
            epoch=number,
            failure=Failure(cause=cause, stage="setup", type="T", message="m"),
        )
        for number, cause in enumerate(causes, start=1)
    ]


def delay_s(failure, earlier=(), left_s=100.0, settings=SETTINGS):
    return retry_delay_s(failure, earlier, settings, left_s=left_s)


@pytest.mark.parametrize(
    ("failure", "attempts"),
    [
        (SandboxError("x"), 3),
        (ModelError("x"), 4),
        (EnvInfraError("x"), 3),
        (DeadlineExceeded("x"), 2),
        (EnvBug("x"), 1),
        (ModelConfigError("x"), 1),
    ],
    ids=lambda value: getattr(value, "cause", value),
)
def test_each_cause_has_a_limit_of_its_own(failure, attempts):
    allowed = [delay_s(failure, failed(*[failure.cause] * n)) is not None for n in range(6)]
    assert allowed == [n + 1 < attempts for n in range(6)]


def test_other_causes_use_up_only_the_limit_of_all():
    assert delay_s(SandboxError("x"), failed("model", "model", "env_infra")) is not None
    mixed = failed("model", "model", "env_infra", "env_infra", "sandbox")
    assert delay_s(SandboxError("x"), mixed) is None


def test_nothing_is_repeated_after_the_total_deadline():
    assert delay_s(SandboxError("x"), left_s=0.0) is None


def test_the_delay_doubles_up_to_its_maximum_with_jitter_of_half():
    settings = RetrySettings(backoff_s=10, backoff_max_s=35, max_attempts=9, attempts_model=9)
    for earlier, full_s in enumerate((10, 20, 35, 35)):
        found = {
            delay_s(ModelError("x"), failed(*["model"] * earlier), settings=settings)
            for _ in range(50)
        }
        assert all(full_s / 2 <= value <= full_s for value in found)
        assert len(found) > 1


@pytest.mark.parametrize("failure", [SandboxRejected("no such profile"), SandboxError("gone")])
def test_what_would_be_refused_again_is_neither_repeated_nor_refilled(failure):
    lasting = isinstance(failure, SandboxRejected)
    assert (delay_s(failure) is None) == lasting
    assert describe(failure).refillable != lasting


class FullHouse:
    """A backend that has no room, and remembers what it was asked for."""

    capabilities = Capabilities(isolation=True)

    def __init__(self):
        self.asked = []

    async def prepare(self, spec):
        self.asked.append(spec)

    async def acquire(self, trajectory_id, spec):
        raise SandboxError("no room")


@pytest.mark.parametrize(
    ("earlier", "alone"), [(["sandbox", "model"], False), (["sandbox"] * 2, True)]
)
async def test_a_job_under_which_two_sandboxes_died_gets_one_of_its_own(earlier, alone):
    job = make_job(env="sums_env:ENV")
    draft = Draft(job, 3, 3, earlier=tuple(failed(*earlier)), clock=Clock(60.0))
    backend = FullHouse()
    row = {"instance_id": "i", "question": "1+1", "answer": 2}
    services = Services(backend, ModelSettings())
    with pytest.raises(SandboxError, match="no room"):
        await rollout(Attempt(draft=draft, row=row, services=services, on_measured=lambda: None))
    assert [spec.alone for spec in backend.asked] == [alone]
