"""Settings that no worker could work with are named before any work begins."""

from __future__ import annotations

import pytest

from hermes_queue.errors import ConfigurationError
from hermes_queue.settings import RedisSettings, check_environment

OURS, OTHER = "redis://:secret@127.0.0.1:16390/0", "redis://127.0.0.1:19999/5"


@pytest.mark.parametrize(
    ("variables", "problem"),
    [
        ({"LEASE_DURATION_S": "inf"}, "LEASE_DURATION_S: Input should be a finite number"),
        ({"MODEL_PAUSE_MAX_S": "nan"}, "MODEL_PAUSE_MAX_S: Input should be a finite number"),
        ({"RETRY_BACKOFF_S": "1e308"}, "RETRY_BACKOFF_S: must be 0.001 to 1,000,000,000 seconds"),
        ({"RESULTS_FINISHED_TTL_S": "9" * 30}, "must be 0.001 to 1,000,000,000 seconds"),
        ({"LEASE_MOVER_S": "1e-9"}, "must be 0.001 to 1,000,000,000 seconds"),
        (
            {"LEASE_RENEW_S": "100", "LEASE_DURATION_S": "5"},
            "HERMES_QUEUE_LEASE_DURATION_S, 5, must be at least 2 times HERMES_QUEUE_LEASE_RENEW_S",
        ),
        ({"LEASE_RENEW_S": "100"}, "HERMES_QUEUE_LEASE_DURATION_S, 40, must be at least 2 times"),
        ({"LEASE_SWEEP_S": "41"}, "must be at least HERMES_QUEUE_LEASE_SWEEP_S, 41"),
        ({"RETRY_BACKOFF_S": "301"}, "must be at least HERMES_QUEUE_RETRY_BACKOFF_S, 301"),
        ({"BREAKER_OPEN_S": "901"}, "must be at least HERMES_QUEUE_BREAKER_OPEN_S, 901"),
        ({"LIMITER_MIN_CALLS": "2000"}, "must be at least HERMES_QUEUE_LIMITER_MIN_CALLS"),
        ({"RESULTS_SOFT_MAX_GROUPS": "100001"}, "at least HERMES_QUEUE_RESULTS_SOFT_MAX_GROUPS"),
        ({"WORKER_LANES": ","}, "WORKER_LANES: names no lane"),
        ({"WORKER_LANES": "train,a|b"}, "lane 'a|b': write letters, digits"),
        ({"WORKER_LANES": "train:endpoints"}, "reserved for queues and keys of lane 'train'"),
    ],
    ids=str,
)
def test_settings_that_cannot_work_are_refused(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], problem: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"HERMES_QUEUE_{name}", value)
    with pytest.raises(ConfigurationError) as refused:
        check_environment()
    assert problem in str(refused.value)


@pytest.mark.parametrize("name", ["CELERY_BROKER_URL", "CELERY_BROKER_WRITE_URL"])
def test_a_broker_elsewhere_in_celerys_own_variable_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("HERMES_QUEUE_REDIS_URL", OURS)
    monkeypatch.setenv(name, OTHER)
    with pytest.raises(ConfigurationError, match=f"{name} .* names another broker") as refused:
        check_environment()
    assert "secret" not in str(refused.value)


def test_celerys_own_variable_stands_in_for_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HERMES_QUEUE_REDIS_URL", raising=False)
    monkeypatch.setenv("CELERY_BROKER_URL", OTHER)
    url = RedisSettings.read().url
    assert url is not None
    assert url.get_secret_value() == OTHER
    monkeypatch.setenv("CELERY_BROKER_URL", "amqp://guest@127.0.0.1//")
    with pytest.raises(
        ConfigurationError, match="cannot stand in for it: it must start with redis"
    ):
        check_environment()


@pytest.mark.parametrize(
    ("ours", "celerys"),
    [
        ("redis://h", "redis://h:6379/0"),
        ("redis://h:1?db=3", "redis://h:1/3"),
        ("unix:///run/redis.sock?db=2", "redis+socket:///run/redis.sock?virtual_host=2"),
        ("sentinel://a,b:1/mymaster/2", "sentinel://a:26379/2;sentinel://b:1"),
        ("rediss://h/0", "rediss://h/0?ssl_cert_reqs=required"),
    ],
)
def test_the_same_redis_in_celerys_spelling_is_taken(
    monkeypatch: pytest.MonkeyPatch, ours: str, celerys: str
) -> None:
    monkeypatch.setenv("HERMES_QUEUE_REDIS_URL", ours)
    monkeypatch.setenv("CELERY_BROKER_URL", celerys)
    check_environment()
