"""A simulated engine: what a limit of trajectories by tokens brings."""

from __future__ import annotations

from functools import partial

import pytest

from benchmarks.engines.__main__ import main
from benchmarks.engines.engine import Call, Engine, Hardware
from benchmarks.engines.fleet import run
from benchmarks.engines.load import tasks
from benchmarks.engines.policies import CallCap, FlightCap, KvTokens, Policy


def served(engine, *calls):
    """When each call ended, in the order of their ends."""
    ends = []
    for key, prompt, reply in calls:
        engine.submit(Call(key, prompt, reply, lambda now, key=key: ends.append(key)))
    while len(ends) < len(calls):
        engine.advance(engine.now + 1000)
    return ends


def test_a_context_that_is_cached_is_not_computed_again():
    engine = Engine(Hardware(kv_tokens=10_000))
    served(engine, (1, 4000, 100))
    first = engine.now
    served(engine, (1, 4200, 100))
    assert (engine.queries, engine.hits) == (8200, 4096)
    assert engine.now - first < first


def test_the_least_recently_used_context_is_evicted_from_its_end():
    engine = Engine(Hardware(kv_tokens=8000))
    served(engine, (1, 3900, 100))
    served(engine, (2, 3900, 100))
    served(engine, (3, 1500, 100))
    assert (engine.cached[1], engine.cached[2], engine.cached[3]) == (2400, 4000, 1600)


def test_the_youngest_call_is_preempted_and_served_later():
    engine = Engine(Hardware(kv_tokens=4000))
    assert served(engine, (1, 1900, 500), (2, 1900, 300)) == [1, 2]
    assert engine.preemptions == 1


@pytest.mark.fleet
def test_counting_tokens_serves_a_changing_load_better_than_any_fixed_cap():
    work = tasks("changing", 1, 0.05)
    caps = [Policy, *(partial(CallCap, cap=cap) for cap in (16, 64))]
    caps += [partial(FlightCap, cap=cap) for cap in (6, 8, 10, 12, 16, 32, 64, 80)]
    best = max(run(work, cap)["goodput"] for cap in caps)
    assert run(work, KvTokens)["goodput"] > 1.1 * best


@pytest.mark.fleet
@pytest.mark.parametrize(("load", "least"), [("short", 0.95), ("long", 1.0)])
def test_counting_tokens_serves_a_steady_load_about_as_well_as_its_best_cap(load, least):
    work = tasks(load, 1, 0.2)
    best = max(run(work, partial(FlightCap, cap=cap))["goodput"] for cap in (8, 10, 64, 80, 96))
    assert run(work, KvTokens)["goodput"] > least * best


def test_the_comparison_is_printed(capsys):
    main(["--loads", "short", "--seeds", "1", "--scale", "0.01"])
    header, row = capsys.readouterr().out.splitlines()
    assert header.split()[-4:] == ["of", "the", "best", "cap"]
    assert row.startswith("short")
