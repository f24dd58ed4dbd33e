"""What an engine's metrics say, and how much of its cache contexts may take."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hermes_queue.settings import EngineSettings
from workers.calls.pressure import KV_MAX, Pressure, Reading, read_metrics, steered

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
vllm:num_requests_running{engine="0",model_name="m"} 7.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1000.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 900.0
vllm:num_preemptions_total{engine="0",model_name="m"} 3.0
vllm:generation_tokens_total{engine="0",model_name="m"} 50.0
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="100",x="a,b\\"c"} 1.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="m"} 0.0
"""
SGLANG = """\
sglang:num_running_reqs{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 4.0
sglang:num_running_reqs{engine_type="unified",model_name="m",pp_rank="0",tp_rank="1"} 4.0
sglang:num_queue_reqs{model_name="m",tp_rank="0"} 1.0
sglang:token_usage{model_name="m",tp_rank="0"} 0.5
sglang:max_total_num_tokens{model_name="m",tp_rank="0"} 9000.0
"""
SETTINGS = EngineSettings()
READING = Reading(100_000, 5, 0, 0.2, 0, 0, 0, 0)


def test_the_metrics_of_vllm_are_read():
    assert read_metrics(VLLM.encode()) == Reading(1600, 7, 2, 0.25, 3, 1000, 900, 50)


def test_the_metrics_of_sglang_are_read_once_for_all_ranks():
    found = read_metrics(SGLANG.encode())
    assert (found.kv_tokens, found.running, found.waiting, found.usage) == (9000, 4, 1, 0.5)
    assert found.hits is None


def test_replicas_add_up():
    second = VLLM.replace('engine="0"', 'engine="1"')
    found = read_metrics((VLLM + second).encode())
    assert (found.kv_tokens, found.running, found.usage) == (3200, 14, 0.25)


@pytest.mark.parametrize(
    "page",
    [
        b"",
        b"<html>not found</html>",
        b"\xff\xfe" * 1000,
        b"vllm:num_requests_running NaN\nvllm:num_requests_waiting +Inf\n",
        b"vllm:num_requests_running -5\nsglang:max_total_num_tokens 1e300\n",
        b'vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1\n',
        b'vllm:cache_config_info{block_size="' + b"9" * 5000 + b'",num_gpu_blocks="9"} 1\n',
        b"vllm:num_requests_running{" + b'a="b",' * 100_000,
        b"sglang:max_total_num_tokens 3\n",
        f"sglang:max_total_num_tokens {KV_MAX + 1}\n".encode(),
    ],
    ids=range(10),
)
def test_a_page_that_says_nothing_credible_is_no_reading(page):
    assert read_metrics(page) == Reading()


def test_without_the_size_of_a_cache_nothing_is_counted():
    assert steered(None, replace(READING, kv_tokens=None), 0, 0, SETTINGS) is None


def test_a_size_that_is_set_stands_for_one_that_is_not_reported():
    found = steered(None, Reading(), 0, 0, EngineSettings(kv_tokens=5000))
    assert (found.kv_tokens, found.level) == (5000, SETTINGS.fill)


@pytest.mark.parametrize(("reported", "believed"), [(10**9, 125_000), (2000, 80_000)])
def test_a_size_that_changes_at_once_is_believed_step_by_step(reported, believed):
    last = Pressure(100_000, 0.9)
    assert steered(last, replace(READING, kv_tokens=reported), 0, 0, SETTINGS).kv_tokens == believed


def repeated(reading_of, times=600, bound=0):
    """The pressure after so many readings."""
    found = Pressure(100_000, SETTINGS.fill, queries=0, hits=0, preemptions=0, generated=0)
    for number in range(1, times + 1):
        found = steered(found, *reading_of(number), bound * number, SETTINGS)
    return found


@pytest.mark.parametrize(
    "reading_of",
    [
        lambda n: (replace(READING, preemptions=n), 0),
        lambda n: (replace(READING, waiting=100), 0),
        lambda n: (replace(READING, queries=1000 * n, hits=0), 10 * n),
    ],
    ids=["preemptions", "queue", "prefixes computed again"],
)
def test_pressure_lowers_the_level_to_a_bound(reading_of):
    assert repeated(reading_of, 1).level < SETTINGS.fill
    assert repeated(reading_of).level == pytest.approx(SETTINGS.fill / 2)


def test_contexts_that_grow_are_not_computed_again():
    found = repeated(lambda n: (replace(READING, queries=1000 * n, hits=900 * n), 100 * n))
    assert (found.level, found.waste) == (SETTINGS.fill, 0)


def test_without_pressure_the_level_rises_while_somebody_waits_and_slowly_beyond_the_cache():
    calm = lambda n: (READING, 0)  # noqa: E731
    assert repeated(calm).level == SETTINGS.fill
    assert SETTINGS.fill < repeated(calm, 60, bound=1).level < 1.02
    assert repeated(calm, 5000, bound=1).level == 2.0


def test_an_engine_that_was_restarted_shows_no_pressure():
    last = replace(Pressure(100_000, 0.9), preemptions=50, queries=10**6, hits=10**5)
    assert steered(last, READING, 0, 0, SETTINGS).level == 0.9


def test_the_memo_of_another_version_is_not_read():
    found = steered(None, READING, 3, 4, SETTINGS)
    assert Pressure.unpacked(found.packed()) == found
    assert [Pressure.unpacked(text) for text in ("", "[1]", '{"unknown": 1}', "{")] == [None] * 4


def test_labels_without_end_are_looked_at_once():
    assert read_metrics(b"vllm:num_requests_running{%s} 1\n" % (b"a" * 3990) * 1000).running == 1000
