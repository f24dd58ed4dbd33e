"""The simulation of a fleet obeys the laws that any queueing system obeys."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from benchmarks.simulate import Fleet, main, simulate
from benchmarks.soak.trends import trend

IDLE = Fleet(
    hosts=2, slots=20, cores=4, turns=3, reply_s=(4.0, 6.0), tool_s=(0.0, 0.0), tool_ms=0.0,
    verify_ms=0.0, trajectory_ms=0.0, turn_ms=0.0, redis_ms=0.0, permit_ms=0.0, ask_ms=0.0,
    record_ms=0.0, renew_ms=0.0, upkeep_ms=0.0, consumer_ms=0.0, minutes=9,
)  # fmt: skip
"""Nothing costs anything but the model, which takes 5 s in the mean."""


def busy(found, name):
    return next(each["busy"] for each in found["stations"] if each["station"].startswith(name))


def test_slots_without_costs_run_at_the_pace_of_the_model():
    found = simulate(IDLE)
    assert found["trajectories_per_s"] == pytest.approx(40 / 15, rel=0.03)
    assert found["calls_in_flight"] == pytest.approx(40, rel=0.01)
    assert found["calls_per_s"] == pytest.approx(8, rel=0.03)


@pytest.mark.parametrize(
    ("name", "costs", "rate"),
    [
        ("Redis", {"redis_ms": 1000.0}, 1.0),
        ("Redis", {"redis_ms": 1000.0, "shards": 2}, 2.0),
        ("workers", {"trajectory_ms": 4000.0}, 0.5),
        ("workers", {"trajectory_ms": 4000.0, "workers": 2}, 1.0),
        ("workers", {"turn_ms": 1000.0}, 2 / 3),
        ("cores", {"verify_ms": 8000.0}, 1.0),
    ],
)
def test_a_station_that_is_always_busy_sets_the_rate(name, costs, rate):
    found = simulate(replace(IDLE, **costs))
    assert found["trajectories_per_s"] == pytest.approx(rate, rel=0.06)
    assert busy(found, name) == pytest.approx(1, abs=0.05)
    assert found["first_bottleneck"].startswith(name)


def test_processes_of_one_machine_share_its_cores():
    one = {"hosts": 1, "turns": 0, "cores": 2, "minutes": 0.3, "one_machine": True}
    costs = {"trajectory_ms": 10.0, "redis_ms": 10.0, "consumer_ms": 10.0}
    found = simulate(replace(IDLE, **one, **costs))
    assert found["trajectories_per_s"] == pytest.approx(2 / 0.03, rel=0.05)
    apart = simulate(replace(IDLE, **one | {"one_machine": False}, **costs))
    assert apart["trajectories_per_s"] == pytest.approx(100, rel=0.02)


def test_an_endpoint_that_serves_few_calls_makes_the_others_wait_and_ask():
    found = simulate(replace(IDLE, endpoint_calls=10, permit_ms=1.0, ask_ms=1.0))
    assert found["calls_per_s"] == pytest.approx(2, rel=0.03)
    assert found["call_wait_s"] == pytest.approx(15, rel=0.05)
    free = simulate(replace(IDLE, permit_ms=1.0, ask_ms=1.0))
    assert busy(found, "Redis") / 2 > busy(free, "Redis") / 8, "asking again costs Redis"


def test_renewals_are_work_for_redis_even_if_nothing_ends():
    found = simulate(replace(IDLE, renew_ms=100.0, upkeep_ms=10.0))
    assert busy(found, "Redis") == pytest.approx(40 / 10 * 0.1 + 2 * 0.01)


def test_the_same_seed_gives_the_same_output(capsys):
    words = [
        "--hosts",
        "2",
        "--slots",
        "5",
        "--turns",
        "2",
        "--minutes",
        "2",
        "--reply-s",
        "1",
        "3",
    ]
    outputs = []
    for more in ([], [], ["--seed", "2"], ["--json"]):
        main([*words, *more])
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] != outputs[2]
    assert "first bottleneck: " in outputs[0]
    assert json.loads(outputs[3])["fleet"]["slots"] == 5


@pytest.mark.parametrize("words", ["--hosts 0", "--shards 3 --hosts 2", "--minutes -1"])
def test_a_fleet_that_cannot_be_is_refused(words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 2
    assert words.split()[0] in capsys.readouterr().err


def series(value):
    return [(15.0 * n, float(value(n))) for n in range(100)]


@pytest.mark.parametrize(
    ("value", "verdict"),
    [
        (lambda n: 50, "flat"),
        (lambda n: 50 + n % 3, "flat"),
        (lambda n: 100 - n, "flat"),
        (lambda n: 50 + n / 40, "flat"),
        (lambda n: 50 + n, "grows"),
        (lambda n: 50 + n + 20 * (n % 2), "grows"),
        (lambda n: 50 * (1 - 0.8**n), "flat"),
        (lambda n: 20 + (n + 40) % 90, "bounded"),
    ],
)
def test_a_series_is_judged_by_its_second_half(value, verdict):
    assert trend(series(value)).verdict == verdict


def test_a_rise_below_the_noise_of_its_kind_is_flat_and_few_samples_say_nothing():
    assert trend(series(lambda n: n / 10), floor=10).verdict == "flat"
    assert trend(series(lambda n: n / 10), floor=1).verdict == "grows"
    assert trend(series(lambda n: n)[:8]).verdict == "too short"
