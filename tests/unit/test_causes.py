"""The table of causes: one row says what follows from a failure, wherever that is asked."""

from __future__ import annotations

import pytest

from hermes_queue import errors
from hermes_queue.errors import CAUSES, WIDE_CAUSES, TrajectoryFailure
from hermes_queue.ledger.fleet.lanes import causes_of
from hermes_queue.models import Failure
from hermes_queue.settings import RetrySettings
from workers.upkeep.quarantine import PoisonJob


def kinds() -> set[str]:
    classes = [PoisonJob, *vars(errors).values()]
    return {
        each.kind
        for each in classes
        if isinstance(each, type)
        and issubclass(each, TrajectoryFailure)
        and each is not TrajectoryFailure
    }


def test_every_failure_has_its_row_and_every_row_a_failure() -> None:
    assert kinds() == set(CAUSES)


def test_rows_name_settings_and_causes_that_exist() -> None:
    named = {row.attempts for row in CAUSES.values() if row.attempts}
    assert named == {name for name in RetrySettings.model_fields if name.startswith("attempts_")}
    assert {row.part_of for row in CAUSES.values() if row.part_of} <= set(WIDE_CAUSES)


def test_the_breaker_counts_wide_causes_alone() -> None:
    assert {*causes_of("lane"), *causes_of("endpoint")} <= set(WIDE_CAUSES)


@pytest.mark.parametrize(
    ("cause", "type_", "kind", "refillable"),
    [
        ("sandbox", "SlotLost", "sandbox", True),
        ("sandbox", "SlotKilled", "slot_killed", True),
        ("sandbox", "PoisonJob", "poison", False),
        ("sandbox", "IsolationUnavailable", "isolation", False),
        ("sandbox", "SandboxRejected", "rejected", False),
        ("env_bug", "EnvBug", "env_bug", False),
    ],
)
def test_a_failure_of_an_older_record_is_what_its_type_says(
    cause: str, type_: str, kind: str, refillable: bool
) -> None:
    failure = Failure(cause=cause, stage="setup", type=type_, message="why")
    assert (failure.kind, failure.refillable) == (kind, refillable)


def test_what_the_worker_decided_travels_and_a_kind_of_a_newer_worker_is_taken() -> None:
    known = {"cause": "sandbox", "stage": "setup", "type": "X", "message": "why", "kind": "newer"}
    assert not Failure(**known).refillable
    decided = Failure(**known, refillable=True)
    assert Failure.model_validate(decided.model_dump(exclude_defaults=True)) == decided


def test_a_cause_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ValueError, match=r"cause\n.*sandbox\|model"):
        Failure(cause="weather", stage="setup", type="X", message="rain")


def test_a_failure_of_no_known_kind_cannot_be_defined() -> None:
    with pytest.raises(TypeError, match=r"Hail\.kind must be one of sandbox"):
        type("Hail", (TrajectoryFailure,), {"kind": "weather"})
